"""Planned graphs of small programs: against golden files, and what holds of every graph."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from small_programs import NAMES, load_program

from furcate.lang.graph import Edge, Graph, Node, Site

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    return {name: load_program(name).compile() for name in NAMES}


def same_as_golden(file: str, text: str) -> None:
    """FURCATE_UPDATE_GOLDEN=1 writes the golden files instead of comparing."""
    path = HERE / "golden" / file
    if os.environ.get("FURCATE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_is_the_golden_one(name: str, graphs: dict[str, Graph]) -> None:
    same_as_golden(f"{name}.json", graphs[name].to_json() + "\n")


@pytest.mark.parametrize("name", NAMES)
def test_the_mermaid_picture_is_the_golden_one(name: str, graphs: dict[str, Graph]) -> None:
    same_as_golden(f"{name}.mmd", graphs[name].to_mermaid())


def test_there_are_enough_golden_programs() -> None:
    assert len(NAMES) >= 10
    assert {path.stem for path in (HERE / "golden").glob("*.json")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nodes_are_numbered_in_order_and_lie_in_regions_before_them(name: str, graphs: dict[str, Graph]) -> None:
    nodes = graphs[name].nodes
    assert [node.id for node in nodes] == list(range(len(nodes)))
    for node in nodes:
        assert node.parent is None or node.parent < node.id
        if node.parent is not None:
            assert nodes[node.parent].kind in {"Fork", "Scratch", "If", "Loop", "Call"}


@pytest.mark.parametrize("name", NAMES)
def test_edges_join_nodes_and_go_back_only_within_a_loop(name: str, graphs: dict[str, Graph]) -> None:
    graph = graphs[name]
    for edge in graph.edges:
        assert {edge.source, edge.target} <= set(range(len(graph.nodes)))
        if edge.target <= edge.source:
            assert common_loop(graph, edge.source, edge.target), f"{edge} goes back outside a loop"


def common_loop(graph: Graph, a: int, b: int) -> bool:
    def loops(number: int | None) -> set[int]:
        found = set()
        while number is not None:
            if graph.nodes[number].kind == "Loop":
                found.add(number)
            number = graph.nodes[number].parent
        return found

    return bool(loops(a) & loops(b))


@pytest.mark.parametrize("name", NAMES)
def test_compiling_twice_gives_the_same_graph(name: str, graphs: dict[str, Graph]) -> None:
    again = load_program(name).compile()
    assert again.to_json() == graphs[name].to_json()
    assert again.to_dot() == graphs[name].to_dot()


def test_json_holds_no_path_of_this_machine(graphs: dict[str, Graph]) -> None:
    for graph in graphs.values():
        assert str(HERE) not in graph.to_json()


def test_json_reads_back() -> None:
    site = Site("/some/where/p.py", 3, 4)
    nodes = (Node(0, "Text", 'user: "ä"', site, None, {"constant": True}), Node(1, "Gen", "gen", None, 0, {}, 7))
    shown = json.loads(Graph("p", nodes, (Edge(0, 1, "context", "x"),)).to_json())
    assert shown["nodes"][0]["file"] == "p.py"
    assert shown["nodes"][0]["line"] == 3
    assert shown["nodes"][1]["planned"] == 7
    assert shown["edges"] == [{"source": 0, "target": 1, "kind": "context", "label": "x"}]
