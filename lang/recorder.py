"""Records what a run really did, as the same kind of graph as the plan, each node naming its planned node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..runtime.metrics import Usage
from .graph import Edge, EdgeKind, Graph, Node, NodeKind, Site

_NONE: Mapping[str, Any] = MappingProxyType({})


class Recorder:
    """Grows the recorded graph of one run. Interpreter's thread only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []

    def add(
        self,
        kind: NodeKind,
        label: str,
        site: Site | None,
        *,
        parent: int | None = None,
        planned: int | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> int:
        """Append a node; returns its id."""
        node = Node(len(self._nodes), kind, label, site, parent, attrs or _NONE, planned)
        self._nodes.append(node)
        return node.id

    def charge(self, node: int, usage: Usage) -> None:
        """What the operation of a node used, as the attribute ``usage`` of the node: its counts that are not zero."""
        used = self._nodes[node]
        self._nodes[node] = replace(used, attrs={**used.attrs, "usage": usage.as_dict()})

    def connect(self, source: int | None, target: int, kind: EdgeKind, label: str = "") -> None:
        """Append an edge; none from an operation that was not recorded."""
        if source is not None:
            self._edges.append(Edge(source, target, kind, label))

    def graph(self) -> Graph:
        """The graph so far."""
        return Graph(self.name, tuple(self._nodes), tuple(self._edges))
