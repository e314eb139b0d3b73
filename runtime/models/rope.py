"""Rotary embeddings whose frequencies transformers would change with the batch, fixed once at load.

A key is stored rotated and is read by every later row and by every branch that shares it, so its rotation must be a
function of its position alone. Two kinds of rotary embedding look at the longest position of the forward pass instead:

- ``dynamic`` (NTK-aware) stretches its base once a sequence outgrows ``max_position_embeddings``. No sequence here is
  longer than the context, so the frequencies are those of the whole context: with the model's own limit, the unscaled
  ones, which is what transformers computes for every sequence within it.
- ``longrope`` has a short and a long set of factors, parted at ``original_max_position_embeddings``. The long set is
  taken where the context goes beyond that length, the short set where it does not. Sequences below that length in a
  long context therefore use the long set, where transformers would use the short one until they grow past it.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_FIXED = "fixed"
_BATCH_DEPENDENT = ("dynamic", "longrope")


def fix_rope(module: Any, max_context: int) -> None:
    """Give every rotary embedding of ``module`` the frequencies for ``max_context`` tokens, for good.

    Idempotent. Raises KeyError or AttributeError where the configuration lacks what the frequencies are made of.
    """
    for child in module.modules():
        kind = getattr(child, "rope_type", None)
        if isinstance(kind, str) and kind in _BATCH_DEPENDENT:
            _fix(child, kind, "", max_context, None)
            child.rope_type = _FIXED
        elif isinstance(kind, dict):
            for layer_type, own in kind.items():
                if own in _BATCH_DEPENDENT:
                    _fix(child, own, f"{layer_type}_", max_context, layer_type)
                    kind[layer_type] = _FIXED


def move_module(module: torch.nn.Module, *, device: torch.device, dtype: torch.dtype) -> None:
    """``Module.to``, but rotary frequencies stay as precise as they are: in bfloat16 the
    angle at position 4,000 would be off by whole radians."""
    kept = [
        (child, name, buffer)
        for child in module.modules()
        for name, buffer in child.named_buffers(recurse=False)
        if name.endswith("inv_freq")
    ]
    module.to(device=device, dtype=dtype)
    for child, name, buffer in kept:
        setattr(child, name, buffer.to(device))


def _fix(rotary: Any, kind: str, prefix: str, max_context: int, layer_type: str | None) -> None:
    buffer: torch.Tensor = getattr(rotary, f"{prefix}inv_freq")
    options = {} if layer_type is None else {"layer_type": layer_type}
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](rotary.config, buffer.device, seq_len=max_context, **options)
    setattr(rotary, f"{prefix}inv_freq", frequencies.to(buffer.device))
    setattr(rotary, f"{prefix}attention_scaling", scaling)
