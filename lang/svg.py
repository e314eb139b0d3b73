"""A graph as an SVG picture in HTML, drawn here: no script, no network, no file beside it.

The flow runs from top to bottom. A region is a frame around its body; arms stand side by side. An edge to the next
operation is a straight arrow, any other goes around: context edges on the left, value edges dotted on the right.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .regions import Regions, region_title
from .tree import facts_of, to_text

if TYPE_CHECKING:
    from .graph import Edge, Graph, Node

FILLS: Mapping[str, str] = {
    "Text": "#f4f1ea",
    "Gen": "#cfe8d5",
    "Select": "#d3e3f5",
    "Fork": "#f6dcc0",
    "Join": "#f6dcc0",
    "Split": "#f6dcc0",
    "Scratch": "#e9e4f5",
    "If": "#f9ecb8",
    "Loop": "#e4efe0",
    "Call": "#dfe4ea",
    "Tool": "#f3d9e3",
    "Py": "#ffffff",
    "Return": "#e2e2e2",
}
"""Fill colour of each kind of node."""

_CHAR, _ROW, _GAP, _PAD = 6.7, 38.0, 24.0, 14.0
_TITLE = 20.0
_MAX_CHARS = 52


@dataclass(slots=True, eq=False)
class _Box:
    """A node's rectangle, or a region's frame around it and its body. Units: CSS pixels."""

    node: Node
    width: float = 0.0
    height: float = 0.0
    x: float = 0.0
    y: float = 0.0
    own_width: float = 0.0
    columns: list[tuple[str, list[_Box], float]] = field(default_factory=list)
    """Arms: label, boxes from top to bottom, width."""

    @property
    def centre(self) -> float:
        """Middle of the node's own rectangle, which is centred in its frame."""
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        return self.y + (_PAD if self.columns else 0)

    @property
    def left(self) -> float:
        return self.centre - self.own_width / 2

    @property
    def right(self) -> float:
        return self.centre + self.own_width / 2

    @property
    def bottom(self) -> float:
        return self.top + _ROW


def to_html(graph: Graph) -> str:
    """The picture with a line of facts above it and the same graph as text folded below it."""
    regions = Regions(graph)
    boxes = [_measure(regions, node) for node in regions.top]
    width = max([box.width for box in boxes], default=120.0)
    by_id: dict[int, _Box] = {}
    y = _PAD
    for box in boxes:
        _place(box, _PAD + (width - box.width) / 2, y, by_id)
        y += box.height + _GAP
    paths = [_route(edge, by_id) for edge in graph.edges]
    left, right = _extents(paths, width)
    total = (left + width + right + 2 * _PAD, max(y - _GAP + _PAD, 60.0))
    parts = [
        *_frames(by_id.values()),
        *(path.drawn() for path in paths),
        *_titles(by_id.values()),
        *_rectangles(by_id.values()),
    ]
    body = "\n".join(parts)
    return (
        f'<div style="{_CARD}">\n<div style="margin:0 0 8px">{_headline(graph)}</div>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-left:.0f} 0 {total[0]:.0f} {total[1]:.0f}" '
        f'width="{total[0]:.0f}" height="{total[1]:.0f}" style="max-width:100%;height:auto" role="img" '
        f'aria-label="{_safe(f"execution graph of {graph.name}")}" font-family="{_FONT}" font-size="11.5">\n'
        f"<defs>{_markers()}</defs>\n{body}\n</svg>\n{_legend(graph)}\n"
        f'<details style="margin-top:8px"><summary>{len(graph.nodes)} nodes as text</summary>'
        f'<pre style="font-size:11px;line-height:1.35;color:#222;background:#fff">{_safe(to_text(graph))}</pre>'
        "</details>\n</div>\n"
    )


_FONT = "ui-sans-serif, system-ui, Helvetica, Arial, sans-serif"
_CARD = (
    f"font-family:{_FONT};font-size:12.5px;color:#222;background:#fff;border:1px solid #ddd;border-radius:8px;"
    "padding:12px 14px;overflow:auto;max-width:100%;display:inline-block"
)


# ---- layout
def _measure(regions: Regions, node: Node) -> _Box:
    """Sizes from the inside out."""
    box = _Box(node)
    box.own_width = max(len(_first_line(node)) * _CHAR, len(_second_line(node)) * _CHAR * 0.86) + 2 * _PAD
    box.width, box.height = box.own_width, _ROW
    for arm, inner in regions.arms(node):
        column = [_measure(regions, child) for child in inner]
        wide = max([len(arm) * _CHAR + 2 * _PAD, *(b.width for b in column)])
        box.columns.append((arm, column, wide))
    if box.columns:
        title = len(region_title(node)) * _CHAR + 2 * _PAD
        inner_width = sum(wide for _, _, wide in box.columns) + _GAP * (len(box.columns) - 1)
        tallest = max(sum(b.height + _GAP for b in column) for _, column, _ in box.columns)
        box.width = max(box.own_width, inner_width, title) + 2 * _PAD
        box.height = _PAD + _ROW + _TITLE + tallest - _GAP + _GAP / 2 + _PAD
    return box


def _place(box: _Box, x: float, y: float, by_id: dict[int, _Box]) -> None:
    """Positions from the outside in."""
    box.x, box.y = x, y
    by_id[box.node.id] = box
    inner_width = sum(wide for _, _, wide in box.columns) + _GAP * (len(box.columns) - 1)
    at = x + (box.width - inner_width) / 2
    for _, column, wide in box.columns:
        down = y + _PAD + _ROW + _TITLE + _GAP / 2
        for child in column:
            _place(child, at + (wide - child.width) / 2, down, by_id)
            down += child.height + _GAP
        at += wide + _GAP


def _extents(paths: Iterable[_Path], width: float) -> tuple[float, float]:
    """How far the edges reach beyond the left and the right of a picture of this width."""
    left = right = 0.0
    for path in paths:
        left = max(left, _PAD - path.reach)
        right = max(right, path.reach - width - _PAD)
    return left, right


def _clear(source: _Box, target: _Box, boxes: Iterable[_Box]) -> bool:
    """Whether the straight arrow from one rectangle down to the other crosses no third."""
    if target.top <= source.bottom:
        return False
    x0, y0, x1, y1 = source.centre, source.bottom, target.centre, target.top
    for other in boxes:
        if other is source or other is target or other.bottom <= y0 or other.top >= y1:
            continue
        for y in (max(other.top, y0), min(other.bottom, y1)):
            x = x0 + (x1 - x0) * (y - y0) / (y1 - y0)
            if other.left - 4 < x < other.right + 4:
                return False
    return True


# ---- drawing
def _frames(boxes: Iterable[_Box]) -> Iterator[str]:
    for box in boxes:
        if not box.columns:
            continue
        node = box.node
        fill = _TINTS.get(node.kind, "#fafafa")
        several = node.kind == "Fork" and node.attrs.get("branches") != 1
        for shift in (8, 4) if several else ():
            yield (
                f'<rect x="{box.x + shift:.1f}" y="{box.y + shift:.1f}" width="{box.width:.1f}" '
                f'height="{box.height:.1f}" rx="9" fill="#fff" stroke="#c9b79c"/>'
            )
        yield (
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="9" '
            f'fill="{fill}" stroke="#b9b9b9" stroke-dasharray="{_DASHES.get(node.kind, "none")}"/>'
        )


def _titles(boxes: Iterable[_Box]) -> Iterator[str]:
    """What each region is, and the labels of its arms, over the edges that cross them."""
    for box in boxes:
        title = region_title(box.node) if box.columns else ""
        if title:
            yield (
                f'<text x="{box.x + 10:.1f}" y="{box.bottom + 15:.1f}" fill="#777" font-size="10.5" {_HALO}>'
                f"{_safe(title)}</text>"
            )
        for arm, column, _ in box.columns:
            if arm:
                yield (
                    f'<text x="{column[0].centre:.1f}" y="{box.bottom + 16:.1f}" text-anchor="middle" fill="#8a6d00" '
                    f'font-size="10.5" font-style="italic" {_HALO}>{_safe(arm)}</text>'
                )


def _rectangles(boxes: Iterable[_Box]) -> Iterator[str]:
    for box in boxes:
        node = box.node
        dash = ' stroke-dasharray="4 3"' if node.kind == "Py" else ""
        radius = _RADII.get(node.kind, 4)
        yield (
            f"<g><title>{_safe(_tooltip(node))}</title>"
            f'<rect x="{box.left:.1f}" y="{box.top:.1f}" width="{box.own_width:.1f}" height="{_ROW:.0f}" '
            f'rx="{radius}" fill="{FILLS[node.kind]}" stroke="#666"{dash}/>'
            f'<text x="{box.centre:.1f}" y="{box.top + 16:.1f}" text-anchor="middle" fill="#222">'
            f"{_safe(_first_line(node))}</text>"
            f'<text x="{box.centre:.1f}" y="{box.top + 30:.1f}" text-anchor="middle" fill="#666" font-size="9.8">'
            f"{_safe(_second_line(node))}</text></g>"
        )


@dataclass(frozen=True, slots=True)
class _Path:
    """An edge's line, and how far it reaches to the side."""

    kind: str
    line: str
    reach: float

    def drawn(self) -> str:
        """The line as SVG."""
        return f'<path d="{self.line}" fill="none" {_STROKES[self.kind]} marker-end="url(#furcate-{self.kind})"/>'


def _route(edge: Edge, by_id: Mapping[int, _Box]) -> _Path:
    """A straight arrow down where nothing is in the way; else around, left of everything between, values right."""
    source, target = by_id[edge.source], by_id[edge.target]
    if _clear(source, target, by_id.values()):
        shift = {"context": 0.0, "value": 9.0, "control": -9.0}[edge.kind]
        start, end = source.centre + shift, target.centre + shift
        return _Path(edge.kind, f"M {start:.1f} {source.bottom:.1f} L {end:.1f} {target.top - 2:.1f}", start)
    high, low = min(source.top, target.top), max(source.bottom, target.bottom)
    ends = (source, target)
    between = [box for box in by_id.values() if box.top < low and box.bottom > high and box not in ends]
    if edge.kind == "value":
        x0, x1 = source.right, target.right + 2
        apex = max([box.right for box in between], default=max(x0, x1)) + 10
        out = max(x0, x1) + (apex - min(x0, x1)) / 0.75 * 0.9
    else:
        x0, x1 = source.left, target.left - 2
        apex = min([box.left for box in between], default=min(x0, x1)) - 10
        out = min(x0, x1) - (max(x0, x1) - apex) / 0.75 * 0.9
    y0, y1 = source.top + _ROW * 0.6, target.top + _ROW * 0.4
    if source is target:
        y0, y1 = source.top + _ROW * 0.8, source.top + _ROW * 0.2
    line = f"M {x0:.1f} {y0:.1f} C {out:.1f} {y0:.1f} {out:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    return _Path(edge.kind, line, 0.25 * min(x0, x1) + 0.75 * out if edge.kind != "value" else 0.25 * x0 + 0.75 * out)


_STROKES = {
    "context": 'stroke="#444" stroke-width="1.5"',
    "value": 'stroke="#3a6ea5" stroke-width="1.1" stroke-dasharray="2 3"',
    "control": 'stroke="#aaa" stroke-width="0.9"',
}
_HALO = 'stroke="#fff" stroke-width="3" paint-order="stroke"'
_TINTS = {"Fork": "#fdf6ee", "Loop": "#f6faf4", "Scratch": "#f8f6fc", "Call": "#f5f7f9", "If": "#fefbf0"}
_DASHES = {"Scratch": "5 4", "If": "2 3"}
_RADII = {"Gen": 16, "Select": 12, "Return": 16, "Fork": 2, "Join": 2, "Call": 2}


def _markers() -> str:
    colours = {"context": "#444", "value": "#3a6ea5", "control": "#aaa"}
    return "".join(
        f'<marker id="furcate-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M 0 0.6 L 8 4 L 0 7.4 z" fill="{colour}"/></marker>'
        for kind, colour in colours.items()
    )


# ---- words
def _first_line(node: Node) -> str:
    label = " ".join(node.label.split())
    return label if len(label) <= _MAX_CHARS else label[: _MAX_CHARS - 1] + "…"


def _second_line(node: Node) -> str:
    facts = [node.kind.lower()]
    if node.site is not None:
        facts.append(f"line {node.site.line}")
    facts += facts_of(node)
    line = " · ".join(facts)
    return line if len(line) <= _MAX_CHARS + 12 else line[: _MAX_CHARS + 11] + "…"


def _tooltip(node: Node) -> str:
    where = f"{node.site.file.replace(chr(92), '/').rpartition('/')[2]}:{node.site.line}" if node.site else ""
    facts = "\n".join(
        f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in node.attrs.items()
    )
    return f"{node.id} {node.kind} {node.label}\n{where}\n{facts}".strip()


def _headline(graph: Graph) -> str:
    facts = [f"{len(graph.nodes)} nodes"]
    bound = graph.attrs.get("bound")
    if bound:
        facts.append(f"at most {bound} generated tokens on its own context")
    prefix = sum(len(segment["text"]) for segment in graph.attrs.get("constant_prefix", ()))
    if prefix:
        facts.append(f"{prefix} characters of constant prefix")
    return f"<b>{_safe(graph.name)}</b> <span style='color:#777'>{_safe(' · '.join(facts))}</span>"


def _legend(graph: Graph) -> str:
    kinds = dict.fromkeys(node.kind for node in graph.nodes)
    swatches = "".join(
        f"<span style='margin-right:12px;white-space:nowrap'><span style='display:inline-block;width:10px;height:10px;"
        f"background:{FILLS[kind]};border:1px solid #777;border-radius:2px'></span> {kind}</span>"
        for kind in kinds
    )
    lines = "context ── &nbsp; value ┄┄ &nbsp; control (grey)"
    return f"<div style='margin-top:8px;color:#555;font-size:11px'>{swatches}<span>{lines}</span></div>"


def _safe(text: str) -> str:
    """Text for HTML and SVG: markup is escaped, and control characters that XML forbids are left out."""
    return html.escape("".join(c for c in text if c.isprintable() or c in "\n\t"), quote=True)
