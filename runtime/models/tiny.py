"""``test:tiny``: a two-layer Llama with random weights and a byte tokenizer. The real engine, in milliseconds."""

from __future__ import annotations

from typing import Unpack

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from .assemble import assemble_model
from .byte_tokenizer import IM_END, ByteTokenizer
from .known import TINY_NAME
from .loaded import LoadedModel, LoadOptions

_SEED = 20240229
_LOGIT_SCALE = 4.0
"""Spread of the logits: entropy about 3 bits of 8, so that greedy has clear winners and sampling has choices."""


def tiny_config() -> LlamaConfig:
    """Hidden size 64, 2 layers, 4 heads on 2 KV heads of 16, 260 ids, context 4096."""
    return LlamaConfig(
        vocab_size=ByteTokenizer().vocabulary.size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=IM_END,
        pad_token_id=None,
    )


def load_tiny(**options: Unpack[LoadOptions]) -> LoadedModel:
    """Build the model in memory. The weights are a function of a fixed seed only."""
    with torch.random.fork_rng(devices=[]):  # the class draws its own weights; the caller's generator stays put
        module = LlamaForCausalLM(tiny_config())
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            if parameter.dim() < 2:
                parameter.fill_(1.0)
                continue
            std = 1.0 if "embed" in name else parameter.shape[1] ** -0.5
            if "lm_head" in name:
                std *= _LOGIT_SCALE
            parameter.normal_(0.0, std, generator=generator)
    return assemble_model(TINY_NAME, module, ByteTokenizer(), weights_version=f"tiny-{_SEED}", **options)
