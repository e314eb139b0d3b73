"""A random tree of sequences in a backend's pool, the rows of a step over it, and dense attention in fp64."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from furcate.kernels.interface import KVShape
from furcate.kernels.layout import BLOCK_SIZE, BlockCopy, StepBatch
from furcate.kernels.triton_backend import TritonBackend


@dataclass
class KVTree:
    """One layer of KV whose unwritten slots hold NaN."""

    heads: int
    kv_heads: int
    dim: int
    seed: int
    dtype: torch.dtype = torch.float32
    deterministic: bool = False
    row_dot: bool = False
    num_blocks: int = 240
    tables: list[list[int]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.torch_rng = torch.Generator().manual_seed(self.seed)
        shape = KVShape(1, self.num_blocks, [self.kv_heads], [self.dim], self.dtype, torch.device("cpu"))
        self.backend = TritonBackend(shape, deterministic=self.deterministic, row_dot=self.row_dot)
        self.free = [int(block) for block in self.rng.permutation(self.num_blocks)]
        for pool in self.backend.kv_pool(0):
            pool.fill_(float("nan"))

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.torch_rng).to(self.dtype)

    def grow(self, length: int, parent: int | None = None) -> int:
        """A sequence of ``length`` tokens that shares all of ``parent``'s; the partial last block is copied."""
        shared = 0 if parent is None else self.lengths[parent]
        full = shared // BLOCK_SIZE
        table = [] if parent is None else self.tables[parent][:full]
        table += [self.free.pop() for _ in range(-(-length // BLOCK_SIZE) - full)]
        if parent is not None and shared % BLOCK_SIZE:
            self.backend.copy_blocks([BlockCopy(self.tables[parent][full], table[full], shared % BLOCK_SIZE)])
        self.tables.append(table)
        self.lengths.append(length)
        at = torch.arange(shared, length)
        blocks = torch.tensor(table)[at // BLOCK_SIZE]
        for pool in self.backend.kv_pool(0):
            pool[blocks, at % BLOCK_SIZE] = self.random(len(at), self.kv_heads, self.dim)
        return len(self.tables) - 1

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

    def attend(
        self,
        query: torch.Tensor,
        rows: list[tuple[int, int]],
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        plan = self.backend.plan(self.step(rows))
        return self.backend.attend(
            0, query, plan, scale=self.dim**-0.5, sliding_window=window, softcap=softcap, sinks=sinks
        )

    def dense(
        self,
        query: torch.Tensor,
        rows: list[tuple[int, int]],
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same in fp64, one row at a time."""
        out = torch.zeros(query.shape, dtype=torch.float64)
        pool_k, pool_v = self.backend.kv_pool(0)
        group = self.heads // self.kv_heads
        for row, (sequence, position) in enumerate(rows):
            at = torch.arange(0 if window is None else max(0, position - window + 1), position + 1)
            blocks = torch.tensor(self.tables[sequence])[at // BLOCK_SIZE]
            key = pool_k[blocks, at % BLOCK_SIZE].double().repeat_interleave(group, 1)
            value = pool_v[blocks, at % BLOCK_SIZE].double().repeat_interleave(group, 1)
            scores = torch.einsum("hd,shd->hs", query[row].double(), key) * self.dim**-0.5
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            if sinks is not None:
                scores = torch.cat([scores, sinks.double()[:, None]], 1)
            out[row] = torch.einsum("hs,shd->hd", torch.softmax(scores, 1)[:, : len(at)], value)
        return out


def random_tree(tree: KVTree, depth: int) -> list[tuple[int, int]]:
    """Grow a tree of ``depth`` levels and return rows at tips and inside of it."""
    level = [tree.grow(int(tree.rng.integers(200, 520)))]
    for _ in range(depth - 1):
        parent = level[int(tree.rng.integers(len(level)))]
        level = [tree.grow(tree.lengths[parent] + int(tree.rng.integers(1, 60)), parent) for _ in range(2)]
    rows: list[tuple[int, int]] = []
    for sequence, length in enumerate(tree.lengths):
        count = int(tree.rng.integers(1, 3))
        rows += [(sequence, position) for position in range(max(0, length - count), length)]
    return rows
