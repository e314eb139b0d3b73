"""Which waiting call may start: by what the running calls can still take, and by what is cached of its prompt."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from .forecast import Forecast, block_keys, future_blocks
from .kv_cache import KVCache
from .radix_tree import Node
from .scoring import Scoring
from .sequence import Sequence
from .waiting import Waiting, Work

WINDOW = 32
"""Calls at the front of the queue that are compared by what of their prompts is cached."""

MAX_BYPASSES = 32
"""Times that the call at the front may be overtaken by one that shares more, or needs less."""


def parts(work: Work) -> list[tuple[Sequence, SequenceOf[int]]]:
    """The sequences of a call that still grow, with their tokens."""
    if isinstance(work, Scoring):
        active = [(chain.sequence, chain.tokens) for chain in work.chains if chain.sequence is not None]
        if active:
            return list(active)
    return [(work.sequence, work.tokens)]


class Admission:
    """One round of admission. What it costs grows with how short blocks are: a sum while they suffice, prompts of the
    first waiting calls matched where something must be evicted, a walk of the running calls' paths before a refusal.
    """

    def __init__(
        self, cache: KVCache, waiting: Waiting, running: SequenceOf[Work], bound: Callable[[Work], int]
    ) -> None:
        self._cache = cache
        self._waiting = waiting
        self._running = running
        self._bound = bound
        self._demand = sum(self._future(work) for work in running)
        """Blocks that the running calls can still take, each on its own."""
        self._forecast: Forecast | None = None

    def choose(self) -> Work | None:
        """The call to admit next; None where none may be. The front of the queue, unless blocks are short: then of its
        first calls the one that shares most with what is cached, if it fits."""
        pool = self._cache.pool
        (head,) = self._waiting.front(1)
        if self._demand + self._future(head) <= pool.num_free:
            return head
        candidates = [head]
        if head.num_bypassed < MAX_BYPASSES:
            candidates = self._waiting.front(WINDOW)
            candidates.sort(key=lambda work: self._match(work)[1], reverse=True)
        for work in candidates:
            if not self._running or self._fits(work):
                head.num_bypassed += work is not head
                return work
        return None

    def count(self, work: Work) -> None:
        """The call was admitted, and holds what it hits."""
        self._demand += self._future(work)
        if self._forecast is not None:
            self._add(self._forecast, work)

    def _fits(self, work: Work) -> bool:
        pool = self._cache.pool
        if self._demand + self._future(work) <= pool.num_free + pool.num_cached:
            return True
        if self._forecast is None:
            self._forecast = Forecast(pool)
            for other in self._running:
                self._add(self._forecast, other)
        node, found = self._match(work)
        extra = self._forecast.extra(node, found, _keys(work), self._bound(work))
        return self._forecast.num_blocks + extra <= pool.num_blocks

    def _add(self, forecast: Forecast, work: Work) -> None:
        bound = self._bound(work)
        for seq, _ in parts(work):
            forecast.add(seq, _keys(work), bound)

    def _future(self, work: Work) -> int:
        bound = self._bound(work)
        return sum(future_blocks(self._cache.pool, seq, bound) for seq, _ in parts(work))

    def _match(self, work: Work) -> tuple[Node | None, int]:
        seq = work.sequence
        return self._cache.tree.match(seq.namespace, seq.node, work.tokens, seq.resident)


def _keys(work: Work) -> list[int]:
    if work.keys is None:
        work.keys = block_keys(work.sequence.namespace, work.tokens[: work.prompt])
    return work.keys
