"""Pictures of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .graph import Graph


def to_mermaid(graph: Graph) -> str:
    return graph.name


def to_dot(graph: Graph) -> str:
    return graph.name


def to_html(graph: Graph) -> str:
    return graph.name


def to_text(graph: Graph) -> str:
    """An indented tree for terminals."""
    lines = []
    depth: dict[int | None, int] = {None: 0}
    for n in graph.nodes:
        depth[n.id] = depth[n.parent] + 1
        lines.append(f"{'  ' * depth[n.parent]}{n.id} {n.kind} {n.label} {dict(n.attrs)}")
    return "\n".join(lines)
