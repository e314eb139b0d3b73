"""Pictures of graphs: nothing that a label holds can break them, and each format shows every node and edge."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_programs import NAMES, load_program

from furcate.lang.graph import Edge, Graph, Node, Site
from furcate.lang.render import to_dot, to_html, to_mermaid, to_text

HOSTILE = [
    'a"b',
    "]) --> n9",
    "line\nbreak\r\n  subgraph x",
    "<script>alert(1)</script>",
    "</title></svg><img src=x onerror=alert(1)>",
    "back\\slash\\",
    "`code`",
    "%%{init: {}}%%",
    "#quot; &amp; #35;",
    "tab\tnul\0bell\a\x1b[31mred",
    "{x|y}; z",
    "end",
    "日本 🎋 \u202e",
]


def graph_with(label: str) -> Graph:
    """Every kind of region around nodes with this label."""
    site = Site(f"/x/{label}.py", 1, 0)
    nodes = [
        Node(0, "Text", label, site, None, {"text": label, "role": "user"}),
        Node(1, "Fork", label, site, None, {"branches": 2, "until": label}),
        Node(2, "Gen", label, site, 1, {"reason": label}),
        Node(3, "Join", label, None, None),
        Node(4, "If", label, site, None),
        Node(5, "Py", label, site, 4, {"arm": label, "reason": label}),
        Node(6, "Return", label, site, 4, {"arm": f"not {label}"}),
    ]
    edges = [
        Edge(0, 1, "context"),
        Edge(1, 2, "context"),
        Edge(2, 3, "context"),
        Edge(2, 4, "value"),
        Edge(4, 5, "control", label),
        Edge(5, 0, "context"),
        Edge(5, 5, "value"),
    ]
    return Graph(label, nodes, edges, attrs={"bound": 3})


def read_dot(text: str) -> tuple[set[str], set[tuple[str, str]]]:
    """Nodes and edges of a DOT text, read by tokens; unbalanced strings or braces fail."""
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|->|[{}\[\];,=]|[\w#.]+', text)
    assert "".join(text.split()) == "".join("".join(tokens).split()), "something is outside the tokens"
    assert tokens.count("{") == tokens.count("}")
    nodes = {t for t, after in pairwise(tokens) if re.fullmatch(r"n\d+", t) and after == "["}
    edges = {(tokens[i - 1], tokens[i + 1]) for i, t in enumerate(tokens) if t == "->"}
    return nodes, edges


_LINE = re.compile(
    r"""\s*(?:
      flowchart\ TD
    | subgraph\ r\d+(?:a\d+)?\["[^"\]]*"\]
    | end
    | n\d+(?:\[\[|\(\[|\{\{|\[/|\[\\|\[|\(|\{|>)"[^"\n<>`%\\&]*"(?:\]\]|\]\)|\}\}|/\]|\\\]|\]|\)|\})(?::::\w+)?
    | n\d+\ (?:-->|-\.->)(?:\|"[^"\n]*"\|)?\ n\d+
    | linkStyle\ [\d,]+\ \S+
    | classDef\ \w+\ [^"\n]*
    | class\ [\w,]+\ region
    )""",
    re.VERBOSE,
)


_TAGS = {"div", "b", "span", "svg", "defs", "marker", "path", "g", "title", "rect", "text", "details", "summary", "pre"}


class Tags(HTMLParser):
    """Tags of an HTML text, and text outside them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("label", HOSTILE)
def test_a_hostile_label_stays_inside_its_mermaid_string(label: str) -> None:
    lines = to_mermaid(graph_with(label)).splitlines()
    for line in lines:
        assert _LINE.fullmatch(line), line
    assert sum(line.strip().startswith("subgraph") for line in lines) == sum(line.strip() == "end" for line in lines)


@pytest.mark.parametrize("label", HOSTILE)
def test_a_hostile_label_stays_inside_its_dot_string(label: str) -> None:
    nodes, edges = read_dot(to_dot(graph_with(label)))
    assert nodes == {f"n{i}" for i in range(7)}
    assert len(edges) == 7


@pytest.mark.parametrize("label", HOSTILE)
def test_a_hostile_label_is_text_in_html(label: str) -> None:
    page = to_html(graph_with(label))
    parser = Tags()
    parser.feed(page)
    assert set(parser.tags) <= _TAGS
    assert not [name for name in parser.attributes if name.startswith("on")]
    shown = "".join(c for c in label if c.isprintable())
    assert shown in "".join(c for c in parser.text if c.isprintable())
    ET.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL).group())  # well-formed on its own


@pytest.mark.parametrize("label", HOSTILE)
def test_a_hostile_label_is_one_line_in_a_terminal(label: str) -> None:
    text = to_text(graph_with(label))
    assert all(c == "\n" or c.isprintable() for c in text)
    assert len(text.splitlines()) == 1 + 7 + 2  # the name, the nodes, the two arms


@given(st.text(max_size=60))
def test_no_label_breaks_a_picture(label: str) -> None:
    graph = graph_with(label)
    read_dot(to_dot(graph))
    assert all(_LINE.fullmatch(line) for line in to_mermaid(graph).split("\n")[:-1])
    ET.fromstring(re.search(r"<svg.*</svg>", to_html(graph), re.DOTALL).group())


@pytest.mark.parametrize("name", NAMES)
def test_every_node_and_edge_is_in_every_picture(name: str) -> None:
    graph = load_program(name).compile()
    nodes, edges = read_dot(graph.to_dot())
    assert nodes == {f"n{node.id}" for node in graph.nodes}
    assert edges == {(f"n{edge.source}", f"n{edge.target}") for edge in graph.edges}
    mermaid = graph.to_mermaid()
    assert len(re.findall(r"^\s*n\d+[^\s\d-]", mermaid, re.MULTILINE)) == len(graph.nodes)
    assert len(re.findall(r"^\s*n\d+ -", mermaid, re.MULTILINE)) == len(graph.edges)
    svg = ET.fromstring(re.search(r"<svg.*</svg>", graph._repr_html_(), re.DOTALL).group())
    space = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{space}g")) == len(graph.nodes)
    assert len(svg.findall(f"{space}path")) == len(graph.edges)
    for node in graph.nodes:
        assert node.kind in to_text(graph)


@pytest.mark.parametrize("name", NAMES)
def test_boxes_do_not_overlap_and_lie_in_the_picture(name: str) -> None:
    page = load_program(name).compile()._repr_html_()
    svg = ET.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL).group())
    space = "{http://www.w3.org/2000/svg}"
    left, top, width, height = map(float, svg.get("viewBox").split())
    boxes = []
    for group in svg.findall(f"{space}g"):
        rect = group.find(f"{space}rect")
        x, y, w, h = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
        assert left <= x
        assert x + w <= left + width
        assert top <= y
        assert y + h <= top + height
        boxes.append((x, y, x + w, y + h))
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_a_graph_without_nodes_is_drawn() -> None:
    empty = Graph("empty", (), ())
    assert to_text(empty) == "empty\n"
    assert "<svg" in to_html(empty)
    assert read_dot(to_dot(empty)) == (set(), set())
