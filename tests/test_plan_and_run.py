"""Real runs of the small programs follow their plans: every operation finds its node, hints included."""

from __future__ import annotations

from typing import Any

import pytest
from small_programs import NAMES, load_program

import furcate as fc
from furcate.testing import RandomValid

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "divide": ("move house", 1),
    "plugin": (lambda c: c.gen(max_tokens=3), type("Keeper", (), {})()),
}
BREAKS = {"divide": {"Text", "Gen"}, "plugin": {"Gen"}}
"""Kinds of operations that a plan lacks on purpose: behind recursion, and in what cannot be read."""


@pytest.fixture(scope="module", autouse=True)
def model() -> Any:
    with fc.using(RandomValid(7)) as chosen:
        yield chosen


@pytest.mark.parametrize("name", NAMES)
def test_a_run_follows_its_plan(name: str) -> None:
    program = load_program(name)
    plan = program.compile()
    run = program.run(*ARGUMENTS.get(name, ("a walnut table",)))
    missing = {node.kind for node in run.graph.nodes if node.planned is None} - {"Join", "Return"}
    assert missing <= BREAKS.get(name, set())
    assert any(event.kind == "break" for event in run.events) == bool(missing)
    if not any(node.kind == "Call" for node in plan.nodes):  # a nested program's operations name its own plan's nodes
        for node in run.graph.nodes:
            if node.planned is not None:
                assert plan.nodes[node.planned].kind == node.kind
                assert plan.nodes[node.planned].site.line == node.site.line
