"""Tree attention in Triton's interpreter: against dense attention in fp64, and a row's bits against its company."""

from __future__ import annotations

import pytest
import torch
from kv_tree import KVTree, random_tree

from furcate.kernels.triton_merge import merge_partials_kernel, reference_merge

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}


@pytest.mark.parametrize(
    ("group", "dim", "depth", "dtype"),
    [
        (1, 64, 1, torch.float32),
        (3, 64, 2, torch.bfloat16),
        (4, 80, 3, torch.float32),
        (8, 96, 4, torch.float16),
        (4, 128, 2, torch.bfloat16),
        (1, 256, 2, torch.float16),
        (20, 64, 1, torch.float32),  # more query heads per KV head than a tile holds
    ],
)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (37, 5.0)])
def test_agrees_with_dense_attention(
    group: int, dim: int, depth: int, dtype: torch.dtype, window: int | None, softcap: float | None
) -> None:
    tree = KVTree(group, 1, dim, seed=group * dim, dtype=dtype)
    rows = random_tree(tree, depth)
    query = tree.random(len(rows), group, dim)
    sinks = torch.randn(group, generator=tree.torch_rng) if window else None
    got = tree.attend(query, rows, window, softcap, sinks)
    assert torch.isfinite(got).all()
    assert (got.double() - tree.dense(query, rows, window, softcap, sinks)).abs().max() < TOLERANCE[dtype]


def test_a_large_soft_capped_score_does_not_overflow() -> None:
    tree = KVTree(2, 1, 64, seed=3)
    tree.grow(40)
    tree.backend.kv_pool(0)[0].mul_(1e4)
    query = tree.random(1, 2, 64) * 100
    got = tree.attend(query, [(0, 39)], softcap=30.0)
    assert torch.isfinite(got).all()
    assert (got - tree.dense(query, [(0, 39)], softcap=30.0)).abs().max() < 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 100])
def test_a_fork_has_the_bits_of_each_branch_alone(dtype: torch.dtype, window: int | None) -> None:
    tree = KVTree(3, 1, 64, seed=7, dtype=dtype, deterministic=True, row_dot=True)
    root = tree.grow(300)
    branches = [tree.grow(300 + own, root) for own in (1, 17, 230)]
    rows = [(branch, tree.lengths[branch] - 1) for branch in branches]
    query = tree.random(len(rows), 3, 64)
    together = tree.attend(query, rows, window)
    for index, row in enumerate(rows):
        assert torch.equal(tree.attend(query[index : index + 1], [row], window)[0], together[index])


@pytest.mark.parametrize("window", [None, 60])
def test_rows_that_walk_their_chunks_have_the_bits_of_merged_ones(window: int | None) -> None:
    tree = KVTree(4, 1, 64, seed=11, deterministic=True, row_dot=True)
    tree.grow(270)
    rows = [(0, position) for position in range(206, 270)]
    query = tree.random(len(rows), 4, 64)
    sinks = torch.randn(4, generator=tree.torch_rng)
    walked = tree.attend(query, rows, window, sinks=sinks)
    assert (walked - tree.dense(query, rows, window, sinks=sinks)).abs().max() < 2e-5
    plan = tree.backend.plan(tree.step(rows))
    assert all(len(own.host.tiles) == 16 and not own.host.num_partials for own in plan.plans.values())
    for index in (0, 49, 50, 63):
        alone = tree.attend(query[index : index + 1], rows[index : index + 1], window, sinks=sinks)
        assert torch.equal(alone[0], walked[index])


def test_rows_past_the_steps_come_back_zero() -> None:
    tree = KVTree(2, 1, 64, seed=5)
    tree.grow(20)
    query = tree.random(4, 2, 64)
    got = tree.attend(query, [(0, 18), (0, 19)])
    assert (got[:2] - tree.dense(query[:2], [(0, 18), (0, 19)])).abs().max() < 2e-5
    assert (got[2:] == 0).all()


def merge(
    partial_out: torch.Tensor, partial_lse: torch.Tensor, starts: list[int], rows: list[int], sinks: torch.Tensor | None
) -> torch.Tensor:
    heads, dim = partial_out.shape[1:]
    out = torch.full((4, heads, dim), 7.0)
    merge_partials_kernel[(len(rows), -(-heads // 4))](
        *(partial_out, partial_lse, torch.tensor(rows, dtype=torch.int32), torch.tensor(starts, dtype=torch.int32)),
        *(torch.arange(len(partial_out), dtype=torch.int32), torch.zeros(1) if sinks is None else sinks),
        *(out, out.stride(0)),
        **{"HEADS": heads, "DIM": dim, "DIM_PAD": 64, "BLOCK_H": 4, "HAS_SINKS": sinks is not None},
    )
    return out


@pytest.mark.parametrize("with_sinks", [False, True])
def test_merging_skips_empty_partials_and_rows(with_sinks: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    partial_out = torch.randn(6, 5, 48, generator=generator)
    partial_lse = torch.randn(6, 5, generator=generator) * 20
    for empty in (0, 2, 5):  # at the start, in between and, with entry 4, a whole row
        partial_out[empty], partial_lse[empty] = 0.0, -torch.inf
    partial_out[4], partial_lse[4] = 0.0, -torch.inf
    sinks = torch.randn(5, generator=generator) if with_sinks else None
    got = merge(partial_out, partial_lse, [0, 4, 6, 6], [2, 0, 1], sinks)
    assert (got[2] - reference_merge(partial_out[:4], partial_lse[:4], sinks)).abs().max() < 1e-6
    assert (got[0] == 0).all()
    assert (got[1] == 0).all()
    assert (got[3] == 7).all(), "a row that was not asked for"


def test_a_padded_row_of_a_captured_graph_writes_nothing() -> None:
    got = merge(torch.ones(1, 4, 64), torch.zeros(1, 4), [0, 1, 1], [-1, -1], None)
    assert (got == 7).all()
