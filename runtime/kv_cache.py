"""Making room in the pool: evict, compact, take back from the idle; and forgetting what must not be found again."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from .block_pool import BlockPool
from .eviction import Evictor
from .radix_tree import RadixTree
from .sequence import Residency, Sequence
from .tips import TipLogits


class KVCache:
    """The pool with everything that watches over it, as one whole that can be replaced by a fresh one."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool)
        self.evictor = Evictor(self.tree)
        self.residency = Residency(self.pool, self.tree)
        self.tips = TipLogits()

    def make_room(self, num_blocks: int, growing: Callable[[], list[Sequence]]) -> bool:
        """Have ``num_blocks`` blocks free without touching what the ``growing`` sequences hold: evict what is only
        cached, then let paths share copies, then take back from idle branches, youngest program first (programs count
        upwards)."""
        if self._evict_to(num_blocks):
            return True
        running = growing()
        for seq in running:
            self.residency.compact(seq)
        if self._evict_to(num_blocks):
            return True
        for seq in self.residency.youngest(set(running)):
            seq.lost_by = "evicted"
            self.residency.drop(seq)
            if self._evict_to(num_blocks):
                return True
        return False

    def flush(self, namespace: str) -> int:
        """Forget all KV of one namespace; returns how many blocks became free. Branches in it keep their tokens and
        make their KV again when they need it. Nothing of the namespace may be running."""
        before = self.pool.num_free
        for seq in [seq for seq in self.residency.holders if seq.namespace == namespace]:
            seq.lost_by = "flushed"
            self.residency.drop(seq)
        self.tree.clear(namespace)
        return self.pool.num_free - before

    def forget(self, seq: Sequence, tokens: SequenceOf[int], length: int) -> None:
        """Give back what ``seq``, whose text is ``tokens``, holds from ``length`` on, and let nobody find it any more,
        nor what was computed after it, but for what is in use."""
        self.residency.trim(seq, length)
        above = seq.node if length else self.tree.roots.get(seq.namespace)
        first = above.children.get(tokens[length]) if above is not None and length < len(tokens) else None
        nodes = [] if first is None else [first]
        for node in nodes:
            nodes.extend(node.children.values())
        for node in reversed(nodes):
            while node.tokens and not node.pins and not node.children:
                self.tree.trim_tail(node)

    def _evict_to(self, num_blocks: int) -> bool:
        missing = num_blocks - self.pool.num_free
        if missing > 0:
            self.evictor.evict(missing)
        return self.pool.num_free >= num_blocks
