"""Tree attention in plain torch: the CPU's own backend, and the reference of the others.

A chunk that several rows share is gathered once. Items of one size run as one batched call. Each row's partial results
are merged in chunk order, in fp32, with natural log-sum-exps. Nothing a row's result is made of depends on the rows
beside it: the query tile is padded to a size from which on the products have been seen to be independent of it
(``row_tile``), and a chunk of fewer slots only leaves out terms that are exactly zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from .interface import KVShape
from .layout import BLOCK_SIZE, BlockCopy, StepBatch
from .tree_batches import ItemBatch, StepPlan
from .tree_partial import fused_partial, partial_attention

_ALIGNMENT = 64
"""Bytes: torch's own tensors begin at multiples of a cache line."""


class TorchBackend:
    """Paged attention over one KV pool, ``[num_blocks, 16, kv_heads, head_dim]`` for K and for V of each layer.

    One block more than asked for is allocated: it stays zero, and every slot that a gather must not read is pointed at
    it, so whatever stands in slots that were never written (NaN included) cannot reach a result.
    """

    name = "torch"

    def __init__(self, kv_shape: KVShape) -> None:
        self.kv_shape = kv_shape
        self._zero_slot = kv_shape.num_blocks * BLOCK_SIZE
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        for heads, dim in zip(kv_shape.kv_heads, kv_shape.head_dim, strict=True):
            shape = (kv_shape.num_blocks + 1, BLOCK_SIZE, heads, dim)
            for pools in (self._keys, self._values):
                pools.append(_zeros(shape, kv_shape.dtype, kv_shape.device))

    def kv_pool(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of ``layer``, each ``[num_blocks, 16, kv_heads, head_dim]``: views, not copies."""
        blocks = self.kv_shape.num_blocks
        return self._keys[layer][:blocks], self._values[layer][:blocks]

    def plan(self, batch: StepBatch) -> StepPlan:
        """Group the rows of the step into work items and index tensors, shared by all layers."""
        return StepPlan(batch, zero_slot=self._zero_slot, device=self.kv_shape.device)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Run copy-on-write copies for all layers, in order. Chains are allowed: a target may be a later source."""
        for pool in (*self._keys, *self._values):
            for copy in copies:
                pool[copy.target, : copy.num_slots] = pool[copy.source, : copy.num_slots]

    def write_kv(self, layer: int, key: torch.Tensor, value: torch.Tensor, plan: StepPlan) -> None:
        """Scatter ``key``/``value`` ``[rows, kv_heads, head_dim]`` to the step's slots."""
        for pool, rows in ((self._keys[layer], key), (self._values[layer], value)):
            flat = pool.view(-1, *pool.shape[2:])
            flat.index_copy_(0, plan.write_slots, rows.index_select(0, plan.write_rows).to(pool.dtype))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        plan: StepPlan,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend ``query`` ``[rows, heads, head_dim]`` to each row's own prefix; returns the same shape.

        ``query`` may hold more rows than the step: the rows past the step's come back zero.
        """
        _, heads, head_dim = query.shape
        kv_heads = self.kv_shape.kv_heads[layer]
        groups = heads // kv_heads
        fused = query.device.type == "cpu" and query.dtype == torch.float32 and softcap is None
        tile = row_tile(kv_heads, head_dim, torch.get_num_threads()) if fused else 16
        window = plan.window(sliding_window, groups=groups, row_tile=tile)
        partials = [
            self._partial(layer, query, batch, groups, scale=scale, softcap=softcap, fused=fused)
            for batch in window.batches
        ]
        merged = window.merge([o for o, _ in partials], [lse for _, lse in partials], sinks)
        if query.shape[0] == plan.num_rows:
            return merged.to(query.dtype)
        out = query.new_zeros(query.shape)
        out[: plan.num_rows] = merged
        return out

    def _partial(
        self,
        layer: int,
        query: torch.Tensor,
        batch: ItemBatch,
        groups: int,
        *,
        scale: float,
        softcap: float | None,
        fused: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs ``[items * tile rows, heads, head_dim]`` and log-sum-exps ``[items * tile rows, heads]``, fp32."""
        pool_k, pool_v = self._keys[layer], self._values[layer]
        kv_heads, dim = pool_k.shape[2:]
        items, rows, slots = batch.num_items, batch.num_rows, batch.num_slots
        # [items, kv_heads, slots, dim], a view of the gathered [items, slots, kv_heads, dim]
        key = pool_k.view(-1, kv_heads * dim).index_select(0, batch.slots).view(items, slots, kv_heads, dim)
        value = pool_v.view(-1, kv_heads * dim).index_select(0, batch.slots).view(items, slots, kv_heads, dim)
        key, value = key.transpose(1, 2), value.transpose(1, 2)
        # rows x GQA group share one tile: [items, kv_heads, rows * groups, dim]
        packed = query.index_select(0, batch.rows).view(items, rows, kv_heads, groups, dim)
        packed = packed.transpose(1, 2).reshape(items, kv_heads, rows * groups, dim)
        if fused:
            out, lse = fused_partial(packed, key, value, batch.mask, scale)
        else:
            out, lse = partial_attention(packed, key, value, batch.mask, scale, softcap)
        out = out.view(items, kv_heads, rows, groups, dim).transpose(1, 2)
        lse = lse.view(items, kv_heads, rows, groups).transpose(1, 2)
        return out.reshape(items * rows, kv_heads * groups, dim), lse.reshape(items * rows, kv_heads * groups)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose pages the system hands out as they are first written, on a CPU: ``torch.zeros`` writes them all,
    2 s and 4 GB of resident memory for the default pool of a small model."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)  # calloc: fresh pages are zero already
    start = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[start : start + num_bytes]).view(dtype).view(shape)


@lru_cache(maxsize=64)
def row_tile(kv_heads: int, head_dim: int, num_threads: int) -> int:
    """Smallest tile (rows x GQA group) from which on a row's bits do not depend on the rows beside it.

    BLAS libraries pick another kernel for very few rows (seen: below 3 at head_dim 64, below 16 at 128 and 256), so the
    smallest tile that agrees with a large one is found by trying; 16 where none does. About 1 ms per head shape.
    """
    del num_threads  # part of the cache's key only: products may be cut differently
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, kv_heads, 96, head_dim, generator=generator)
    key = torch.randn(1, 256, kv_heads, head_dim, generator=generator).transpose(1, 2)
    value = torch.randn(1, 256, kv_heads, head_dim, generator=generator).transpose(1, 2)
    whole, _ = fused_partial(query, key, value, None, head_dim**-0.5)
    for tile in (4, 8):
        starts = (0, tile, 96 - 3 * tile)
        sizes = (tile, 2 * tile, 3 * tile)
        if all(
            torch.equal(
                fused_partial(query[:, :, start : start + size], key, value, None, head_dim**-0.5)[0],
                whole[:, :, start : start + size],
            )
            for start in starts
            for size in sizes
        ):
            return tile
    return 16
