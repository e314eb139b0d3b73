"""The torch backend against dense attention in fp64, and a row's bits against its company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from furcate.kernels.interface import KVShape
from furcate.kernels.layout import BLOCK_SIZE, BlockCopy, StepBatch
from furcate.kernels.torch_backend import TorchBackend


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass
class Tree:
    """A backend with one layer, filled with the KV of a random tree of sequences; unwritten slots hold NaN."""

    heads: int
    kv_heads: int
    dim: int
    seed: int
    num_blocks: int = 400
    tables: list[list[int]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.torch_rng = torch.Generator().manual_seed(self.seed)
        self.backend = TorchBackend(
            KVShape(1, self.num_blocks, [self.kv_heads], [self.dim], torch.float32, torch.device("cpu"))
        )
        self.free = list(self.rng.permutation(self.num_blocks))
        for pool in self.backend.kv_pool(0):
            pool.fill_(float("nan"))

    def grow(self, length: int, parent: int | None = None) -> int:
        """A sequence of ``length`` tokens that shares all of ``parent``'s; the partial last block is copied."""
        shared = 0 if parent is None else self.lengths[parent]
        full = shared // BLOCK_SIZE
        table = [] if parent is None else self.tables[parent][:full]
        table += [int(self.free.pop()) for _ in range(-(-length // BLOCK_SIZE) - full)]
        if parent is not None and shared % BLOCK_SIZE:
            self.backend.copy_blocks([BlockCopy(self.tables[parent][full], table[full], shared % BLOCK_SIZE)])
        self.tables.append(table)
        self.lengths.append(length)
        for pool in self.backend.kv_pool(0):
            for position in range(shared, length):
                pool[table[position // BLOCK_SIZE], position % BLOCK_SIZE] = self.random(self.kv_heads, self.dim)
        return len(self.tables) - 1

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.torch_rng)

    def step(self, rows: list[tuple[int, int]]) -> StepBatch:
        """A batch of (sequence, position) rows, contiguous by sequence, whose K/V is there already."""
        order = list(dict.fromkeys(sequence for sequence, _ in rows))
        return StepBatch(
            token_ids=[0] * len(rows),
            positions=[position for _, position in rows],
            row_tables=[order.index(sequence) for sequence, _ in rows],
            tables=[self.tables[sequence] for sequence in order],
            write_rows=[],
            write_slots=[],
            logit_rows=[],
        )

    def reference(
        self,
        query: torch.Tensor,
        rows: list[tuple[int, int]],
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = torch.zeros(query.shape, dtype=torch.float64)
        pool_k, pool_v = self.backend.kv_pool(0)
        for row, (sequence, position) in enumerate(rows):
            first = 0 if window is None else max(0, position - window + 1)
            at = torch.arange(first, position + 1)
            blocks = torch.tensor(self.tables[sequence])[at // BLOCK_SIZE]
            key, value = pool_k[blocks, at % BLOCK_SIZE].double(), pool_v[blocks, at % BLOCK_SIZE].double()
            for head in range(self.heads):
                kv_head = head // (self.heads // self.kv_heads)
                scores = key[:, kv_head] @ query[row, head].double() * scale
                if softcap is not None:
                    scores = torch.tanh(scores / softcap) * softcap
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head].double().view(1)])
                weights = torch.softmax(scores, 0)[: len(at)]
                out[row, head] = weights @ value[:, kv_head]
        return out


def random_tree(heads: int, kv_heads: int, dim: int, seed: int) -> tuple[Tree, list[tuple[int, int]]]:
    """A tree of three levels, and rows at the tips and inside of it."""
    tree = Tree(heads, kv_heads, dim, seed)
    root = tree.grow(int(tree.rng.integers(1, 560)))
    for _ in range(3):
        child = tree.grow(tree.lengths[root] + int(tree.rng.integers(1, 120)), root)
        for _ in range(int(tree.rng.integers(0, 3))):
            tree.grow(tree.lengths[child] + int(tree.rng.integers(1, 60)), child)
    rows: list[tuple[int, int]] = []
    for sequence, length in enumerate(tree.lengths):
        count = int(tree.rng.integers(1, 6))
        rows += [(sequence, position) for position in range(max(0, length - count), length)]
    return tree, rows


SHAPES = [(2, 2, 16), (6, 2, 64), (8, 2, 128)]


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("window", [None, 1, 37, 256, 400])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_agrees_with_dense_attention(
    heads: int, kv_heads: int, dim: int, window: int | None, softcap: float | None
) -> None:
    tree, rows = random_tree(heads, kv_heads, dim, seed=heads * 1000 + (window or 0))
    query = tree.random(len(rows), heads, dim)
    plan = tree.backend.plan(tree.step(rows))
    got = tree.backend.attend(0, query, plan, scale=dim**-0.5, sliding_window=window, softcap=softcap)
    want = tree.reference(query, rows, dim**-0.5, window, softcap)
    assert torch.isfinite(got).all()
    assert (got - want).abs().max() < 2e-5


def test_sinks_take_weight_and_give_no_value() -> None:
    tree, rows = random_tree(4, 2, 16, seed=5)
    query, sinks = tree.random(len(rows), 4, 16), tree.random(4) * 3
    got = tree.backend.attend(0, query, tree.backend.plan(tree.step(rows)), scale=0.25, sinks=sinks)
    assert (got - tree.reference(query, rows, 0.25, sinks=sinks)).abs().max() < 2e-5


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 100])
def test_a_row_has_the_same_bits_in_any_company(
    heads: int, kv_heads: int, dim: int, softcap: float | None, window: int | None
) -> None:
    tree, rows = random_tree(heads, kv_heads, dim, seed=heads)
    query = tree.random(len(rows), heads, dim)

    def attend(chosen: list[int]) -> torch.Tensor:
        plan = tree.backend.plan(tree.step([rows[i] for i in chosen]))
        return tree.backend.attend(0, query[chosen], plan, scale=0.2, softcap=softcap, sliding_window=window)

    together = attend(list(range(len(rows))))
    for i in range(len(rows)):
        assert torch.equal(attend([i])[0], together[i])


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 64), (7, 1, 64), (4, 1, 256), (9, 1, 80)])
def test_prefill_in_one_piece_gives_the_bits_of_each_row_alone(heads: int, kv_heads: int, dim: int) -> None:
    tree = Tree(heads, kv_heads, dim, seed=3)
    tree.grow(700)
    rows = [(0, position) for position in range(700)]
    query = tree.random(700, heads, dim)
    whole = tree.backend.attend(0, query, tree.backend.plan(tree.step(rows)), scale=0.1)
    for position in (0, 1, 15, 16, 63, 64, 255, 256, 257, 500, 511, 512, 699):
        alone = tree.backend.plan(tree.step([rows[position]]))
        assert torch.equal(tree.backend.attend(0, query[[position]], alone, scale=0.1)[0], whole[position])


def test_a_long_row_beside_a_short_one_changes_nothing() -> None:
    # More than 16 chunks: the merge goes span by span.
    tree = Tree(2, 1, 16, seed=4, num_blocks=700)
    tree.grow(300)
    tree.grow(20 * 256 + 10)
    rows = [(0, 299), (1, 20 * 256 + 9)]
    query = tree.random(2, 2, 16)
    both = tree.backend.attend(0, query, tree.backend.plan(tree.step(rows)), scale=0.3)
    assert (both - tree.reference(query, rows, 0.3)).abs().max() < 2e-5
    for i in range(2):
        alone = tree.backend.plan(tree.step([rows[i]]))
        assert torch.equal(tree.backend.attend(0, query[[i]], alone, scale=0.3)[0], both[i])


def test_large_scores_do_not_overflow() -> None:
    tree, rows = random_tree(2, 2, 16, seed=9)
    query = tree.random(len(rows), 2, 16) * 200
    got = tree.backend.attend(0, query, tree.backend.plan(tree.step(rows)), scale=10.0)
    assert (got - tree.reference(query, rows, 10.0)).abs().max() < 1e-3


def test_rows_past_the_step_come_back_zero() -> None:
    tree, rows = random_tree(2, 2, 16, seed=1)
    query = tree.random(len(rows) + 3, 2, 16)
    got = tree.backend.attend(0, query, tree.backend.plan(tree.step(rows)), scale=0.25)
    assert not got[len(rows) :].any()
    assert (got[: len(rows)] - tree.reference(query[: len(rows)], rows, 0.25)).abs().max() < 2e-5


def test_writes_go_to_every_slot_named_and_nowhere_else() -> None:
    tree = Tree(2, 2, 16, seed=2)
    batch = StepBatch([0, 0, 0], [0, 1, 2], [0, 0, 0], [[7]], [1, 1, 2], [7 * 16 + 1, 9 * 16 + 1, 7 * 16 + 2], [])
    key, value = tree.random(4, 2, 16), tree.random(4, 2, 16)  # the fourth row is padding
    tree.backend.write_kv(0, key, value, tree.backend.plan(batch))
    for pool, rows in zip(tree.backend.kv_pool(0), (key, value), strict=True):
        flat = pool.reshape(-1, 2, 16)
        assert torch.equal(flat[[113, 145, 114]], rows[[1, 1, 2]])
        assert int(torch.isfinite(flat).all(-1).all(-1).sum()) == 3


def test_copies_run_in_order_and_only_over_the_slots_named() -> None:
    tree = Tree(2, 2, 16, seed=2)
    pool = tree.backend.kv_pool(0)[0]
    pool[3] = tree.random(16, 2, 16)
    tree.backend.copy_blocks([BlockCopy(3, 4, 5), BlockCopy(4, 6, 2)])
    assert torch.equal(pool[4, :5], pool[3, :5])
    assert torch.equal(pool[6, :2], pool[3, :2])
    assert torch.isnan(pool[4, 5:]).all()
    assert torch.isnan(pool[6, 2:]).all()


def test_the_pool_has_the_shape_that_was_asked_for() -> None:
    backend = TorchBackend(KVShape(2, 5, [3, 1], [8, 16], torch.float32, torch.device("cpu")))
    assert [tuple(backend.kv_pool(layer)[0].shape) for layer in range(2)] == [(5, 16, 3, 8), (5, 16, 1, 16)]
    assert not backend.kv_pool(0)[1].any()
