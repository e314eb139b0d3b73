"""A stand-in for the model that turns every fault of the engine's KV bookkeeping into an exception.

Each slot holds a tag chained over the tokens before it. A row checks every slot of its table up to its position, and
its logits are a hash of its tag, so what is generated is a pure function of the token prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from furcate.kernels.layout import BLOCK_SIZE, StepBatch
from furcate.runtime.requests import SampleKey, Sampling
from furcate.runtime.sampler import Sample, SampleRow
from furcate.runtime.vocabulary import Vocabulary

VOCAB = 64
END = 63
MASK = (1 << 64) - 1

VOCABULARY = Vocabulary((*(bytes([97 + i % 26]) * (1 + i // 26) for i in range(VOCAB - 1)), None), frozenset({END}))
GREEDY = Sampling()
KEY = SampleKey(seed=1, stream=2)


class CanaryFault(AssertionError):
    """A row would have read a slot that is stale, unwritten or another sequence's."""


@dataclass(frozen=True)
class Slot:
    before: int
    """Tag of the token before it."""
    token: int
    position: int
    tag: int


def chain(tag: int, token: int, position: int) -> int:
    x = (tag ^ (token + 1) * 0x9E3779B97F4A7C15 ^ (position + 1) * 0xC2B2AE3D27D4EB4F) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def tag_of(tokens: Sequence[int]) -> int:
    tag = 0
    for position, token in enumerate(tokens):
        tag = chain(tag, token, position)
    return tag


def logits_of(tag: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.tensor([(chain(tag, i, 7) >> 40) / (1 << 22) for i in range(vocab)], dtype=torch.float32)


def greedy_of(tokens: Sequence[int], n: int, end: frozenset[int] = frozenset()) -> list[int]:
    """What greedy generation after ``tokens`` must give, end tokens left out."""
    out: list[int] = []
    for _ in range(n):
        token = int(torch.argmax(logits_of(tag_of([*tokens, *out]))))
        if token in end:
            break
        out.append(token)
    return out


def scores_of(tokens: Sequence[int], continuation: Sequence[int]) -> list[float]:
    values = []
    for i, token in enumerate(continuation):
        row = torch.log_softmax(logits_of(tag_of([*tokens, *continuation[:i]])).double(), -1)
        values.append(float(row[token]))
    return values


class CanaryRunner:
    vocab_size = VOCAB

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.slots: list[Slot | None] = [None] * (num_blocks * BLOCK_SIZE)
        self.batches: list[StepBatch] = []
        self.computed: list[tuple[int, int]] = []
        """(tag before, token) of every row whose K/V was written, once per row."""
        self.fail_next: Exception | None = None

    def forward(self, batch: StepBatch) -> torch.Tensor:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.batches.append(batch)
        self._copy(batch)
        self._write(batch)
        tags = [self._read(batch, row) for row in range(batch.num_rows)]
        assert list(batch.logit_rows) == sorted(set(batch.logit_rows))
        rows = [logits_of(tags[row]) for row in batch.logit_rows]
        return torch.stack(rows) if rows else torch.empty(0, VOCAB)

    def _copy(self, batch: StepBatch) -> None:
        targets = [copy.target for copy in batch.copies]
        assert len(set(targets)) == len(targets), "two copies into one block"
        assert not {copy.source for copy in batch.copies} & set(targets), "a block is read and overwritten by copies"
        for copy in batch.copies:
            for offset in range(copy.num_slots):
                source = self.slots[copy.source * BLOCK_SIZE + offset]
                if source is None:
                    raise CanaryFault(f"copy of the unwritten slot {offset} of block {copy.source}")
                self.slots[copy.target * BLOCK_SIZE + offset] = source

    def _write(self, batch: StepBatch) -> None:
        assert len(set(batch.write_slots)) == len(batch.write_slots), "two rows write one slot"
        writes = sorted(zip(batch.write_rows, batch.write_slots, strict=True), key=lambda w: batch.positions[w[0]])
        for _, slot in writes:
            self.slots[slot] = None  # whatever stood there is gone before any row reads
        written: set[int] = set()
        for row, slot in writes:
            position, token = batch.positions[row], batch.token_ids[row]
            assert slot % BLOCK_SIZE == position % BLOCK_SIZE
            before = 0 if position == 0 else self._slot(batch, row, position - 1).tag
            self.slots[slot] = Slot(before, token, position, chain(before, token, position))
            if row not in written:
                written.add(row)
                self.computed.append((before, token))

    def _read(self, batch: StepBatch, row: int) -> int:
        tag = 0
        for position in range(batch.positions[row] + 1):
            slot = self._slot(batch, row, position)
            if slot.position != position or slot.before != tag:
                raise CanaryFault(f"row {row}: position {position} holds another sequence's token")
            tag = slot.tag
        if slot.token != batch.token_ids[row]:
            raise CanaryFault(f"row {row}: its own slot holds token {slot.token}, not {batch.token_ids[row]}")
        return tag

    def _slot(self, batch: StepBatch, row: int, position: int) -> Slot:
        table = batch.tables[batch.row_tables[row]]
        slot = self.slots[table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE]
        if slot is None:
            raise CanaryFault(f"row {row}: position {position} was never written")
        return slot


class GreedySampler:
    """Argmax under the row's mask; log-probabilities at temperature 1."""

    def __init__(self) -> None:
        self.rows: list[SampleRow] = []
        self.fail_streams: set[int] = set()

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sample]:
        if any(row.key.stream in self.fail_streams for row in rows):
            raise ValueError("this stream cannot be sampled")
        self.rows.extend(rows)
        return [self._one(logits[i], row) for i, row in enumerate(rows)]

    def _one(self, logits: torch.Tensor, row: SampleRow) -> Sample:
        logprobs = torch.log_softmax(logits.double(), -1)
        allowed = torch.ones(len(logits), dtype=torch.bool)
        if row.mask is not None:
            words = row.mask.tolist()
            allowed = torch.tensor([bool(words[i // 32] >> (i % 32) & 1) for i in range(len(logits))])
            for token in row.allow:
                allowed[token] = True
        for token in row.forbid:
            allowed[token] = False
        token = int(torch.argmax(torch.where(allowed, logits, torch.full_like(logits, -torch.inf))))
        top = None
        if row.logprobs:
            best = torch.topk(logprobs, row.logprobs)
            top = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        return Sample(token, float(logprobs[token]), top)
