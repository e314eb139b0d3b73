"""Pictures of a graph: Mermaid, Graphviz, SVG in HTML, and an indented tree for terminals. The same graph always gives
the same text; whatever a label holds, it is shown as it is and cannot end the picture's own syntax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .regions import Regions, region_title
from .svg import FILLS, to_html
from .tree import one_line, to_text

if TYPE_CHECKING:
    from .graph import Graph, Node

__all__ = ["to_dot", "to_html", "to_mermaid", "to_text"]

_MERMAID_SHAPES = {
    "Text": ('["', '"]'),
    "Gen": ('(["', '"])'),
    "Select": ('{{"', '"}}'),
    "Fork": ('[/"', '"\\]'),
    "Join": ('[\\"', '"/]'),
    "Split": ('[/"', '"\\]'),
    "Scratch": ('("', '")'),
    "If": ('{"', '"}'),
    "Loop": ('("', '")'),
    "Call": ('[["', '"]]'),
    "Tool": ('[/"', '"/]'),
    "Py": ('>"', '"]'),
    "Return": ('(["', '"])'),
}
_DOT_SHAPES = {
    "Text": "box",
    "Gen": "oval",
    "Select": "hexagon",
    "Fork": "trapezium",
    "Join": "invtrapezium",
    "Split": "trapezium",
    "Scratch": "box",
    "If": "diamond",
    "Loop": "box",
    "Call": "component",
    "Tool": "parallelogram",
    "Py": "note",
    "Return": "oval",
}
_MERMAID_ESCAPES = {
    ord(c): f"#{name};"
    for c, name in {'"': "quot", "&": "amp", "<": "lt", ">": "gt", "#": "35", "`": "96", "\\": "92", "%": "37"}.items()
}
_DOT_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\"}
_ARROWS = {"context": "-->", "value": "-.->", "control": "-->"}


def to_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart: regions are subgraphs; context edges solid, value edges dotted, control edges thin."""
    lines = ["flowchart TD", *_mermaid_nodes(Regions(graph), Regions(graph).top, "  ")]
    frames = [line.split()[1].partition("[")[0] for line in lines if line.lstrip().startswith("subgraph ")]
    thin = []
    for number, edge in enumerate(graph.edges):
        label = f'|"{_mermaid(edge.label)}"|' if edge.label else ""
        lines.append(f"  n{edge.source} {_ARROWS[edge.kind]}{label} n{edge.target}")
        if edge.kind == "control":
            thin.append(str(number))
    if thin:
        lines.append(f"  linkStyle {','.join(thin)} stroke:#999,stroke-width:1px")
    for kind in dict.fromkeys(node.kind for node in graph.nodes):
        border = "stroke:#888,stroke-dasharray:4 3" if kind == "Py" else "stroke:#555"
        lines.append(f"  classDef {kind} fill:{FILLS[kind]},{border},color:#222")
    if frames:
        lines.append("  classDef region fill:#fcfbf8,stroke:#bbb,color:#777")
        lines.append(f"  class {','.join(frames)} region")
    return "\n".join(lines) + "\n"


def _mermaid_nodes(regions: Regions, nodes: Sequence[Node], indent: str) -> Iterator[str]:
    for node in nodes:
        start, end = _MERMAID_SHAPES[node.kind]
        own = f"n{node.id}{start}{_mermaid(_label(node))}{end}:::{node.kind}"
        if not regions.inside(node):
            yield f"{indent}{own}"
            continue
        yield f'{indent}subgraph r{node.id}["{_mermaid(region_title(node)) or " "}"]'
        yield f"{indent}  {own}"
        for i, (arm, inner) in enumerate(regions.arms(node)):
            if not arm:
                yield from _mermaid_nodes(regions, inner, indent + "  ")
                continue
            yield f'{indent}  subgraph r{node.id}a{i}[" "]'
            yield from _mermaid_nodes(regions, inner, indent + "    ")
            yield f"{indent}  end"
        yield f"{indent}end"


def to_dot(graph: Graph) -> str:
    """Graphviz's language: regions are clusters; context edges solid, value edges dotted, control edges thin."""
    lines = [
        f'digraph "{_dot(graph.name)}" {{',
        '  node [fontname="Helvetica", fontsize=11, style="filled", color="#555555"];',
        '  edge [fontname="Helvetica", fontsize=9];',
        *_dot_nodes(Regions(graph), Regions(graph).top, "  "),
    ]
    for edge in graph.edges:
        style = {
            "context": "penwidth=1.4",
            "value": 'style=dotted, color="#3a6ea5", constraint=false',
            "control": 'color="#999999", penwidth=0.7, arrowsize=0.6',
        }[edge.kind]
        label = f', label="{_dot(edge.label)}"' if edge.label else ""
        lines.append(f"  n{edge.source} -> n{edge.target} [{style}{label}];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_nodes(regions: Regions, nodes: Sequence[Node], indent: str) -> Iterator[str]:
    for node in nodes:
        extra = ', style="filled,dashed"' if node.kind == "Py" else ""
        own = (
            f'n{node.id} [label="{_dot(_label(node))}", shape={_DOT_SHAPES[node.kind]}, '
            f'fillcolor="{FILLS[node.kind]}"{extra}];'
        )
        if not regions.inside(node):
            yield f"{indent}{own}"
            continue
        yield f"{indent}subgraph cluster_{node.id} {{"
        yield f'{indent}  label="{_dot(region_title(node))}"; style=rounded; color="#999999"; fontsize=10;'
        yield f"{indent}  {own}"
        for i, (arm, inner) in enumerate(regions.arms(node)):
            if not arm:
                yield from _dot_nodes(regions, inner, indent + "  ")
                continue
            yield f"{indent}  subgraph cluster_{node.id}_{i} {{"
            yield f'{indent}    label=""; style=dashed; color="#bbbbbb";'
            yield from _dot_nodes(regions, inner, indent + "    ")
            yield f"{indent}  }}"
        yield f"{indent}}}"


def _label(node: Node) -> str:
    return f"{node.label}  :{node.site.line}" if node.site is not None else node.label


def _mermaid(text: str) -> str:
    return one_line(text).translate(_MERMAID_ESCAPES)


def _dot(text: str) -> str:
    return one_line(text).translate(_DOT_ESCAPES)
