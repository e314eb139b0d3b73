"""A graph as nested regions: what each fork, loop, arm, scratch and call holds, in program order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .graph import Graph, Node


class Regions:
    """Nodes by the region that they are in."""

    def __init__(self, graph: Graph) -> None:
        self._children: dict[int | None, list[Node]] = {}
        for node in graph.nodes:
            self._children.setdefault(node.parent, []).append(node)

    @property
    def top(self) -> list[Node]:
        """Nodes in the program's own body."""
        return self._children.get(None, [])

    def inside(self, node: Node) -> list[Node]:
        """Nodes directly in a node's body."""
        return self._children.get(node.id, [])

    def arms(self, node: Node) -> list[tuple[str, list[Node]]]:
        """The body of a node by its arms, in program order; the arm of a body without arms is ""."""
        found: dict[str, list[Node]] = {}
        for inner in self.inside(node):
            found.setdefault(str(inner.attrs.get("arm", "")), []).append(inner)
        return list(found.items())


def region_title(node: Node) -> str:
    """What a region's body is."""
    attrs = node.attrs
    match node.kind:
        case "Fork":
            count = attrs.get("branches")
            each = "each context" if attrs.get("parallel") else "each branch"
            return f"{each} of {count}" if count is not None else each
        case "Loop":
            trips = attrs.get("trips")
            return f"{trips} passes" if trips is not None else "each pass"
        case "Scratch":
            return "thrown away afterwards"
        case "Call":
            return "on a context of its own"
        case _:
            return ""
