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

import hashlib
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_FIXED = "fixed"
_BATCH_DEPENDENT = ("dynamic", "longrope")


def fix_rope(module: Any, max_context: int) -> str:
    """Give every rotary embedding of ``module`` the frequencies for ``max_context`` tokens, for good.

    Returns what tells the chosen frequencies from others, "" where there is no choice: KV of one choice is of no use to
    another. Raises KeyError or AttributeError where the configuration lacks what the frequencies are made of.
    """
    digest = hashlib.blake2b(digest_size=4)
    chosen = False
    for child in module.modules():
        kind = getattr(child, "rope_type", None)
        parts: dict[str | None, str] = kind if isinstance(kind, dict) else {None: kind} if isinstance(kind, str) else {}
        for layer_type, own in parts.items():
            if own in _BATCH_DEPENDENT:
                digest.update(_fix(child, own, max_context, layer_type).cpu().numpy().tobytes())
                parts[layer_type] = _FIXED
                chosen = True
        if isinstance(kind, str):
            child.rope_type = parts[None]
    return f"-rope-{digest.hexdigest()}" if chosen else ""


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


def _fix(rotary: Any, kind: str, max_context: int, layer_type: str | None) -> torch.Tensor:
    prefix, options = ("", {}) if layer_type is None else (f"{layer_type}_", {"layer_type": layer_type})
    device = getattr(rotary, f"{prefix}inv_freq").device
    frequencies: torch.Tensor
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](rotary.config, device, seq_len=max_context, **options)
    setattr(rotary, f"{prefix}inv_freq", frequencies)
    setattr(rotary, f"{prefix}attention_scaling", scaling)
    return frequencies
