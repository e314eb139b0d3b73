"""The batch of one engine step, as plain host data: what a kernel needs and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCK_SIZE = 16
"""Tokens per KV block. Token t of a sequence lives in logical block t // 16 at offset t % 16."""

CHUNK_SIZE = 256
"""Tokens per attention chunk. Chunks sit at absolute positions (0, 256, 512, ...)."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the first ``num_slots`` slots of block ``source`` into ``target``, in every layer, before the step."""

    source: int
    target: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All rows (query tokens) of one step, packed.

    A row is one token at one absolute position of one sequence; it attends to the slots of its sequence's block
    table at positions 0..position inclusive. All K/V of the step is written before any attention reads it, so a row
    may attend to a token that is computed in the same step, in its own or in another sequence.
    """

    token_ids: Sequence[int]
    """[rows] token id of each row."""
    positions: Sequence[int]
    """[rows] absolute position of each row."""
    row_tables: Sequence[int]
    """[rows] index into ``tables`` of the sequence each row belongs to. Rows of a sequence are contiguous."""
    tables: Sequence[Sequence[int]]
    """[sequences][blocks] physical block ids; a table covers at least the highest position of its rows."""
    write_rows: Sequence[int]
    """[writes] row whose K/V is written. A row may be absent (query only: its K/V is already there) or appear
    several times (one row, several slots: a trunk's partial block goes to each dependent's private block)."""
    write_slots: Sequence[int]
    """[writes] physical slot = block id * 16 + offset."""
    logit_rows: Sequence[int]
    """[outputs] rows whose logits are wanted, ascending."""
    copies: Sequence[BlockCopy] = field(default=())
    """Block copies to run before the step."""

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)
