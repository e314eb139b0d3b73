"""Grows a planned graph: nodes in regions, edges, and the keys by which executed operations find them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..graph import Edge, EdgeKind, Node, NodeKind, Site

Chain = tuple[tuple[Site, ...], ...]
"""Call sites, outermost first; for each the sites that its instruction may report."""


@dataclass(slots=True)
class Draft:
    """A node while the graph grows."""

    id: int
    kind: NodeKind
    label: str
    site: Site | None
    parent: int | None
    attrs: dict[str, Any]
    lineages: frozenset[int] = frozenset()
    """Contexts that it is an operation on."""
    in_finally: bool = False
    """What follows it may not come: a path that has ended may be running this on its way out."""


@dataclass(slots=True)
class Region:
    """The node whose body is being read, and the arm of it."""

    node: int
    arm: str | None = None
    opened: bool = False


@dataclass(slots=True)
class Checkpoint:
    """How much there was; see ``GraphBuilder.rollback``."""

    nodes: int
    edges: int
    keys: int
    ended: int
    counters: tuple[int, int]
    opened: bool


@dataclass(slots=True)
class GraphBuilder:
    """Nodes and edges of one planned graph. Ids are positions, so what is rolled back is numbered again alike."""

    nodes: list[Draft] = field(default_factory=list)
    edges: dict[tuple[int, int, EdgeKind], str] = field(default_factory=dict)
    keys: list[tuple[int | None, Chain, int]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    """Lineages whose private KV dies within the program: branches and scratches."""
    regions: list[Region] = field(default_factory=list)
    lineages: int = 0
    frames: int = 0

    def add(self, kind: NodeKind, label: str, site: Site | None, **attrs: Any) -> int:
        """Append a node to the innermost region; the first of an arm or body gets a control edge."""
        region = self.regions[-1] if self.regions else None
        node = len(self.nodes)
        if region is not None and region.arm is not None:
            attrs["arm"] = region.arm
        self.nodes.append(Draft(node, kind, label, site, region.node if region else None, attrs))
        if region is not None and not region.opened:
            region.opened = True
            if self.nodes[region.node].kind in {"If", "Loop"}:
                self.connect((region.node,), node, "control", region.arm or "body")
        return node

    def connect(self, sources: Iterable[int], target: int, kind: EdgeKind, label: str = "") -> None:
        """Edges from every source, each once."""
        for source in sorted(sources):
            self.edges.setdefault((source, target, kind), label)

    def register(self, scope: int | None, chain: Chain, node: int) -> None:
        """Executed operations of this scope and chain are ``node``."""
        self.keys.append((scope, chain, node))

    @contextmanager
    def region(self, node: int, arm: str | None = None) -> Iterator[None]:
        """Nodes added meanwhile belong to ``node``'s body."""
        self.regions.append(Region(node, arm))
        try:
            yield
        finally:
            self.regions.pop()

    def new_lineage(self) -> int:
        """A context's number."""
        self.lineages += 1
        return self.lineages - 1

    def new_frame(self) -> int:
        """A function frame's number."""
        self.frames += 1
        return self.frames - 1

    def checkpoint(self) -> Checkpoint:
        """A point to which ``rollback`` returns."""
        opened = self.regions[-1].opened if self.regions else False
        counters = (self.lineages, self.frames)
        return Checkpoint(len(self.nodes), len(self.edges), len(self.keys), len(self.ended), counters, opened)

    def rollback(self, point: Checkpoint) -> None:
        """Forget everything added since ``point``; the regions open now must be those of then."""
        del self.nodes[point.nodes :]
        del self.keys[point.keys :]
        del self.ended[point.ended :]
        while len(self.edges) > point.edges:
            self.edges.popitem()
        self.lineages, self.frames = point.counters
        if self.regions:
            self.regions[-1].opened = point.opened

    def lookup(self) -> dict[tuple[int | None, tuple[Site, ...]], int]:
        """(scope, sites) -> node. A key that two operations share is left out: no node is better than a wrong one."""
        found: dict[tuple[int | None, tuple[Site, ...]], int] = {}
        shared = set()
        for scope, chain, node in self.keys:
            for sites in itertools.product(*chain):
                if found.setdefault((scope, sites), node) != node:
                    shared.add((scope, sites))
        return {key: node for key, node in found.items() if key not in shared}

    def finished(self) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
        """The graph's nodes and edges."""
        nodes = tuple(Node(d.id, d.kind, d.label, d.site, d.parent, d.attrs) for d in self.nodes)
        return nodes, tuple(Edge(s, t, kind, label) for (s, t, kind), label in self.edges.items())
