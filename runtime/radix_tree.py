"""The prefix cache: a radix tree over token ids whose nodes name the blocks that hold their KV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ..kernels.layout import BLOCK_SIZE
from .block_pool import BlockPool, blocks_for


class Node:
    """A run of tokens at positions ``start..end-1`` below its parent.

    ``blocks[k]`` is the block of logical block ``start // 16 + k``; it holds the whole path's slots of that logical
    block up to ``end``. Two nodes that meet inside a block therefore may both name it, or name two copies of it.
    """

    __slots__ = (
        "blocks",
        "children",
        "dead",
        "last_access",
        "next_use",
        "parent",
        "pins",
        "stamp",
        "start",
        "tip",
        "tokens",
    )

    def __init__(self, parent: Node | None, start: int, tokens: list[int], blocks: list[int]) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.blocks = blocks
        self.children: dict[int, Node] = {}
        self.pins = 0
        """Sequences whose resident path goes through this node."""
        self.dead = False
        """Nothing will read it again, by the plan."""
        self.next_use: int | None = None
        """Clock of the next known use; None = unknown."""
        self.last_access = 0
        self.stamp = 0
        """Version of the node's entry in the eviction queue."""
        self.tip: torch.Tensor | None = None
        """[vocab] logits that follow the node's last token, while ``TipLogits`` keeps them."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class RadixTree:
    """One subtree per namespace. Matching is by token, storage by block; a split copies nothing."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.roots: dict[str, Node] = {}
        self.num_nodes = 0
        """Nodes, roots not counted."""
        self.num_tokens = 0
        self.num_inserted = 0
        """Tokens ever inserted."""
        self.num_forgotten = 0
        """Tokens ever evicted or flushed."""
        self.clock = 0
        self.on_idle_leaf: Callable[[Node], None] = lambda node: None
        """Told of every leaf that nothing pins (any more)."""

    def nodes(self) -> Iterator[Node]:
        """Every node, parents before children, roots included."""
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def descend(self, namespace: str, node: Node | None, tokens: Sequence[int], start: int) -> Node | None:
        """The node that ends where the longest match of ``tokens[start:]`` below ``node`` ends.

        ``node`` ends at ``start`` (None: the namespace's root, ``start`` 0). An edge that matches in part is split, so
        that the match ends at a node's end. Returns ``node`` itself where nothing matches.
        """
        here = self.roots.get(namespace) if node is None else node
        if here is None:
            return None
        position = start
        while position < len(tokens):
            child = here.children.get(tokens[position])
            if child is None:
                break
            common = _common_prefix(child.tokens, tokens, position)
            if common < len(child.tokens):
                child = self.split(child, child.start + common)
            child.dead = False
            here = child
            position += common
        return node if position == start else here

    def match(self, namespace: str, node: Node | None, tokens: Sequence[int], start: int) -> tuple[Node | None, int]:
        """How far ``descend`` would get, without a change: the node in which the match ends, and its length."""
        here = self.roots.get(namespace) if node is None else node
        position = start
        while here is not None and position < len(tokens):
            child = here.children.get(tokens[position])
            if child is None:
                break
            common = _common_prefix(child.tokens, tokens, position)
            here = child
            position += common
            if common < len(child.tokens):
                break
        return here, position

    def extend(
        self, namespace: str, node: Node | None, tokens: Sequence[int], start: int, table: Sequence[int]
    ) -> Node:
        """Insert ``tokens`` (computed at ``start..``) below ``node`` and return the node that ends at their end.

        ``table`` is the block table of the sequence that computed them; ``node`` is pinned by that sequence (None:
        nothing is resident yet). Tokens that are there already are matched, not inserted. The caller moves its pin.
        """
        here = node
        if here is None:
            here = self.roots.get(namespace)
            if here is None:
                here = self.roots[namespace] = Node(None, 0, [], [])
        position = start
        index = 0
        while index < len(tokens):
            child = here.children.get(tokens[index])
            if child is None:
                if here is node and self.may_grow(here):
                    self._grow(here, tokens, table)
                    return here
                return self._add_leaf(here, list(tokens[index:]), table)
            common = _common_prefix(child.tokens, tokens, index)
            if common < len(child.tokens):
                child = self.split(child, child.start + common)
            child.dead = False
            here = child
            index += common
            position += common
        return here

    def split(self, node: Node, at: int) -> Node:
        """Cut ``node`` at position ``at``: ``node`` keeps its end, the new upper part is returned."""
        parent = node.parent
        if parent is None or not node.start < at < node.end:
            raise RuntimeError(f"cannot split positions {node.start}..{node.end} at {at}")
        cut = at - node.start
        first = node.start // BLOCK_SIZE
        upper = Node(parent, node.start, node.tokens[:cut], node.blocks[: blocks_for(at) - first])
        upper.pins, upper.dead = node.pins, node.dead
        upper.next_use, upper.last_access = node.next_use, node.last_access
        node.tokens = node.tokens[cut:]
        node.blocks = node.blocks[at // BLOCK_SIZE - first :]
        node.start = at
        node.parent = upper
        upper.children[node.tokens[0]] = node
        parent.children[upper.tokens[0]] = upper
        self.num_nodes += 1
        if at % BLOCK_SIZE:
            self._name(upper.blocks[-1], upper.pins)
        return upper

    def pin(self, node: Node, above: Node | None) -> None:
        """Pin the path from ``node`` up to, not including, ``above`` (None: the root included)."""
        here: Node | None = node
        while here is not above:
            if here is None:
                raise RuntimeError("pin: the upper node is not an ancestor")
            here.pins += 1
            if here.pins == 1:
                for block in here.blocks:
                    self.pool.add_pin(block)
            here = here.parent

    def unpin(self, node: Node, above: Node | None) -> None:
        """Undo ``pin``; the nodes that nothing pins any more count as used just now."""
        self.clock += 1
        here: Node | None = node
        while here is not above:
            if here is None:
                raise RuntimeError("unpin: the upper node is not an ancestor")
            if here.pins <= 0:
                raise RuntimeError(f"unpin of positions {here.start}..{here.end}, which nothing pins")
            here.pins -= 1
            up = here.parent
            if here.pins == 0:
                for block in here.blocks:
                    self.pool.remove_pin(block)
                here.last_access = self.clock
                if not here.children:
                    self._leaf_is_idle(here)
            here = up

    def trim_tail(self, leaf: Node) -> None:
        """Forget the tokens in the last block of an unpinned leaf, and the leaf with its last token."""
        if leaf.pins or leaf.children or leaf.parent is None:
            raise RuntimeError("only an unpinned leaf can be evicted")
        cut = max(leaf.start, (leaf.end - 1) // BLOCK_SIZE * BLOCK_SIZE)
        self.num_tokens -= leaf.end - cut
        self.num_forgotten += leaf.end - cut
        leaf.tip = None
        first = leaf.tokens[0]
        del leaf.tokens[cut - leaf.start :]
        self.pool.remove_node(leaf.blocks.pop())
        if leaf.tokens:
            return
        parent = leaf.parent
        del parent.children[first]
        leaf.parent = None
        leaf.stamp += 1
        self.num_nodes -= 1
        if not parent.children and not parent.pins:
            self._leaf_is_idle(parent)

    def clear(self, namespace: str) -> None:
        """Forget everything under one root, which nothing may pin. A namespace that is not there is empty already."""
        root = self.roots.get(namespace)
        if root is None:
            return
        nodes = [root]
        for node in nodes:
            nodes.extend(node.children.values())
        for node in reversed(nodes):
            while node.tokens:
                self.trim_tail(node)
        self.roots.pop(namespace, None)

    @staticmethod
    def may_grow(node: Node) -> bool:
        """Whether new tokens may be added to the node itself: a leaf with one owner, whose end needs no keeping."""
        return node.pins == 1 and not node.children and node.tip is None and node.parent is not None

    def grow(self, leaf: Node, token: int, block: int) -> None:
        """Add one computed token, in ``block``, to a leaf that ``may_grow``."""
        if leaf.end % BLOCK_SIZE == 0:
            leaf.blocks.append(block)
            self._name(block, leaf.pins)
        elif leaf.blocks[-1] != block:
            self.rename(leaf, len(leaf.blocks) - 1, block)  # its owner went on in a private copy
        leaf.tokens.append(token)
        self.num_tokens += 1
        self.num_inserted += 1

    def absorb(self, node: Node) -> None:
        """Undo a split: let ``node`` take over its only child, which as many sequences pin."""
        (child,) = node.children.values()
        if child.pins != node.pins or node.parent is None or node.tip is not None or child.tip is not None:
            raise RuntimeError("only a child with all the pins of its parent, neither of them a tip, can be absorbed")
        if node.end % BLOCK_SIZE:
            if node.blocks[-1] != child.blocks[0]:
                self.rename(node, len(node.blocks) - 1, child.blocks[0])
            self._unname(child.blocks.pop(0), child.pins)
        node.blocks += child.blocks
        node.tokens += child.tokens
        node.children = child.children
        for grandchild in node.children.values():
            grandchild.parent = node
        child.parent = None
        child.stamp += 1
        self.num_nodes -= 1

    def rename(self, node: Node, index: int, block: int) -> None:
        """Let ``node`` name ``block`` instead of ``node.blocks[index]``; both hold the same slots up to its end."""
        old = node.blocks[index]
        self._name(block, node.pins)
        node.blocks[index] = block
        self._unname(old, node.pins)

    def _grow(self, leaf: Node, tokens: Sequence[int], table: Sequence[int]) -> None:
        last = len(leaf.blocks) - 1
        first = leaf.start // BLOCK_SIZE
        if leaf.end % BLOCK_SIZE and leaf.blocks[last] != table[first + last]:
            self.rename(leaf, last, table[first + last])  # its owner went on in a private copy
        leaf.tokens.extend(tokens)
        self.num_tokens += len(tokens)
        self.num_inserted += len(tokens)
        for block in table[first + last + 1 : blocks_for(leaf.end)]:
            leaf.blocks.append(block)
            self._name(block, leaf.pins)

    def _add_leaf(self, parent: Node, tokens: list[int], table: Sequence[int]) -> Node:
        start = parent.end
        leaf = Node(parent, start, tokens, list(table[start // BLOCK_SIZE : blocks_for(start + len(tokens))]))
        leaf.last_access = self.clock
        parent.children[tokens[0]] = leaf
        self.num_nodes += 1
        self.num_tokens += len(tokens)
        self.num_inserted += len(tokens)
        for block in leaf.blocks:
            self.pool.add_node(block)
        return leaf

    def _name(self, block: int, pins: int) -> None:
        self.pool.add_node(block)
        if pins:
            self.pool.add_pin(block)

    def _unname(self, block: int, pins: int) -> None:
        if pins:
            self.pool.remove_pin(block)
        self.pool.remove_node(block)

    def _leaf_is_idle(self, node: Node) -> None:
        if node.parent is not None:
            self.on_idle_leaf(node)
            return
        for namespace, root in list(self.roots.items()):
            if root is node:
                del self.roots[namespace]


def _common_prefix(run: Sequence[int], tokens: Sequence[int], offset: int) -> int:
    """Length of the common prefix of ``run`` and ``tokens[offset:]``; whole slices are compared first, as C does."""
    limit = min(len(run), len(tokens) - offset)
    if run[:limit] == tokens[offset : offset + limit]:
        return limit
    low, step = 0, 64
    while low < limit and run[low : low + step] == tokens[offset + low : offset + low + step]:
        low += step
    while low < limit and run[low] == tokens[offset + low]:
        low += 1
    return min(low, limit)
