"""Which cached tokens go first when blocks are short: dead, then farthest next use, then least recent; leaves only."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict

from ..kernels.layout import BLOCK_SIZE
from .radix_tree import Node, RadixTree

Key = tuple[int, float, int, int]

MAX_GHOSTS = 1 << 16
"""Evicted tokens that are remembered, to tell a token that was evicted from one that was never seen."""


def eviction_key(node: Node) -> Key:
    """Smallest goes first: dead; farthest next use, where unknown counts as never; least recent; deepest."""
    next_use = float("inf") if node.next_use is None else float(node.next_use)
    return (0 if node.dead else 1, -next_use, node.last_access, -node.end)


class Evictor:
    """A heap of the tree's unpinned leaves. Entries are never updated in place: stale ones are skipped when popped."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._heap: list[tuple[Key, int, int, Node]] = []
        self._order = itertools.count()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        tree.on_idle_leaf = self.offer

    def offer(self, node: Node) -> None:
        """Add an unpinned leaf, or refresh its rank."""
        node.stamp += 1
        heapq.heappush(self._heap, (eviction_key(node), next(self._order), node.stamp, node))
        if len(self._heap) > 64 + 4 * self._tree.num_nodes:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def evict(self, num_blocks: int) -> int:
        """Evict tails of leaves until ``num_blocks`` blocks became free or nothing is left; returns blocks freed.

        A leaf may free no block, since its first block can be its parent's last: blocks are counted, not nodes.
        """
        pool = self._tree.pool
        target = pool.num_free + num_blocks
        before = pool.num_free
        while pool.num_free < target and self._heap:
            entry = heapq.heappop(self._heap)
            if not self._is_current(entry):
                continue
            node = entry[3]
            while node.tokens and pool.num_free < target:
                self._remember(node)
                self._tree.trim_tail(node)
            if node.tokens:
                self.offer(node)
        return pool.num_free - before

    def was_evicted(self, tag: int) -> bool:
        """Whether the token of this lineage tag was in the tree once and was evicted (as far as remembered)."""
        return tag in self._ghosts

    def candidates(self) -> set[int]:
        """``id`` of every node with a current entry."""
        return {id(entry[3]) for entry in self._heap if self._is_current(entry)}

    def _remember(self, leaf: Node) -> None:
        block = leaf.blocks[-1]
        first = max(leaf.start, (leaf.end - 1) // BLOCK_SIZE * BLOCK_SIZE)
        for position in range(first, leaf.end):
            self._ghosts[self._tree.pool.tag(block, position % BLOCK_SIZE)] = None
        while len(self._ghosts) > MAX_GHOSTS:
            self._ghosts.popitem(last=False)

    @staticmethod
    def _is_current(entry: tuple[Key, int, int, Node]) -> bool:
        _, _, stamp, node = entry
        return stamp == node.stamp and not node.pins and not node.children and node.parent is not None
