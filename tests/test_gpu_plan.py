"""Host planning for GPU kernels: the torch backend's groups, step after step, and the bytes they read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from furcate.kernels.gpu_plan import GpuPlan, GpuPlanner, PlanShape
from furcate.kernels.layout import BLOCK_SIZE, CHUNK_SIZE, StepBatch
from furcate.kernels.tree_plan import plan_tree

ALL_SHARED = PlanShape(small_rows=4, large_rows=10**6, inline_rows=10**6, break_even=0)


def batch_of(tables: list[list[int]], positions: list[list[int]]) -> StepBatch:
    """Rows of each table at its positions."""
    rows = [(index, position) for index, own in enumerate(positions) for position in own]
    return StepBatch(
        token_ids=[0] * len(rows),
        positions=[position for _, position in rows],
        row_tables=[index for index, _ in rows],
        tables=tables,
        write_rows=[],
        write_slots=[],
        logit_rows=[],
    )


def items_of(plan: GpuPlan) -> set[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """(chunk start, slots, blocks, rows) of every item."""
    found = set()
    for items in (plan.small, plan.large):
        for (start, slots, block, row), after in zip(items[:-1].tolist(), items[1:].tolist(), strict=True):
            blocks = plan.blocks[block : block + -(-slots // BLOCK_SIZE)]
            found.add((start, slots, tuple(blocks.tolist()), tuple(plan.item_rows[row : after[3]].tolist())))
    return found


def fork_tables(num_branches: int, prefix: int, own: int) -> list[list[int]]:
    shared, total = prefix // BLOCK_SIZE, -(-(prefix + own) // BLOCK_SIZE)
    first = [shared + branch * (total - shared) for branch in range(num_branches)]
    return [[*range(shared), *range(start, start + total - shared)] for start in first]


@st.composite
def trees(draw: st.DrawFn) -> StepBatch:
    fresh = iter(range(10**6))
    tables = [[next(fresh) for _ in range(draw(st.integers(1, 40)))]]
    for _ in range(draw(st.integers(0, 5))):
        parent = draw(st.sampled_from(tables))
        kept = draw(st.integers(0, len(parent)))
        tables.append(parent[:kept] + [next(fresh) for _ in range(draw(st.integers(0 if kept else 1, 20)))])
    positions = []
    for table in tables:
        last = draw(st.integers(0, len(table) * BLOCK_SIZE - 1))
        positions.append(list(range(max(0, last - draw(st.integers(0, 3))), last + 1)))
    return batch_of(tables, positions)


@settings(max_examples=150, deadline=None)
@given(batch=trees(), window=st.sampled_from([None, 1, 100, 300]))
def test_items_are_those_of_the_torch_backends_plan(batch: StepBatch, window: int | None) -> None:
    shape = PlanShape(4, 10**6, 10**6, window, break_even=0)
    plan = GpuPlanner(shape).plan(batch)
    want = plan_tree(batch, window)
    assert items_of(plan) == {
        (item.chunk * CHUNK_SIZE, item.num_slots, item.blocks, tuple(item.rows.tolist())) for item in want.items
    }
    assert plan.kv_tokens_read == plan.kv_tokens_loaded == want.kv_tokens_read


@settings(max_examples=100, deadline=None)
@given(batch=trees())
def test_each_row_merges_one_partial_per_chunk_in_order(batch: StepBatch) -> None:
    plan = GpuPlanner(PlanShape(2, 3, 10**6)).plan(batch)
    chunk_of = np.full(plan.num_partials, -1)
    for items in (plan.small, plan.large):
        for (start, _, _, row), after in zip(items[:-1].tolist(), items[1:].tolist(), strict=True):
            chunk_of[row : after[3]] = start // CHUNK_SIZE
    assert plan.merge_rows.tolist() == list(range(batch.num_rows))
    for index, row in enumerate(plan.merge_rows):
        entries = plan.merge_entries[plan.merge_starts[index] : plan.merge_starts[index + 1]]
        assert set(plan.item_rows[entries].tolist()) == {int(row)}
        assert chunk_of[entries].tolist() == list(range(batch.positions[row] // CHUNK_SIZE + 1))


@settings(max_examples=40, deadline=None)
@given(
    prefix=st.integers(0, 40).map(lambda blocks: blocks * BLOCK_SIZE),
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=6),
    window=st.sampled_from([None, 200]),
)
def test_a_plan_that_is_carried_over_is_the_one_made_anew(prefix: int, lengths: list[int], window: int | None) -> None:
    shape = PlanShape(4, 16, 10**6, window, break_even=0)
    planner = GpuPlanner(shape)
    tables = fork_tables(len(lengths), prefix, 400)
    for step in range(40):
        positions = [[prefix + length - 1 + step] for length in lengths]
        used = [table[: own[0] // BLOCK_SIZE + 1] for table, own in zip(tables, positions, strict=True)]
        batch = batch_of(used, positions)
        kept, anew = planner.plan(batch), GpuPlanner(shape).plan(batch)
        assert items_of(kept) == items_of(anew)
        assert (kept.kv_tokens_read, kept.kv_tokens_loaded) == (anew.kv_tokens_read, anew.kv_tokens_loaded)


def test_a_changed_table_is_not_taken_for_a_grown_one() -> None:
    planner = GpuPlanner(ALL_SHARED)
    planner.plan(batch_of([list(range(20))], [[300]]))
    plan = planner.plan(batch_of([[*range(3), 99, *range(4, 20)]], [[301]]))
    assert (0, 256, (*range(3), 99, *range(4, 16)), (0,)) in items_of(plan)


@pytest.mark.parametrize(("branches", "prefix", "own"), [(8, 4096, 100), (64, 2000, 30), (5, 300, 600)])
def test_a_fork_reads_its_prefix_once_within_one_chunk_per_node(branches: int, prefix: int, own: int) -> None:
    tables = fork_tables(branches, prefix // BLOCK_SIZE * BLOCK_SIZE, own + prefix % BLOCK_SIZE)
    plan = GpuPlanner(ALL_SHARED).plan(batch_of(tables, [[prefix + own - 1]] * branches))
    nodes = branches + 1
    assert prefix + branches * own <= plan.kv_tokens_read <= prefix + branches * own + nodes * CHUNK_SIZE
    assert plan.kv_tokens_read < branches * (prefix + own)


def test_an_item_of_more_rows_than_a_tile_is_loaded_once_per_tile() -> None:
    tables = fork_tables(40, 256, 16)
    plan = GpuPlanner(PlanShape(4, 16, 10**6)).plan(batch_of(tables, [[256]] * 40))
    assert plan.num_large == 3
    assert plan.kv_tokens_read == 256 + 40
    assert plan.kv_tokens_loaded == 3 * 256 + 40


def test_what_is_shared_below_the_break_even_is_read_apart() -> None:
    tables = [list(range(10))] * 2
    batch = batch_of(tables, [[159], [155]])
    assert GpuPlanner(PlanShape(4, 16, 10**6, break_even=192)).plan(batch).num_small == 2
    assert GpuPlanner(PlanShape(4, 16, 10**6, break_even=150)).plan(batch).num_small == 1


def test_a_long_run_of_rows_walks_its_chunks_and_needs_no_partials() -> None:
    table = list(range(40))
    plan = GpuPlanner(PlanShape(4, 16, 32)).plan(batch_of([table, [90]], [list(range(600)), [3]]))
    assert plan.tiles[:, :2].tolist() == [[start, min(16, 600 - start)] for start in range(0, 600, 16)]
    assert plan.merge_rows.tolist() == [600]
    assert plan.num_partials == 1
    assert plan.blocks[plan.tiles[0, 2] :][:38].tolist() == table[:38]
    assert plan.kv_tokens_read == 600 + 4


def test_a_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="does not cover position 16"):
        GpuPlanner(ALL_SHARED).plan(batch_of([[3]], [[16]]))
