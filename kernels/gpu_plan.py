"""Host planning for GPU kernels: one step's work items, prefill tiles and merge lists as packed int32 buffers.

The grouping is that of ``tree_plan``: KV is cut at absolute positions, and rows of different sequences whose tables
name the same physical blocks for a chunk form one item. Here it is done with one dictionary look-up per (sequence,
chunk), is carried over from step to step while branches only grow, and comes out as flat arrays that kernels index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .layout import BLOCK_SIZE, CHUNK_SIZE, StepBatch

Int32Array = npt.NDArray[np.int32]
CHUNK_BLOCKS = CHUNK_SIZE // BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What a layer's shape asks of its plan. Layers that agree in it share a plan."""

    small_rows: int
    """Query rows that fit the small tile; items of more rows go to the large tile."""
    large_rows: int
    """Query rows that fit the large tile; an item of more rows becomes several. Equal to ``small_rows`` where one tile
    serves every item."""
    inline_rows: int
    """A sequence with at least this many rows walks its chunks itself and writes no partials."""
    window: int | None = None
    """Sliding window in tokens."""
    break_even: int = 192
    """Slots from which on a chunk is read once for several sequences. Cascades of two launches break even near 150-250
    shared tokens (TensorRT-LLM #14396: 0.52x at 128, 2.2x at 256); ours adds no launch, and its own point has not been
    measured."""


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """One step's plan for one ``PlanShape``. Offsets are in int32 elements and multiples of 4."""

    small: Int32Array
    """[small items + 1, 4] chunk start, slots, offset into ``blocks``, offset into ``item_rows``; a closing entry."""
    large: Int32Array
    """[large items + 1, 4] the same for the large tile."""
    tiles: Int32Array
    """[prefill tiles, 4] first row, rows, offset of the block table in ``blocks``, first chunk."""
    blocks: Int32Array
    """Physical blocks of every item and of every prefilling sequence."""
    item_rows: Int32Array
    """[entries] query row of each partial."""
    merge_rows: Int32Array
    """[merged rows] rows whose partials are merged: all but those of prefill tiles."""
    merge_starts: Int32Array
    """[merged rows + 1]"""
    merge_entries: Int32Array
    """[entries] partials of each merged row, ascending by chunk."""
    kv_tokens_read: int
    """KV slots that one layer reads from memory: each item once, and each prefilling sequence once."""
    kv_tokens_loaded: int
    """KV slots that programs load: an item or a sequence of several tiles counts once per tile. What exceeds
    ``kv_tokens_read`` is asked for by programs that run side by side, and is meant to come from the cache."""

    @property
    def num_small(self) -> int:
        return len(self.small) - 1

    @property
    def num_large(self) -> int:
        return len(self.large) - 1

    @property
    def num_partials(self) -> int:
        return len(self.item_rows)


@dataclass(slots=True)
class _Group:
    """Sequences whose tables agree in one chunk."""

    chunk: int
    table: Sequence[int]
    num_slots: int
    rows: list[int]
    runs: list[tuple[Sequence[int], int, int]]
    """(table, first index into ``rows``, slots) of each sequence."""


_Groups = dict[tuple[int, int], list[_Group]]
"""(chunk, last block) to the groups that end in it."""
_Owner = tuple[Sequence[int], list[_Group]]
"""A table and the groups of its full chunks, from the first on."""


@dataclass(slots=True)
class _Growing:
    """What the next step needs to see that its branches only grew, and which item each one's last chunk is."""

    tables: list[list[int]]
    """[sequences] blocks before the last chunk."""
    last_chunks: list[int]
    first_chunks: list[int]
    items: list[tuple[bool, int]]
    """[sequences] (in the large list, index) of the item of the last chunk."""
    plan: GpuPlan


@dataclass(slots=True)
class GpuPlanner:
    """Plans steps for one shape. Not for two threads at once."""

    shape: PlanShape
    _last: _Growing | None = field(default=None)

    def plan(self, batch: StepBatch) -> GpuPlan:
        """The plan of ``batch``; its arrays may be carried over, changed in place, by the next call.

        Raises ValueError where a table does not cover the positions of its rows.
        """
        if self._last is not None:
            grown = _grow(self._last, batch, self.shape)
            if grown is not None:
                return grown
        plan, self._last = _plan_anew(batch, self.shape)
        return plan


def _plan_anew(batch: StepBatch, shape: PlanShape) -> tuple[GpuPlan, _Growing | None]:
    groups: _Groups = {}
    owners: dict[tuple[int, int], _Owner] = {}
    tiles: list[tuple[int, int, int, int]] = []
    blocks: list[int] = []
    merge_rows: list[int] = []
    read = loaded = 0
    row_tables, positions = batch.row_tables, batch.positions
    num_rows = batch.num_rows
    start = 0
    while start < num_rows:
        stop = start + 1
        while stop < num_rows and row_tables[stop] == row_tables[start]:
            stop += 1
        table = batch.tables[row_tables[start]]
        last = max(positions[start:stop])
        if last // BLOCK_SIZE >= len(table):
            raise ValueError(f"a table of {len(table)} blocks does not cover position {last}")
        if stop - start >= shape.inline_rows:
            offset = _append_blocks(blocks, table[: last // BLOCK_SIZE + 1])
            first = start
            read += last + 1 - _first_chunk(min(positions[start:stop]), shape.window) * CHUNK_SIZE
            while first < stop:
                count = min(shape.large_rows, stop - first)
                own = positions[first : first + count]
                chunk = _first_chunk(min(own), shape.window)
                tiles.append((first, count, offset, chunk))
                loaded += max(own) + 1 - chunk * CHUNK_SIZE
                first += count
        else:
            merge_rows.extend(range(start, stop))
            if stop - start == 1 and shape.window is None:
                _add_decode_row(groups, owners, table, last, start)
            else:
                _add_sequence(groups, table, positions, start, stop, shape.window)
        start = stop
    ordered = [part for found in groups.values() for group in found for part in _parts(group, shape)]
    ordered.sort(key=lambda part: part.chunk)
    return _pack(batch, shape, ordered, tiles, blocks, merge_rows, read, loaded)


def _first_chunk(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1) // CHUNK_SIZE


def _append_blocks(blocks: list[int], own: Sequence[int]) -> int:
    offset = len(blocks)
    blocks.extend(own)
    blocks.extend([0] * (-len(blocks) % 4))
    return offset


def _add_sequence(
    groups: _Groups,
    table: Sequence[int],
    positions: Sequence[int],
    start: int,
    stop: int,
    window: int | None,
) -> None:
    own = positions[start:stop]
    last, lowest = max(own), min(own)
    for chunk in range(_first_chunk(lowest, window), last // CHUNK_SIZE + 1):
        begin = chunk * CHUNK_SIZE
        end = begin + CHUNK_SIZE
        if stop - start == 1:
            rows = [start]
        else:
            rows = [
                row
                for row in range(start, stop)
                if positions[row] >= begin and (window is None or positions[row] - window < end - 1)
            ]
            if not rows:
                continue
        num_slots = min(last + 1, end) - begin if rows[-1] == stop - 1 else min(positions[rows[-1]] + 1, end) - begin
        if len(rows) > 1:
            num_slots = min(max(positions[row] for row in rows) + 1, end) - begin
        _join(groups, chunk, table, rows, num_slots)


def _add_decode_row(
    groups: _Groups, owners: dict[tuple[int, int], _Owner], table: Sequence[int], position: int, row: int
) -> None:
    """A sequence of one row without a window: the chunks that it shares with an earlier one are found in one look-up
    and checked in one comparison, then joined without looking at their blocks again."""
    num_full = (position + 1) // CHUNK_SIZE
    chain: list[_Group] = []
    for chunk in range(num_full - 1, -1, -1):
        end_block = (chunk + 1) * CHUNK_BLOCKS
        owner = owners.get((chunk, table[end_block - 1]))
        if owner is not None and owner[0][:end_block] == table[:end_block]:
            chain = owner[1][: chunk + 1]
            for group in chain:
                group.runs.append((table, len(group.rows), CHUNK_SIZE))
                group.rows.append(row)
            break
    for chunk in range(len(chain), num_full):
        chain.append(_join(groups, chunk, table, [row], CHUNK_SIZE))
        owners[chunk, table[(chunk + 1) * CHUNK_BLOCKS - 1]] = (table, chain)
    if (position + 1) % CHUNK_SIZE:
        _join(groups, num_full, table, [row], (position + 1) % CHUNK_SIZE)


def _join(groups: _Groups, chunk: int, table: Sequence[int], rows: list[int], num_slots: int) -> _Group:
    """Add ``rows`` to the group whose blocks are those of ``table``, or start one."""
    # Blocks are never reordered inside a path, so the last one nearly always tells paths apart; it is checked.
    first_block = chunk * CHUNK_BLOCKS
    end_block = first_block + -(-num_slots // BLOCK_SIZE)
    key = chunk, table[end_block - 1]
    found = groups.get(key)
    if found is None:
        groups[key] = [_Group(chunk, table, num_slots, rows, [(table, 0, num_slots)])]
        return groups[key][0]
    for group in found:
        if group.table[first_block:end_block] == table[first_block:end_block]:
            group.runs.append((table, len(group.rows), num_slots))
            group.rows.extend(rows)
            group.num_slots = max(group.num_slots, num_slots)
            return group
    found.append(_Group(chunk, table, num_slots, rows, [(table, 0, num_slots)]))
    return found[-1]


def _parts(group: _Group, shape: PlanShape) -> list[_Group]:
    """The group itself, or its sequences apart where they share too little to be worth one item."""
    if len(group.runs) == 1 or group.num_slots >= shape.break_even:
        return [group]
    ends = [start for _, start, _ in group.runs[1:]] + [len(group.rows)]
    return [
        _Group(group.chunk, table, slots, group.rows[start:end], [(table, 0, slots)])
        for (table, start, slots), end in zip(group.runs, ends, strict=True)
    ]


def _pack(
    batch: StepBatch,
    shape: PlanShape,
    ordered: list[_Group],
    tiles: list[tuple[int, int, int, int]],
    blocks: list[int],
    merge_rows: list[int],
    read: int,
    loaded: int,
) -> tuple[GpuPlan, _Growing | None]:
    small: list[tuple[int, int, int, int]] = []
    large: list[tuple[int, int, int, int]] = []
    small_rows: list[int] = []
    large_rows: list[int] = []
    small_chunks: list[int] = []
    large_chunks: list[int] = []
    last_item: dict[int, tuple[bool, int]] = {}
    for group in ordered:
        chunk, count = group.chunk, len(group.rows)
        first_block = chunk * CHUNK_BLOCKS
        offset = len(blocks)
        own = group.table[first_block : first_block + -(-group.num_slots // BLOCK_SIZE)]
        blocks.extend(own)
        if len(own) < CHUNK_BLOCKS:  # room for the blocks that the chunk will have when it is full
            blocks.extend([0] * (CHUNK_BLOCKS - len(own)))
        read += group.num_slots
        is_large = count > shape.small_rows
        items, rows, chunks = (large, large_rows, large_chunks) if is_large else (small, small_rows, small_chunks)
        if count == 1:
            last_item[group.rows[0]] = (is_large, len(items))
        for start in range(0, count, shape.large_rows):
            items.append((chunk * CHUNK_SIZE, group.num_slots, offset, len(rows) + start))
            loaded += group.num_slots
        rows.extend(group.rows)
        chunks.extend([chunk] * count)
    small.append((0, 0, 0, len(small_rows)))
    shift = len(small_rows)
    large.append((0, 0, 0, len(large_rows)))
    large_array = np.array(large, dtype=np.int32)
    large_array[:, 3] += shift
    item_rows = np.array(small_rows + large_rows, dtype=np.int32)
    chunks_of = np.array(small_chunks + large_chunks, dtype=np.int32)
    counts = np.bincount(item_rows, minlength=batch.num_rows)[np.array(merge_rows, dtype=np.int64)]
    plan = GpuPlan(
        small=np.array(small, dtype=np.int32),
        large=large_array,
        tiles=np.array(tiles, dtype=np.int32).reshape(-1, 4),
        blocks=np.array(blocks, dtype=np.int32),
        item_rows=item_rows,
        merge_rows=np.array(merge_rows, dtype=np.int32),
        merge_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        merge_entries=np.lexsort((chunks_of, item_rows)).astype(np.int32),
        kv_tokens_read=read,
        kv_tokens_loaded=loaded,
    )
    growing = None
    if len(last_item) >= batch.num_rows and not tiles and list(batch.row_tables) == list(range(batch.num_rows)):
        growing = _growing(batch, shape, last_item, plan)
    return plan, growing


def _growing(
    batch: StepBatch, shape: PlanShape, last_item: dict[int, tuple[bool, int]], plan: GpuPlan
) -> _Growing | None:
    """What lets the next step carry ``plan`` over; None unless each row's last chunk is an item of its own."""
    lasts = [position // CHUNK_SIZE for position in batch.positions]
    items: list[tuple[bool, int]] = []
    for row, chunk in enumerate(lasts):
        is_large, index = last_item.get(row, (False, -1))
        if index < 0 or (plan.large if is_large else plan.small)[index, 0] != chunk * CHUNK_SIZE:
            return None
        items.append((is_large, index))
    tables = [list(table[: chunk * CHUNK_BLOCKS]) for table, chunk in zip(batch.tables, lasts, strict=True)]
    firsts = [_first_chunk(position, shape.window) for position in batch.positions]
    return _Growing(tables, lasts, firsts, items, plan)


def _grow(last: _Growing, batch: StepBatch, shape: PlanShape) -> GpuPlan | None:
    """The last plan with its last chunks brought up to date, or None where more than their length has changed."""
    count = len(last.tables)
    if batch.num_rows != count or len(batch.tables) != count or list(batch.row_tables) != list(range(count)):
        return None
    updates: list[tuple[int, Sequence[int]]] = []
    for row in range(count):
        position, table, known = batch.positions[row], batch.tables[row], last.tables[row]
        if position // CHUNK_SIZE != last.last_chunks[row] or position // BLOCK_SIZE >= len(table):
            return None
        if _first_chunk(position, shape.window) != last.first_chunks[row]:
            return None
        own = table[len(known) : position // BLOCK_SIZE + 1]
        if table[: len(known)] != known:
            return None
        updates.append((position + 1 - last.last_chunks[row] * CHUNK_SIZE, own))
    if len({own[-1] for _, own in updates}) != count:
        return None  # two of them have come to share their last chunk
    plan = last.plan
    changed = 0
    for (slots, own), (is_large, index) in zip(updates, last.items, strict=True):
        item = (plan.large if is_large else plan.small)[index]
        changed += slots - int(item[1])
        item[1] = slots
        plan.blocks[item[2] : item[2] + len(own)] = own
    if not changed:
        return plan
    last.plan = GpuPlan(
        plan.small,
        plan.large,
        plan.tiles,
        plan.blocks,
        plan.item_rows,
        plan.merge_rows,
        plan.merge_starts,
        plan.merge_entries,
        plan.kv_tokens_read + changed,
        plan.kv_tokens_loaded + changed,
    )
    return last.plan
