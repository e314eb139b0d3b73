"""What loading a model yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

from ..tokenizer import Tokenizer


class LoadOptions(TypedDict, total=False):
    """What every loader takes. Left out: fp32 on a CPU, bfloat16 elsewhere, and the model's own context."""

    dtype: torch.dtype | None
    device: str | None
    max_context: int | None
    """Tokens that a sequence may hold, at most the model's own limit. LongRoPE takes its short factors where this stays
    within what the model was first trained on (``models.rope``)."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in evaluation mode, its attention set to ours, and its tokenizer."""

    name: str
    module: torch.nn.Module
    """A ``transformers`` causal LM; ``forward`` takes packed ``input_ids[1, rows]`` and ``position_ids[1, rows]``."""
    config: Any
    """Text configuration of the model (``PretrainedConfig``)."""
    tokenizer: Tokenizer
    max_context: int
    """Tokens that a sequence may hold."""
    weights_version: str
    """Names the weights: KV and logits of equal versions are interchangeable."""
    kv_heads: Sequence[int]
    """[layers]"""
    head_dim: Sequence[int]
    """[layers]"""
    dtype: torch.dtype
    device: torch.device
