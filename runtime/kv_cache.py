"""Making room in the pool: evict, compact, take back from the idle, and what a running call can still need."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ..kernels.layout import BLOCK_SIZE
from .block_pool import BlockPool, blocks_for
from .eviction import Evictor
from .radix_tree import RadixTree
from .sequence import Residency, Sequence


class KVCache:
    """The pool with everything that watches over it, as one whole that can be replaced by a fresh one."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool)
        self.evictor = Evictor(self.tree)
        self.residency = Residency(self.pool, self.tree)

    def make_room(self, num_blocks: int, running: SequenceOf[Sequence]) -> bool:
        """Have ``num_blocks`` blocks free without touching what ``running`` holds: evict what is only cached, then let
        paths share copies, then take back from idle branches, youngest program first (programs count upwards)."""
        if self._evict_to(num_blocks):
            return True
        for seq in running:
            self.residency.compact(seq)
        if self._evict_to(num_blocks):
            return True
        busy = set(running)
        idle = [seq for seq in self.residency.holders if seq not in busy]
        for seq in sorted(idle, key=lambda seq: (seq.program, seq.born), reverse=True):
            seq.lost_by = "evicted"
            self.residency.drop(seq)
            if self._evict_to(num_blocks):
                return True
        return False

    def _evict_to(self, num_blocks: int) -> bool:
        missing = num_blocks - self.pool.num_free
        if missing > 0:
            self.evictor.evict(missing)
        return self.pool.num_free >= num_blocks


class Forecast:
    """Blocks that a set of calls holds and will still take until each has finished, tokens in common counted once.

    A call is ``(sequence, its tokens so far, its bound in tokens)``.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._held: set[int] = set()
        self._promised: set[int] = set()
        self._private = 0

    @property
    def num_blocks(self) -> int:
        return len(self._held) + len(self._promised) + self._private

    def add(self, seq: Sequence, tokens: SequenceOf[int], bound: int) -> None:
        """Count one more call."""
        self._held.update(seq.table)
        total = blocks_for(max(bound, len(tokens)))
        self._private += self._copy_ahead(seq)
        key = hash((seq.namespace, None)) if seq.node is None else hash((id(seq.node), seq.resident))
        logical = seq.resident // BLOCK_SIZE
        if seq.resident % BLOCK_SIZE:
            key = hash((key, tuple(tokens[seq.resident : (logical + 1) * BLOCK_SIZE])))
            logical += 1  # the partial block itself is held
        while (logical + 1) * BLOCK_SIZE <= len(tokens):
            key = hash((key, tuple(tokens[logical * BLOCK_SIZE : (logical + 1) * BLOCK_SIZE])))
            self._promised.add(key)
            logical += 1
        self._private += max(0, total - logical)

    def _copy_ahead(self, seq: Sequence) -> int:
        offset = seq.resident % BLOCK_SIZE
        return 1 if offset and not self._pool.writable(seq.table[-1], offset) else 0
