"""Plans of programs that a test writes out, and how to read them."""

from __future__ import annotations

import textwrap
from typing import Any

from recording_context import load

import furcate as fc
from furcate.lang.compiler import compile_program
from furcate.lang.graph import Graph, Node


def plan(body: str, before: str = "", **names: Any) -> Graph:
    """The graph of ``def main(c, arg): body``."""
    source = textwrap.dedent(before) + "\ndef main(c, arg=None):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    return compile_program(load(source, "main", fc=fc, **names), "main")


def of_kind(graph: Graph, kind: str) -> list[Node]:
    return [node for node in graph.nodes if node.kind == kind]


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


def edges(graph: Graph, kind: str) -> set[tuple[int, int]]:
    return {(edge.source, edge.target) for edge in graph.edges if edge.kind == kind}
