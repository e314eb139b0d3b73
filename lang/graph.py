"""The execution graph: what a program will do (planned) and what it did (recorded), in one shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from .render import to_dot, to_html, to_mermaid

NodeKind = Literal[
    "Text", "Gen", "Select", "Fork", "Join", "Split", "Scratch", "If", "Loop", "Call", "Tool", "Py", "Return"
]
EdgeKind = Literal["context", "value", "control"]


class Site(NamedTuple):
    """Where an operation is written: the call expression's (or ``+=`` statement's) first character."""

    file: str
    line: int
    """1-based."""
    column: int
    """0-based, in UTF-8 bytes, as ``ast`` and code positions count."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. In a recorded graph ``planned`` is the id of the planned node it executed, None at a break."""

    id: int
    kind: NodeKind
    label: str
    site: Site | None
    parent: int | None = None
    """Id of the enclosing Fork, Scratch, If, Loop or Call node whose body this node is in; None at the top."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able facts, e.g. ``max_tokens``, ``choices``, ``trips``, ``arm``, ``bound``, ``last_use``."""
    planned: int | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    source: int
    target: int
    kind: EdgeKind
    label: str = ""


@dataclass(frozen=True)
class Graph:
    """Nodes in program order with context (KV lineage), value and control edges."""

    name: str
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    lookup: Mapping[tuple[int | None, tuple[Site, ...]], int] = field(default_factory=dict, repr=False, compare=False)
    """Planned graphs: (scope, call sites) -> node id. See ``find``."""

    attrs: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able facts of the whole graph, e.g. ``bound``, ``constant_prefix``."""

    def find(self, scope: int | None, sites: tuple[Site, ...]) -> int | None:
        """The planned node of an executed operation.

        scope: id of the planned Fork node whose branch body is running, None in the program's own body.
        sites: call sites from the body's own frame (outermost) to the operation (innermost), one per function that
            the compiler followed into; comprehension frames are left out: the site inside the comprehension stands
            for it and for the frame around it.

        Where no site matches exactly (an interpreter without column positions) the lines decide, if only one planned
        operation of the scope has them.
        """
        found = self.lookup.get((scope, sites))
        return found if found is not None else self._by_line.get((scope, _lines(sites)))

    @cached_property
    def _by_line(self) -> Mapping[tuple[int | None, tuple[tuple[str, int], ...]], int]:
        """``lookup`` without columns, where that is still unique."""
        found: dict[tuple[int | None, tuple[tuple[str, int], ...]], set[int]] = {}
        for (scope, sites), node in self.lookup.items():
            found.setdefault((scope, _lines(sites)), set()).add(node)
        return {key: nodes.pop() for key, nodes in found.items() if len(nodes) == 1}

    def to_json(self) -> str:
        """The whole graph as JSON: ``{"name", "nodes": [...], "edges": [...]}``; files are base names."""
        nodes = [
            {
                "id": n.id,
                "kind": n.kind,
                "label": n.label,
                "file": n.site.file.replace("\\", "/").rsplit("/", 1)[-1] if n.site else None,
                "line": n.site.line if n.site else None,
                "parent": n.parent,
                "attrs": dict(n.attrs),
                **({"planned": n.planned} if n.planned is not None else {}),
            }
            for n in self.nodes
        ]
        edges = [
            {"source": e.source, "target": e.target, "kind": e.kind, **({"label": e.label} if e.label else {})}
            for e in self.edges
        ]
        whole: dict[str, Any] = {"name": self.name, "nodes": nodes, "edges": edges}
        if self.attrs:
            whole["attrs"] = {key: value for key, value in self.attrs.items() if key in _PORTABLE}
        return json.dumps(whole, indent=2, default=str, ensure_ascii=False)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return to_mermaid(self)

    def to_dot(self) -> str:
        """The graph in Graphviz's language."""
        return to_dot(self)

    def _repr_html_(self) -> str:
        """The graph as an SVG picture in HTML, for notebooks and files."""
        return to_html(self)


_PORTABLE = frozenset({"bound", "constant_prefix", "line"})
"""Attributes of a graph that do not depend on where its file lies."""


def _lines(sites: tuple[Site, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((site.file, site.line) for site in sites)
