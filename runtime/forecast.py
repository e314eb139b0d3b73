"""What a set of running calls holds and can still need: the ground for admitting one more."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from ..kernels.layout import BLOCK_SIZE
from .block_pool import BlockPool, blocks_for
from .radix_tree import Node
from .sequence import Sequence


def block_keys(namespace: str, tokens: SequenceOf[int]) -> list[int]:
    """A hash per whole block of ``tokens``, over all tokens up to its end: equal prefixes have equal keys."""
    key = hash(namespace)
    keys: list[int] = []
    for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
        key = hash((key, *tokens[end - BLOCK_SIZE : end]))
        keys.append(key)
    return keys


def future_blocks(pool: BlockPool, seq: Sequence, bound: int) -> int:
    """Most blocks that ``seq`` can still take until it holds ``bound`` tokens, shared with nobody."""
    offset = seq.resident % BLOCK_SIZE
    copy = 1 if offset and not pool.writable(seq.table[-1], offset) else 0
    return max(0, blocks_for(bound) - blocks_for(seq.resident)) + copy


class Forecast:
    """Blocks that calls hold and will still take until each has finished, tokens in common counted once.

    Costs a visit to each tree node on the calls' paths, not to each of their blocks.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._nodes: set[Node] = set()
        self._num_held = 0
        self._promised: set[int] = set()
        self._num_private = 0

    @property
    def num_blocks(self) -> int:
        return self._num_held + len(self._promised) + self._num_private

    def add(self, seq: Sequence, keys: SequenceOf[int], bound: int) -> None:
        """Count one more call that may grow to ``bound`` tokens; ``keys`` are those of its known tokens."""
        self._hold(seq.node)
        first = blocks_for(seq.resident)
        self._promised.update(keys[first:])
        unknown = blocks_for(bound) - max(first, len(keys))
        offset = seq.resident % BLOCK_SIZE
        copy = 1 if offset and not self._pool.writable(seq.table[-1], offset) else 0
        self._num_private += max(0, unknown) + copy

    def extra(self, node: Node | None, found: int, keys: SequenceOf[int], bound: int) -> int:
        """What ``add`` would count for a call of whose tokens the tree holds ``found``, the last of them in ``node``;
        a partial block of them counts as copied."""
        blocks = 0
        while node is not None and node not in self._nodes:
            blocks += _own_blocks(node)
            node = node.parent
        first = blocks_for(found)
        blocks += sum(key not in self._promised for key in keys[first:])
        return blocks + max(0, blocks_for(bound) - max(first, len(keys))) + (1 if found % BLOCK_SIZE else 0)

    def _hold(self, node: Node | None) -> None:
        while node is not None and node not in self._nodes:
            self._nodes.add(node)
            self._num_held += _own_blocks(node)
            node = node.parent


def _own_blocks(node: Node) -> int:
    """Blocks that the node names and its parent does not."""
    parent = node.parent
    shared = parent is not None and bool(parent.blocks) and bool(node.blocks) and parent.blocks[-1] == node.blocks[0]
    return len(node.blocks) - shared
