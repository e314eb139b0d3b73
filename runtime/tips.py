"""The logits that follow recently evaluated prompts: a later sampler at the same tip pays no row for them."""

from __future__ import annotations

from collections import OrderedDict

import torch

from .radix_tree import Node

MAX_BYTES = 16 << 20
"""Bytes of logits that are kept: 81 rows of a vocabulary of 49,152 in fp32."""


class TipLogits:
    """Rows by the tree node that ends at the tip, the least recently used dropped first.

    Only the tip at which a call starts is worth a row: a branch can be forked or asked again there, and so can an equal
    prompt. What is generated goes to a node below it. A node that loses its tail loses its row with it.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._nodes: OrderedDict[Node, int] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def keep(self, node: Node, row: torch.Tensor) -> None:
        """Remember ``row`` ``[vocab]``, by value, as what follows the end of ``node``."""
        size = row.numel() * row.element_size()
        if node.tip is not None or size > self._max_bytes:
            return
        self._num_bytes += size - self._nodes.pop(node, 0)
        self._nodes[node] = size
        node.tip = row.clone()
        while self._num_bytes > self._max_bytes:
            old, size = self._nodes.popitem(last=False)
            self._num_bytes -= size
            old.tip = None

    def use(self, node: Node | None) -> torch.Tensor | None:
        """The row that follows the end of ``node``, where it is known."""
        if node is None or node.tip is None:
            return None
        self._nodes.move_to_end(node)
        return node.tip
