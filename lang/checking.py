"""Checking a program: the graph's findings, with what a named model adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .backends.base import Model
from .checks import Finding, check_graph

if TYPE_CHECKING:
    from .program import Program


def check_program(program: Program[Any, Any], model: Model | None) -> list[Finding]:
    """Findings on ``program``'s graph; with ``model`` also what its context cannot hold."""
    graph = program.compile()
    if model is None:
        return check_graph(graph)
    return check_graph(
        graph, max_context=model.max_context, count_tokens=lambda text: len(model.tokenizer.encode(text))
    )
