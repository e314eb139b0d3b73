"""Sequences and what of their KV is resident: taking it from the tree, giving it back, sharing it by fork."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Set
from collections.abc import Sequence as SequenceOf

from ..kernels.layout import BLOCK_SIZE
from .block_pool import BlockPool, blocks_for
from .radix_tree import Node, RadixTree


class Sequence:
    """The engine's record of a branch. Between steps ``table`` holds exactly the blocks of the resident tokens."""

    __slots__ = (
        "born",
        "inherited",
        "known",
        "lost_by",
        "namespace",
        "next_use",
        "node",
        "program",
        "resident",
        "table",
    )

    def __init__(self, namespace: str, born: int) -> None:
        self.namespace = namespace
        self.born = born
        """Ordinal of the branch in its engine."""
        self.table: list[int] = []
        """Physical block per logical block."""
        self.resident = 0
        """Leading tokens whose KV is in ``table``."""
        self.node: Node | None = None
        """Tree node that ends at ``resident``; pinned by this sequence. None while nothing is resident."""
        self.known = 0
        """Most leading tokens that were ever resident in this lineage; computing below it again is recomputation."""
        self.lost_by = "evicted"
        """Why ``known`` exceeds ``resident``: ``evicted``, ``preempted`` or ``flushed``."""
        self.inherited = 0
        """Leading tokens that came by fork and that no call has accounted for yet."""
        self.program = 0
        self.next_use: int | None = None
        """Tree clock of the tip's next known use."""


class Residency:
    """Owns the relation between sequences, block tables and the tree: every change of a table goes through here."""

    def __init__(self, pool: BlockPool, tree: RadixTree) -> None:
        self.pool = pool
        self.tree = tree
        self.holders: dict[Sequence, None] = {}
        """Sequences with resident tokens, in no particular order."""
        self._by_age: list[tuple[int, int, int, Sequence]] = []
        """Heap of (minus the program, minus the branch's ordinal, tie, holder); those of former holders are skipped."""
        self._ties = itertools.count()

    def advance(self, seq: Sequence, tokens: SequenceOf[int]) -> int:
        """Take over what the tree holds of ``tokens`` beyond the resident ones; returns how many tokens that was."""
        if seq.resident >= len(tokens):
            return 0
        top = seq.node
        node = self.tree.descend(seq.namespace, top, tokens, seq.resident)
        if node is None or node is top:
            return 0
        self.tree.pin(node, above=top)
        path: list[Node] = []
        here: Node | None = node
        while here is not None and here is not top:
            path.append(here)
            here = here.parent
        for part in reversed(path):
            first = part.start // BLOCK_SIZE
            for index, block in enumerate(part.blocks):
                self.name(seq, first + index, block)
        gained = node.end - seq.resident
        self._settle(seq, node)
        return gained

    def commit(self, seq: Sequence, tokens: SequenceOf[int], end: int) -> None:
        """The KV of ``tokens[resident:end]`` was computed into ``seq.table``: publish it in the tree."""
        top = seq.node
        node = self.tree.extend(seq.namespace, top, tokens[seq.resident : end], seq.resident, seq.table)
        if node is not top:
            self.tree.pin(node, above=top)
        self._settle(seq, node)

    def trim(self, seq: Sequence, length: int) -> None:
        """Give back what is resident from position ``length`` on; it stays cached in the tree."""
        if length >= seq.resident:
            return
        if length <= 0 or seq.node is None:
            self.drop(seq)
            return
        node = seq.node
        while node.start >= length and node.parent is not None:
            node = node.parent
        if node.end > length:
            node = self.tree.split(node, length)
        self.tree.unpin(seq.node, above=node)
        for block in seq.table[blocks_for(length) :]:
            self.pool.remove_table(block)
        del seq.table[blocks_for(length) :]
        seq.node = node
        seq.resident = length

    def drop(self, seq: Sequence) -> None:
        """Give back all that is resident; it stays cached in the tree until blocks are short."""
        if seq.node is not None:
            self._mark_next_use(seq)
            self.tree.unpin(seq.node, above=None)
        for block in seq.table:
            self.pool.remove_table(block)
        seq.table = []
        seq.resident = 0
        seq.node = None
        self.holders.pop(seq, None)

    def drop_dead(self, seq: Sequence) -> None:
        """``drop``, where the plan says that nothing reads the private part again: it is evicted first."""
        node = seq.node
        while node is not None and node.parent is not None and node.pins == 1:
            if not all(child.dead for child in node.children.values()):
                break
            node.dead = True
            node = node.parent
        self.drop(seq)

    def grow(self, seq: Sequence, token: int, tag: int) -> None:
        """The KV of ``token`` was computed into the next slot of ``seq.table``: the usual case of ``commit``, at a cost
        that does not depend on what is resident."""
        node, block = seq.node, seq.table[-1]
        if node is None:
            raise RuntimeError("only a resident sequence can grow")
        self.pool.write(block, seq.resident % BLOCK_SIZE, tag)
        if self.tree.may_grow(node):
            self.tree.grow(node, token, block)
        else:  # the node's end is a prompt's, or another sequence has come to it within the step
            top, node = node, self.tree.extend(seq.namespace, node, [token], seq.resident, seq.table)
            self.tree.pin(node, above=top)
            seq.node = node
        seq.resident += 1
        seq.known = max(seq.known, seq.resident)

    def unite(self, node: Node, group: SequenceOf[Sequence]) -> None:
        """Where the whole ``group`` has gone on from the end of ``node`` to the same tip, and nobody else is below,
        let ``node`` itself end there: branches that say the same leave one node, not one a token."""
        tip = group[0].node
        moved = tip is not None and tip.parent is node and tip.pins == node.pins == len(group)
        if tip is None or not moved or len(node.children) != 1 or node.parent is None:
            return
        if node.tip is None and tip.tip is None and all(seq.node is tip for seq in group):
            self.tree.absorb(node)
            for seq in group:
                seq.node = node

    def youngest(self, busy: Set[Sequence]) -> Iterator[Sequence]:
        """The holders that are not ``busy``, youngest program first. The caller may drop each as it comes."""
        kept: list[tuple[int, int, int, Sequence]] = []
        try:
            while self._by_age:
                entry = heapq.heappop(self._by_age)
                seq = entry[3]
                if seq not in self.holders:
                    continue
                if seq in busy:
                    kept.append(entry)
                    continue
                yield seq
                if seq in self.holders:
                    kept.append(entry)
        finally:
            for entry in kept:
                heapq.heappush(self._by_age, entry)

    def fork(self, seq: Sequence, child: Sequence) -> None:
        """Let ``child`` (fresh) hold everything that ``seq`` holds."""
        child.known = seq.known
        child.lost_by = seq.lost_by
        child.program = seq.program
        child.inherited = seq.resident
        if seq.node is None:
            return
        for block in seq.table:
            self.pool.add_table(block)
        child.table = list(seq.table)
        self.tree.pin(seq.node, above=None)
        self._settle(child, seq.node)

    def compact(self, seq: Sequence) -> None:
        """Let the path's nodes name this sequence's own blocks where they name other copies of the same slots."""
        node = seq.node
        while node is not None:
            first = node.start // BLOCK_SIZE
            for index in {0, len(node.blocks) - 1} if node.blocks else ():
                own = seq.table[first + index]
                covered = min(BLOCK_SIZE, node.end - (first + index) * BLOCK_SIZE)
                # a block that a copy of the step being planned fills is not written yet
                if node.blocks[index] != own and self.pool.num_written(own) >= covered:
                    self.tree.rename(node, index, own)
            node = node.parent

    def name(self, seq: Sequence, logical: int, block: int) -> None:
        """Let ``seq.table[logical]`` name ``block``, which is in use."""
        if logical == len(seq.table):
            self.pool.add_table(block)
            seq.table.append(block)
        elif seq.table[logical] != block:
            self.pool.add_table(block)
            self.pool.remove_table(seq.table[logical])
            seq.table[logical] = block

    def private_tokens(self, seq: Sequence) -> int:
        """Resident tokens on nodes that only this sequence pins: what preempting it may cost."""
        node, private = seq.node, 0
        while node is not None and node.pins == 1:
            private += len(node.tokens)
            node = node.parent
        return private

    def _settle(self, seq: Sequence, node: Node) -> None:
        seq.node = node
        seq.resident = node.end
        seq.known = max(seq.known, seq.resident)
        if seq not in self.holders:
            self.holders[seq] = None
            heapq.heappush(self._by_age, (-seq.program, -seq.born, next(self._ties), seq))
            if len(self._by_age) > 64 + 4 * len(self.holders):
                self._by_age = [(-seq.program, -seq.born, next(self._ties), seq) for seq in self.holders]
                heapq.heapify(self._by_age)

    def _mark_next_use(self, seq: Sequence) -> None:
        node = seq.node
        while node is not None and node.pins == 1:
            node.next_use = seq.next_use
            node = node.parent
