"""The seam to transformers' modelling code: its attention layers call our backend instead of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..kernels.interface import AttentionBackend
from .errors import UnsupportedByBackend
from .modeling import AttentionInterface

ATTENTION_NAME = "furcate"
"""Name of our attention in transformers' registry. It has no entry in the mask registry, so no mask is ever built."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a forward pass hands to every attention layer, through the model's keyword arguments."""

    backend: AttentionBackend
    plan: Any
    num_rows: int
    """Rows of the step; the packed input may hold padding rows after them."""


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    furcate_step: StepContext | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write this layer's K/V, then attend. ``query`` ``[1, heads, rows, dim]``, ``key``/``value``
    ``[1, kv_heads, rows, dim]``; returns ``[1, rows, heads, dim]``. ``s_aux`` are attention sinks, ``[heads]``.

    Raises UnsupportedByBackend where the model's code drops the keyword arguments on their way here.
    """
    if furcate_step is None:
        raise UnsupportedByBackend(
            f"{type(module).__name__} of transformers does not hand keyword arguments to its attention, so its KV "
            "cannot be paged"
        )
    layer: int = module.layer_idx  # type: ignore[assignment]  # every attention module of transformers has it
    backend, plan = furcate_step.backend, furcate_step.plan
    backend.write_kv(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), plan)
    out = backend.attend(
        layer,
        query[0].transpose(0, 1),
        plan,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return out.unsqueeze(0), None


def register_attention() -> None:
    """Make ``ATTENTION_NAME`` known to transformers. Idempotent."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
