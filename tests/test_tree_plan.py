"""Planning of tree attention: what is read once, what is left out, what is grouped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from furcate.kernels.layout import BLOCK_SIZE, CHUNK_SIZE, StepBatch
from furcate.kernels.tree_plan import plan_tree


def step(sequences: list[tuple[list[int], list[int]]]) -> StepBatch:
    """A batch of (block table, positions of its rows) pairs; writes and logits play no part in planning."""
    positions = [p for _, own in sequences for p in own]
    return StepBatch(
        token_ids=[0] * len(positions),
        positions=positions,
        row_tables=[i for i, (_, own) in enumerate(sequences) for _ in own],
        tables=[table for table, _ in sequences],
        write_rows=[],
        write_slots=[],
        logit_rows=[],
    )


def forked(prefix: int, branches: int, own: int) -> StepBatch:
    """``branches`` sequences over ``prefix`` shared tokens, each about to decode its ``own``-th token."""
    shared = prefix // BLOCK_SIZE
    private = -(-(prefix + own) // BLOCK_SIZE) - shared
    tables = [[*range(shared), *range(1000 * (b + 1), 1000 * (b + 1) + private)] for b in range(branches)]
    return step([(table, [prefix + own - 1]) for table in tables])


@pytest.mark.parametrize("branches", [1, 2, 7])
def test_a_fork_at_a_chunk_boundary_reads_the_prefix_once(branches: int) -> None:
    assert plan_tree(forked(2 * CHUNK_SIZE, branches, own=5)).kv_tokens_read == 2 * CHUNK_SIZE + branches * 5


def test_a_fork_inside_a_chunk_reads_only_that_chunk_per_branch() -> None:
    prefix, branches, own = 600, 4, 5
    inside = prefix % CHUNK_SIZE
    assert plan_tree(forked(prefix, branches, own)).kv_tokens_read == prefix - inside + branches * (inside + own)


def test_rows_of_branches_that_name_the_same_blocks_form_one_item() -> None:
    items = plan_tree(forked(CHUNK_SIZE, 3, own=1)).items
    assert [(item.chunk, list(item.rows)) for item in items] == [(0, [0, 1, 2]), (1, [0]), (1, [1]), (1, [2])]


def test_equal_blocks_at_other_positions_are_not_shared() -> None:
    table = list(range(32))
    turned = table[16:] + table[:16]
    assert plan_tree(step([(table, [511]), (turned, [511])])).kv_tokens_read == 4 * CHUNK_SIZE


def test_prefill_rows_skip_the_chunks_past_them() -> None:
    plan = plan_tree(step([(list(range(48)), list(range(768)))]))
    assert [(item.chunk, len(item.rows)) for item in plan.items] == [(0, 768), (1, 512), (2, 256)]
    assert plan.kv_tokens_read == 768


def test_a_sliding_window_leaves_out_chunks_that_lie_before_it() -> None:
    plan = plan_tree(step([(list(range(64)), [1000])]), sliding_window=300)
    # positions 701..1000 are seen: chunk 2 ends at 767, chunk 1 at 511
    assert [item.chunk for item in plan.items] == [2, 3]


@pytest.mark.parametrize(("window", "chunks"), [(1001 - 511, [1, 2, 3]), (1001 - 512, [2, 3])])
def test_the_window_edge_is_exact(window: int, chunks: list[int]) -> None:
    plan = plan_tree(step([(list(range(64)), [1000])]), sliding_window=window)
    assert [item.chunk for item in plan.items] == chunks


def test_a_table_that_does_not_cover_its_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="does not cover position 32"):
        plan_tree(step([([0, 1], [32])]))


@st.composite
def batches(draw: st.DrawFn) -> StepBatch:
    sequences = []
    for _ in range(draw(st.integers(1, 4))):
        end = draw(st.integers(1, 900))
        positions = sorted(draw(st.sets(st.integers(0, end - 1), min_size=1, max_size=8)))
        shared = draw(st.integers(0, 4)) * 16
        table = [i if i < shared else 100 + 100 * len(sequences) + i for i in range(-(-end // BLOCK_SIZE))]
        sequences.append((table, positions))
    return step(sequences)


@settings(max_examples=60, deadline=None)
@given(batches(), st.none() | st.integers(1, 600))
def test_every_row_reads_each_of_its_positions_exactly_once(batch: StepBatch, window: int | None) -> None:
    plan = plan_tree(batch, window)
    assert [item.chunk for item in plan.items] == sorted(item.chunk for item in plan.items)
    read: list[list[int]] = [[] for _ in range(batch.num_rows)]
    for item in plan.items:
        for row in item.rows:
            table = batch.tables[batch.row_tables[row]]
            for offset in range(item.num_slots):
                position = item.chunk * CHUNK_SIZE + offset
                if position <= batch.positions[row]:
                    assert item.blocks[offset // BLOCK_SIZE] == table[position // BLOCK_SIZE]
                    read[row].append(position)
    for row, position in enumerate(batch.positions):
        first = 0 if window is None else max(0, position - window + 1)
        assert [p for p in read[row] if p >= first] == list(range(first, position + 1))
