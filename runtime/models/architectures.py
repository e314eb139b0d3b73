"""What may run: architectures that are compared with transformers in the tests, and what is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ModelLoadError

VERIFIED = frozenset(
    {
        "apertus",
        "arcee",
        "bitnet",
        "cohere",
        "cohere2",
        "ernie4_5",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gpt_oss",
        "granite",
        "helium",
        "hunyuan_v1_dense",
        "llama",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "starcoder2",
    }
)
"""``model_type`` of the architectures whose logits and tokens the tests compare with transformers'. Another one is
tried once at load (``models.probe``) and refused where it differs."""

_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the KV pool needs to know of a model."""

    max_context: int
    """Tokens that a sequence may hold."""
    kv_heads: Sequence[int]
    """[layers]"""
    head_dim: Sequence[int]
    """[layers]"""


def check_architecture(name: str, module: Any) -> None:
    """Refuse what cannot be right over paged KV, with the reason. Raises ModelLoadError."""
    config = module.config.get_text_config(decoder=True)
    kind = type(module).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise _refused(name, kind, "is an encoder and a decoder, and only decoders have one growing context")
    if getattr(config, "use_bidirectional_attention", False) or getattr(config, "is_causal", True) is False:
        raise _refused(name, kind, "attends to later tokens, so a prefix's KV depends on what follows it")
    if getattr(config, "alibi", False):
        raise _refused(name, kind, "biases attention by distance (ALiBi), which paged attention does not compute")
    if getattr(config, "kv_lora_rank", None):
        raise _refused(name, kind, "keeps latent KV (multi-head latent attention) with keys longer than values")
    for layer_type in dict.fromkeys(getattr(config, "layer_types", None) or ()):
        if layer_type not in _LAYER_TYPES:
            raise _refused(name, kind, f"has layers of type {layer_type!r}, of which paged attention knows nothing")
    if getattr(config, "num_kv_shared_layers", 0):
        raise _refused(name, kind, "shares KV between layers")
    if not getattr(module.base_model, "_supports_attention_backend", False):
        raise _refused(name, kind, "computes attention by itself, past transformers' attention interface")


def read_geometry(name: str, config: Any) -> Geometry:
    """Layers, heads and context of a decoder's text configuration. Raises ModelLoadError where they are not there."""
    try:
        num_layers = int(config.num_hidden_layers)
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        if getattr(config, "multi_query", False):
            kv_heads = 1
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        max_context = int(config.max_position_embeddings)
    except (AttributeError, TypeError) as error:
        raise ModelLoadError(
            f"{name}: the configuration ({type(config).__name__}) lacks what paged attention needs: {error}. "
            "Only decoder-only transformers with standard attention can be run."
        ) from error
    if min(num_layers, heads, kv_heads, head_dim, max_context) < 1 or heads % kv_heads:
        raise ModelLoadError(
            f"{name}: the configuration names {num_layers} layers, {heads} heads on {kv_heads} KV heads of {head_dim} "
            f"and a context of {max_context}, which no model can have. Fetch config.json again."
        )
    return Geometry(max_context, (kv_heads,) * num_layers, (head_dim,) * num_layers)


def _refused(name: str, kind: str, why: str) -> ModelLoadError:
    return ModelLoadError(
        f"{name}: {kind} {why}, so its KV cannot be paged and shared. Choose a decoder with standard attention, "
        "such as Llama, Qwen, Mistral, Gemma, Phi or OLMo."
    )
