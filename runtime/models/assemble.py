"""The last step of every loader: a module and a tokenizer become a LoadedModel."""

from __future__ import annotations

from typing import Any

import torch

from ..attention import ATTENTION_NAME, register_attention
from ..errors import ModelLoadError
from ..tokenizer import Tokenizer
from .loaded import LoadedModel


def assemble_model(
    name: str,
    module: Any,
    tokenizer: Tokenizer,
    *,
    weights_version: str,
    dtype: torch.dtype | None = None,
    device: str | None = None,
) -> LoadedModel:
    """Set the attention, dtype and device of ``module`` and read its geometry. fp32 on a CPU unless told otherwise.

    Raises ModelLoadError where the configuration does not describe a decoder with KV heads.
    """
    target = torch.device(device or "cpu")
    wanted = dtype or (torch.float32 if target.type == "cpu" else torch.bfloat16)
    if not module.base_model._supports_attention_backend:
        raise ModelLoadError(
            f"{name}: {type(module).__name__} of transformers computes attention by itself, so its KV cannot be paged. "
            "Choose a model whose attention goes through transformers' attention interface."
        )
    register_attention()
    module.set_attn_implementation(ATTENTION_NAME)
    module.eval().requires_grad_(False)
    module.to(device=target, dtype=wanted)
    config = module.config.get_text_config(decoder=True)
    try:
        num_layers = int(config.num_hidden_layers)
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        max_context = int(config.max_position_embeddings)
    except (AttributeError, TypeError) as error:
        raise ModelLoadError(
            f"{name}: the configuration ({type(config).__name__}) lacks what paged attention needs: {error}. "
            "Only decoder-only transformers with standard attention can be run."
        ) from error
    return LoadedModel(
        name=name,
        module=module,
        config=config,
        tokenizer=tokenizer,
        max_context=max_context,
        weights_version=f"{weights_version}-{str(wanted).removeprefix('torch.')}",
        kv_heads=(kv_heads,) * num_layers,
        head_dim=(head_dim,) * num_layers,
        dtype=wanted,
        device=target,
    )
