"""Batches of rows over block tables that a test names by hand, for the model runner alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from furcate.kernels.layout import BLOCK_SIZE, BlockCopy, StepBatch
from furcate.runtime.model_runner import ModelRunner


def tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def slot(table: Sequence[int], position: int) -> int:
    return table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def step(*parts: tuple[Sequence[int], Sequence[int], int, int], copies: Sequence[BlockCopy] = ()) -> StepBatch:
    """A batch that computes and writes ids[start:stop] of each (ids, table, start, stop), logits of every row."""
    rows = [(i, position) for i, (_, _, start, stop) in enumerate(parts) for position in range(start, stop)]
    return StepBatch(
        token_ids=[parts[i][0][position] for i, position in rows],
        positions=[position for _, position in rows],
        row_tables=[i for i, _ in rows],
        tables=[table for _, table, _, _ in parts],
        write_rows=range(len(rows)),
        write_slots=[slot(parts[i][1], position) for i, position in rows],
        logit_rows=range(len(rows)),
        copies=copies,
    )


def whole(runner: ModelRunner, ids: Sequence[int], first_block: int = 128) -> torch.Tensor:
    """Logits of every position of ``ids``, run in one piece in blocks of its own."""
    return runner.forward(step((ids, range(first_block, first_block + len(ids) // BLOCK_SIZE + 1), 0, len(ids))))
