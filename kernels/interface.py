"""The contract of an attention backend: plan once per step on the host, then write and attend per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .layout import BlockCopy, StepBatch


@dataclass(frozen=True, slots=True)
class KVShape:
    """Geometry of the KV pool: per layer, K and V apart, each ``[num_blocks, 16, kv_heads, head_dim]``."""

    num_layers: int
    num_blocks: int
    kv_heads: Sequence[int]
    """[layers]"""
    head_dim: Sequence[int]
    """[layers]"""
    dtype: torch.dtype
    device: torch.device


class AttentionBackend(Protocol):
    """Paged attention over one KV pool. ``plan`` returns an opaque value that the same step's calls take back."""

    name: str

    def plan(self, batch: StepBatch) -> Any:
        """Group the rows of the step into work items. Host only, once per step, shared by all layers."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Run copy-on-write copies for all layers. Called before the step's first ``write_kv``."""

    def write_kv(self, layer: int, key: torch.Tensor, value: torch.Tensor, plan: Any) -> None:
        """Scatter ``key``/``value`` ``[rows, kv_heads, head_dim]`` to the step's slots."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        plan: Any,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend ``query`` ``[rows, heads, head_dim]`` to each row's own prefix; returns the same shape."""
