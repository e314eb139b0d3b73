"""Index tensors of one step for the torch backend: made once on the host, used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .layout import BLOCK_SIZE, CHUNK_SIZE, StepBatch
from .tree_plan import IntArray, TreePlan, WorkItem, plan_tree

SLOT_STEP = 64
"""Chunks are padded to a multiple of this many slots, so that branches of unequal length share one call."""
MAX_BATCH_ITEMS = 32
"""Items per call: the gathered K and V of a batch then stay within a core's caches (12 MB at SmolLM2's shape)."""
MERGE_SPAN = 16
"""Chunks merged in one sum; more are merged span by span, so the order never depends on the step's longest row."""


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """Work items of one padded size, run as one call."""

    num_items: int
    num_rows: int
    """Query rows per item, padding included."""
    num_slots: int
    """KV slots per item, padding included."""
    rows: torch.Tensor
    """[items * num_rows] query row; padding repeats the item's first row and its result is not used."""
    slots: torch.Tensor
    """[items * num_slots] physical slot; padding points at the zero slot."""
    mask: torch.Tensor | None
    """[items, 1, num_rows * groups, num_slots] of 0 and -inf; None where every row sees every slot."""


class WindowPlan:
    """The step's items under one sliding window, batched, and the order in which partials are merged."""

    __slots__ = ("_merge_index", "batches", "tree")

    def __init__(
        self, tree: TreePlan, window: int | None, *, groups: int, row_tile: int, zero_slot: int, device: torch.device
    ) -> None:
        self.tree = tree
        unit = row_tile // int(np.gcd(row_tile, groups))
        buckets: dict[tuple[int, int, bool], list[WorkItem]] = {}
        for item in tree.items:
            rows = _padded_rows(len(item.rows), unit)
            slots = -(-item.num_slots // SLOT_STEP) * SLOT_STEP
            buckets.setdefault((rows, slots, _is_masked(item, slots, tree.positions, window)), []).append(item)
        self.batches: list[ItemBatch] = []
        # Partials of a row, ascending by chunk: (row, chunk, index into the concatenated partials).
        placed: list[tuple[IntArray, int, int]] = []
        offset = 0
        for (rows, slots, masked), items in buckets.items():
            for start in range(0, len(items), MAX_BATCH_ITEMS):
                part = items[start : start + MAX_BATCH_ITEMS]
                placed.extend((item.rows, item.chunk, offset + i * rows) for i, item in enumerate(part))
                offset += len(part) * rows
                self.batches.append(
                    _item_batch(
                        part, rows, slots, tree.positions, window if masked else None, masked, groups, zero_slot, device
                    )
                )
        placed.sort(key=lambda entry: entry[1])
        self._merge_index = _merge_index(placed, len(tree.positions), offset, device)

    def merge(
        self, outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """One output ``[rows, heads, head_dim]`` fp32 from the batches' partials, in chunk order."""
        out = outs[0] if len(outs) == 1 else torch.cat(list(outs))
        lse = lses[0] if len(lses) == 1 else torch.cat(list(lses))
        num_rows, width = self._merge_index.shape
        if width == 1 and sinks is None:
            return out.index_select(0, self._merge_index.view(-1))
        # One partial more, of weight zero, stands for "no such chunk".
        lse = torch.cat([lse, lse.new_full((1, lse.shape[1]), -torch.inf)])
        picked = lse.index_select(0, self._merge_index.view(-1)).view(num_rows, width, -1)
        top = picked.amax(1, keepdim=True)  # [rows, 1, heads]
        if sinks is not None:
            top = torch.maximum(top, sinks.float())
        top = top.masked_fill(top == -torch.inf, 0.0)
        weights = torch.exp(picked - top)
        total = self._ordered_sum(weights)
        if sinks is not None:
            total = total + torch.exp(sinks.float() - top.squeeze(1))
        weights = weights / total.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)
        index = self._merge_index.clamp_max(out.shape[0] - 1).view(-1)
        parts = out.index_select(0, index).view(num_rows, width, *out.shape[1:])
        return self._ordered_sum(parts.mul_(weights.unsqueeze(-1)))

    def _ordered_sum(self, parts: torch.Tensor) -> torch.Tensor:
        """Sum over dim 1 in an order that does not depend on its length: spans of 16 chunks, then the spans in turn."""
        total = parts[:, :MERGE_SPAN].sum(1)
        for start in range(MERGE_SPAN, parts.shape[1], MERGE_SPAN):
            total = total + parts[:, start : start + MERGE_SPAN].sum(1)
        return total


class StepPlan:
    """What ``TorchBackend.plan`` returns: the step's writes, and its reads under each sliding window in use."""

    __slots__ = ("_batch", "_device", "_trees", "_windows", "_zero_slot", "num_rows", "write_rows", "write_slots")

    def __init__(self, batch: StepBatch, *, zero_slot: int, device: torch.device) -> None:
        self._batch = batch
        self._zero_slot = zero_slot
        self._device = device
        self._trees: dict[int | None, TreePlan] = {}
        self._windows: dict[tuple[int | None, int, int], WindowPlan] = {}
        self.num_rows = batch.num_rows
        self.write_rows = torch.as_tensor(batch.write_rows, dtype=torch.int64, device=device)
        self.write_slots = torch.as_tensor(batch.write_slots, dtype=torch.int64, device=device)

    def tree(self, sliding_window: int | None = None) -> TreePlan:
        """The work items under ``sliding_window``."""
        if sliding_window not in self._trees:
            self._trees[sliding_window] = plan_tree(self._batch, sliding_window)
        return self._trees[sliding_window]

    @property
    def kv_tokens_read(self) -> int:
        """KV slots that a layer with full attention reads; shared slots count once."""
        return self.tree().kv_tokens_read

    def window(self, sliding_window: int | None, *, groups: int, row_tile: int) -> WindowPlan:
        """Batches of the layers with ``sliding_window`` and ``groups`` query heads per KV head."""
        key = (sliding_window, groups, row_tile)
        if key not in self._windows:
            self._windows[key] = WindowPlan(
                self.tree(sliding_window),
                sliding_window,
                groups=groups,
                row_tile=row_tile,
                zero_slot=self._zero_slot,
                device=self._device,
            )
        return self._windows[key]


def _padded_rows(num_rows: int, unit: int) -> int:
    """Rows of an item's tile: unit x 1, 2, 4 ... up to 64 rows, then multiples of 64, to keep the sizes few."""
    size = unit
    while size < min(num_rows, 64):
        size *= 2
    return size if num_rows <= size else -(-num_rows // size) * size


def _is_masked(item: WorkItem, slots: int, positions: IntArray, window: int | None) -> bool:
    """Whether some row of the item does not see some slot of the padded chunk."""
    begin = item.chunk * CHUNK_SIZE
    own = positions[item.rows]
    if slots != item.num_slots or int(own.min()) < begin + item.num_slots - 1:
        return True
    return window is not None and int(own.max()) - window >= begin


def _item_batch(
    items: Sequence[WorkItem],
    num_rows: int,
    num_slots: int,
    positions: IntArray,
    window: int | None,
    masked: bool,
    groups: int,
    zero_slot: int,
    device: torch.device,
) -> ItemBatch:
    rows = np.empty((len(items), num_rows), dtype=np.int64)
    slots = np.full((len(items), num_slots), zero_slot, dtype=np.int64)
    offsets = np.arange(BLOCK_SIZE, dtype=np.int64)
    for i, item in enumerate(items):
        rows[i, : len(item.rows)] = item.rows
        rows[i, len(item.rows) :] = item.rows[0]
        physical = (np.asarray(item.blocks, dtype=np.int64)[:, None] * BLOCK_SIZE + offsets).reshape(-1)
        slots[i, : item.num_slots] = physical[: item.num_slots]
    mask = None
    if masked:
        # [items, rows, slots]: padding slots lie past every row's position, so causality hides them as well
        chunks = np.asarray([item.chunk for item in items], dtype=np.int64)
        kv_positions = chunks[:, None] * CHUNK_SIZE + np.arange(num_slots, dtype=np.int64)
        own = positions[rows][:, :, None]
        seen = kv_positions[:, None, :] <= own
        if window is not None:
            seen &= kv_positions[:, None, :] > own - window
        bias = torch.zeros(seen.shape).masked_fill_(torch.from_numpy(~seen), -torch.inf)
        bias = bias.repeat_interleave(groups, dim=1) if groups > 1 else bias
        mask = bias.unsqueeze(1).to(device)
    return ItemBatch(
        num_items=len(items),
        num_rows=num_rows,
        num_slots=num_slots,
        rows=torch.from_numpy(rows.reshape(-1)).to(device),
        slots=torch.from_numpy(slots.reshape(-1)).to(device),
        mask=mask,
    )


def _merge_index(
    placed: Sequence[tuple[IntArray, int, int]], num_rows: int, num_partials: int, device: torch.device
) -> torch.Tensor:
    """[rows, chunks of the row with most] index of each partial, ascending by chunk; ``num_partials`` = none."""
    counts = np.zeros(num_rows, dtype=np.int64)
    for rows, _, _ in placed:
        counts[rows] += 1
    index = np.full((num_rows, int(counts.max(initial=0))), num_partials, dtype=np.int64)
    counts[:] = 0
    for rows, _, start in placed:
        index[rows, counts[rows]] = start + np.arange(len(rows), dtype=np.int64)
        counts[rows] += 1
    return torch.from_numpy(index).to(device)
