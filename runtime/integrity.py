"""A walk of the whole KV ledger that trusts no counter, and names the invariant that does not hold.

G1 free + cached + referenced = pool size, no id twice. G2 a block's count = the tables, pins, queued copies and tree
nodes that name it. G3 free blocks are named by nothing. G4 a resident child has a resident parent. G5 a node's tokens
are the tokens its blocks were computed from. G6 pins >= 0, a parent's >= its child's. G7 counters = a fresh walk. G8 a
slot written by the last step was unwritten, and every table that covers it holds its writer's tokens.
"""

from __future__ import annotations

from collections import Counter

from ..kernels.layout import BLOCK_SIZE
from .block_pool import BlockPool, blocks_for
from .kv_cache import KVCache
from .radix_tree import Node


def check_integrity(cache: KVCache) -> None:
    """Raise RuntimeError on the first broken invariant. Call between steps; costs a pass over all resident tokens."""
    _Walk(cache).run()


class _Walk:
    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.pool: BlockPool = cache.pool
        self.tables: Counter[int] = Counter()
        self.copies: Counter[int] = Counter()
        self.pins: Counter[int] = Counter()
        self.nodes: Counter[int] = Counter()
        self.num_nodes = 0
        self.num_tokens = 0
        self.idle_leaves: set[int] = set()
        self.path_pins: Counter[int] = Counter()

    def run(self) -> None:
        for node in self.cache.tree.nodes():
            self._check_links(node)
        self._count_holders()
        for namespace, root in self.cache.tree.roots.items():
            self._visit(root, [hash(namespace)])
        self._check_sequences()
        self._check_blocks()
        self._check_counters()
        self._check_last_writes()

    def _count_holders(self) -> None:
        for copy in self.pool.pending_copies:
            self.copies[copy.source] += 1
            self.copies[copy.target] += 1
        for seq in self.cache.residency.holders:
            self.tables.update(seq.table)
            node = seq.node
            while node is not None:
                self.path_pins[id(node)] += 1
                node = node.parent

    def _check_links(self, node: Node) -> None:
        if node.parent is None:
            is_root = any(root is node for root in self.cache.tree.roots.values())
            _require(is_root and node.start == 0 and not node.tokens, "G4", "a node without a parent is not a root")
        for token, child in node.children.items():
            where = f"node at {child.start}..{child.end}"
            _require(child.parent is node, "G4", f"{where}: its parent does not name it")
            _require(child.start == node.end, "G4", f"{where}: its parent ends at {node.end}")
            _require(bool(child.tokens) and child.tokens[0] == token, "G4", f"{where}: filed under token {token}")

    def _visit(self, root: Node, start_tags: list[int]) -> None:
        stack = [(root, start_tags)]
        while stack:
            node, tags = stack.pop()
            tags = self._check_node(node, tags)
            for child in node.children.values():
                where = f"node at {child.start}..{child.end}"
                _require(node.pins >= child.pins, "G6", f"{where}: {child.pins} pins, its parent {node.pins}")
                stack.append((child, tags))

    def _check_node(self, node: Node, tags: list[int]) -> list[int]:
        """``tags`` are the lineage tags of positions -1..node.start-1; returns them up to the node's end."""
        where = f"node at {node.start}..{node.end}"
        _require(node.pins >= 0, "G6", f"{where}: {node.pins} pins")
        held = self.path_pins[id(node)]
        _require(node.pins == held, "G6", f"{where}: {node.pins} pins, but {held} sequences go through it")
        if node.parent is None:
            return tags
        tags = list(tags)
        for token in node.tokens:
            tags.append(hash((tags[-1], token)))
        first = node.start // BLOCK_SIZE
        expected = blocks_for(node.end) - first
        _require(len(node.blocks) == expected, "G4", f"{where}: {len(node.blocks)} blocks, {expected} expected")
        for index, block in enumerate(node.blocks):
            begin = (first + index) * BLOCK_SIZE
            self._check_slots(block, tags[begin + 1 : min(begin + BLOCK_SIZE, node.end) + 1], where)
            self.nodes[block] += 1
            if node.pins:
                self.pins[block] += 1
        self.num_nodes += 1
        self.num_tokens += len(node.tokens)
        if not node.children and not node.pins:
            self.idle_leaves.add(id(node))
        return tags

    def _check_slots(self, block: int, tags: list[int], where: str) -> None:
        written = self.pool.num_written(block)
        _require(written >= len(tags), "G5", f"{where}: block {block} has {written} written slots of {len(tags)}")
        for offset, tag in enumerate(tags):
            _require(
                self.pool.tag(block, offset) == tag, "G5", f"{where}: slot {offset} of block {block} holds other tokens"
            )

    def _check_sequences(self) -> None:
        for seq in self.cache.residency.holders:
            where = f"sequence {seq.born}"
            _require(
                seq.node is not None and seq.node.end == seq.resident, "G4", f"{where}: not at the end of its node"
            )
            size = blocks_for(seq.resident)
            _require(len(seq.table) == size, "G2", f"{where}: a table of {len(seq.table)} blocks, {size} expected")
            path: list[Node] = []
            node = seq.node
            while node is not None:
                path.append(node)
                node = node.parent
            root = path[-1]
            _require(
                self.cache.tree.roots.get(seq.namespace) is root, "G4", f"{where}: its path does not reach the root"
            )
            tags = [hash(seq.namespace)]
            for part in reversed(path):
                for token in part.tokens:
                    tags.append(hash((tags[-1], token)))
            for logical, block in enumerate(seq.table):
                begin = logical * BLOCK_SIZE
                self._check_slots(block, tags[begin + 1 : begin + BLOCK_SIZE + 1], where)

    def _check_blocks(self) -> None:
        free = self.pool.free_blocks()
        _require(len(set(free)) == len(free), "G1", "a block is in the free list twice")
        is_free = set(free)
        referenced = cached = 0
        for block in range(self.pool.num_blocks):
            walked = (self.tables[block], self.copies[block], self.pins[block], self.nodes[block])
            named = any(walked)
            _require(not (named and block in is_free), "G3", f"block {block} is free, but named by {_kinds(walked)}")
            counted = self.pool.counts(block)
            _require(
                counted == walked, "G2", f"block {block} counts {_kinds(counted)}, but the walk found {_kinds(walked)}"
            )
            _require(named or block in is_free, "G1", f"block {block} is neither free nor named by anything")
            _require(
                named or self.pool.num_written(block) == 0,
                "G3",
                f"block {block} is free, but has written slots on record",
            )
            if any(walked[:3]):
                referenced += 1
            elif named:
                cached += 1
        total = len(free) + cached + referenced
        _require(
            total == self.pool.num_blocks, "G1", f"free + cached + referenced = {total}, not {self.pool.num_blocks}"
        )
        _require(self.pool.num_cached == cached, "G7", f"{self.pool.num_cached} blocks cached, the walk found {cached}")
        _require(
            self.pool.num_referenced == referenced,
            "G7",
            f"{self.pool.num_referenced} blocks referenced, the walk found {referenced}",
        )

    def _check_counters(self) -> None:
        tree = self.cache.tree
        _require(tree.num_nodes == self.num_nodes, "G7", f"{tree.num_nodes} nodes, the walk found {self.num_nodes}")
        _require(
            tree.num_tokens == self.num_tokens, "G7", f"{tree.num_tokens} tokens, the walk found {self.num_tokens}"
        )
        standing = tree.num_inserted - tree.num_forgotten
        _require(
            standing == self.num_tokens, "G7", f"{standing} tokens inserted and not forgotten, {self.num_tokens} found"
        )
        missing = self.idle_leaves - self.cache.evictor.candidates()
        _require(not missing, "G7", f"{len(missing)} unpinned leaves could never be evicted")

    def _check_last_writes(self) -> None:
        slots = [(block, offset) for block, offset, _ in self.pool.last_writes]
        _require(len(set(slots)) == len(slots), "G8", "one step wrote a slot twice")
        for block, offset, tag in self.pool.last_writes:
            if offset < self.pool.num_written(block):
                _require(self.pool.tag(block, offset) == tag, "G8", f"slot {offset} of block {block} was written over")


def _kinds(counts: tuple[int, int, int, int]) -> str:
    return "{} tables, {} copies, {} pins, {} nodes".format(*counts)


def _require(holds: bool, invariant: str, message: str) -> None:
    if not holds:
        raise RuntimeError(f"{invariant}: {message}")
