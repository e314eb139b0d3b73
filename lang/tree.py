"""A graph as an indented tree for terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .regions import Regions

if TYPE_CHECKING:
    from .graph import Graph, Node


def to_text(graph: Graph) -> str:
    """An indented tree: kind, label, facts, line; arms by their label."""
    bound = graph.attrs.get("bound")
    lines = [
        one_line(graph.name) if not bound else f"{one_line(graph.name)}: at most {bound} tokens on its own context"
    ]
    lines += _tree(Regions(graph), Regions(graph).top, "")
    return "\n".join(lines) + "\n"


def _tree(regions: Regions, nodes: Sequence[Node], indent: str) -> Iterator[str]:
    for i, node in enumerate(nodes):
        last = i == len(nodes) - 1
        facts = one_line(", ".join(facts_of(node)))
        line = f":{node.site.line}" if node.site is not None else ""
        yield f"{indent}{'└─' if last else '├─'} {node.kind:7} {one_line(node.label)}{line and f'  {line}'}" + (
            f"  ({facts})" if facts else ""
        )
        deeper = indent + ("   " if last else "│  ")
        arms = regions.arms(node)
        for j, (arm, inner) in enumerate(arms):
            if not arm:
                yield from _tree(regions, inner, deeper)
                continue
            end = j == len(arms) - 1
            yield f"{deeper}{'└─' if end else '├─'} {one_line(arm)}:"
            yield from _tree(regions, inner, deeper + ("   " if end else "│  "))


def facts_of(node: Node) -> list[str]:
    """What a picture says of a node besides its label."""
    attrs = node.attrs
    facts = []
    if attrs.get("constant_prefix"):
        facts.append("constant prefix")
    if node.kind == "Loop":
        trips = attrs.get("trips")
        unknown = "no known end" if attrs.get("unbounded") else "passes not known"
        facts.append(f"{trips} passes" if trips is not None else unknown)
    if attrs.get("model_dependent"):
        facts.append("on the model's answer")
    if attrs.get("until"):
        facts.append(f"until {attrs['until']}")
    if attrs.get("coming_fork"):
        facts.append(f"{attrs['coming_fork']} branches come")
    if attrs.get("last_use"):
        facts.append("last use")
    if attrs.get("recursive"):
        facts.append("recursive")
    if attrs.get("reason"):
        facts.append(str(attrs["reason"]))
    return facts


def one_line(text: str) -> str:
    """Text on one line, without characters that would move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in text)
