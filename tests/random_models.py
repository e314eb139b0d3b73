"""Small random models of many architectures, built from configurations: ours and the same in transformers' hands."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

from furcate.runtime.models.assemble import assemble_model
from furcate.runtime.models.byte_tokenizer import ByteTokenizer
from furcate.runtime.models.loaded import LoadedModel

SMALL = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
WINDOW = {"sliding_window": 40}
MIXED = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

MAIN: dict[str, dict[str, Any]] = {
    "Llama": {**GROUPED, "attention_bias": True, "tie_word_embeddings": True},
    "Qwen2": GROUPED,
    "Qwen3": GROUPED,
    "Mistral": {**GROUPED, **WINDOW},
    "Gemma2": {**GROUPED, **MIXED, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
    "Gemma3Text": {**GROUPED, **MIXED, "query_pre_attn_scalar": 16},
    "Phi3": {**GROUPED, "original_max_position_embeddings": 1024},
    "GPTNeoX": {"rotary_pct": 0.5},
    "Olmo2": GROUPED,
    "Mixtral": {**GROUPED, **WINDOW, **LOCAL_EXPERTS},
    "Qwen3Moe": {**GROUPED, **EXPERTS, "moe_intermediate_size": 48},
}
"""The architectures that every test is run on."""

OTHERS: dict[str, dict[str, Any]] = {
    "Apertus": {**GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "Arcee": GROUPED,
    "BitNet": GROUPED,
    "Cohere": {**GROUPED, "logit_scale": 0.5},
    "Cohere2": {**GROUPED, **MIXED, "logit_scale": 0.5},
    "Ernie4_5": GROUPED,
    "Exaone4": {**GROUPED, **MIXED},
    "Gemma": GROUPED,
    "Glm": GROUPED,
    "Glm4": GROUPED,
    "GPT2": {"n_positions": 1024},
    "GPTBigCode": {"n_positions": 1024},
    "GptOss": {**GROUPED, **LOCAL_EXPERTS, **MIXED, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "Granite": {**GROUPED, "logits_scaling": 4.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5},
    "Helium": GROUPED,
    "HunYuanDenseV1": GROUPED,
    "Olmo": GROUPED,
    "Olmo3": {**GROUPED, **MIXED},
    "Olmoe": {**GROUPED, **EXPERTS},
    "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "Phi": GROUPED,
    "Qwen2Moe": {**GROUPED, **EXPERTS, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48},
    "SeedOss": GROUPED,
    "SmolLM3": GROUPED,
    "Starcoder2": GROUPED,
}
"""What works beside them."""

FAMILIES = {**MAIN, **OTHERS}


def random_module(family: str, **changes: Any) -> Any:
    """A causal LM of transformers with random weights; biases and norms are not left at zero and one."""
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **FAMILIES.get(family, {}), **changes})
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(transformers, f"{family.removesuffix('Text')}{head}")(config).eval()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter.dim() < 2 and name.endswith("bias"):
                    parameter.normal_(0, 0.1)
                elif parameter.dim() < 2 and "norm" in name:
                    parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    return module


def random_pair(family: str, **changes: Any) -> tuple[LoadedModel, Any]:
    """The model as we load it, and a copy with transformers' plain attention."""
    module = random_module(family, **changes)
    reference = copy.deepcopy(module)
    reference.set_attn_implementation("eager")
    return assemble_model(family, module, ByteTokenizer(), weights_version="0"), reference


def random_loaded(family: str, **changes: Any) -> LoadedModel:
    """The model as we load it."""
    return assemble_model(family, random_module(family, **changes), ByteTokenizer(), weights_version="0")
