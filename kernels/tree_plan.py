"""Host planning of one step's attention: which chunk of KV is read once for which query rows.

KV is cut at absolute positions (multiples of ``CHUNK_SIZE``), never at the nodes of a tree: a row's reduction then has
the same shape whether its prefix is shared or not, which is what makes a forked branch bit-identical to the same branch
alone. Rows of different sequences whose tables name the same physical blocks for a chunk form one work item
(FastTree, MLSys'25, has the same item layout with node-aligned cuts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .layout import BLOCK_SIZE, CHUNK_SIZE, StepBatch

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One chunk of KV and every query row that attends to it."""

    chunk: int
    """Absolute chunk index: the item covers positions ``chunk * 256`` onwards."""
    blocks: tuple[int, ...]
    """Physical blocks of the chunk, in order, up to the block of the last slot read."""
    num_slots: int
    """Slots read: positions ``chunk * 256 .. chunk * 256 + num_slots - 1``. All of them are written."""
    rows: IntArray
    """[rows] query rows, ascending by sequence."""


@dataclass(frozen=True, slots=True)
class TreePlan:
    """Work items of one step, ascending by chunk, so that a row's partials are merged in the order of the list."""

    items: tuple[WorkItem, ...]
    positions: IntArray
    """[rows] absolute position of each row."""

    @property
    def kv_tokens_read(self) -> int:
        """KV slots that one layer reads in this step; a slot shared by the rows of an item counts once."""
        return sum(item.num_slots for item in self.items)


@dataclass(slots=True)
class _Group:
    num_slots: int
    rows: list[IntArray]


def plan_tree(batch: StepBatch, sliding_window: int | None = None) -> TreePlan:
    """Group the rows of ``batch`` into work items.

    With ``sliding_window`` a row at position p reads positions p - window + 1 .. p, and is left out of chunks that lie
    wholly before that. Raises ValueError where a table does not cover the positions of its rows.
    """
    positions = np.asarray(batch.positions, dtype=np.int64)
    groups: dict[tuple[int, tuple[int, ...]], _Group] = {}
    for table_index, start, stop in _sequences(batch.row_tables):
        _add_sequence(groups, batch.tables[table_index], positions, start, stop, sliding_window)
    items = [
        WorkItem(chunk, blocks, group.num_slots, group.rows[0] if len(group.rows) == 1 else np.concatenate(group.rows))
        for (chunk, blocks), group in groups.items()
    ]
    items.sort(key=lambda item: item.chunk)
    return TreePlan(tuple(items), positions)


def _sequences(row_tables: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of equal table index, as (table, first row, end row)."""
    runs: list[tuple[int, int, int]] = []
    start = 0
    for row in range(1, len(row_tables) + 1):
        if row == len(row_tables) or row_tables[row] != row_tables[start]:
            runs.append((row_tables[start], start, row))
            start = row
    return runs


def _add_sequence(
    groups: dict[tuple[int, tuple[int, ...]], _Group],
    table: Sequence[int],
    positions: IntArray,
    start: int,
    stop: int,
    sliding_window: int | None,
) -> None:
    own = positions[start:stop]
    last, first = int(own.max()), 0
    if last // BLOCK_SIZE >= len(table):
        raise ValueError(f"a table of {len(table)} blocks does not cover position {last}")
    if sliding_window is not None:
        first = max(0, int(own.min()) - sliding_window + 1) // CHUNK_SIZE
    all_rows = np.arange(start, stop, dtype=np.int64)
    for chunk in range(first, last // CHUNK_SIZE + 1):
        begin, end = chunk * CHUNK_SIZE, (chunk + 1) * CHUNK_SIZE
        attends = own >= begin
        if sliding_window is not None:
            attends &= own - sliding_window < end - 1
        rows = all_rows if bool(attends.all()) else all_rows[attends]
        if not rows.size:
            continue
        num_slots = min(int(positions[rows].max()) + 1, end) - begin
        first_block = begin // BLOCK_SIZE
        blocks = tuple(table[first_block : first_block + -(-num_slots // BLOCK_SIZE)])
        group = groups.setdefault((chunk, blocks), _Group(num_slots, []))
        group.num_slots = max(group.num_slots, num_slots)
        group.rows.append(rows)
