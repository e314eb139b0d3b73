"""Executed operations find their planned nodes: the compiler's sites are those that running code reports."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_programs import programs, run_source
from recording_context import Recording, load

from furcate.lang.compiler import compile_program


def run_and_match(source: str, seed: int = 0) -> Recording:
    """Compile and run ``main`` of a source text; every operation must be found, with its own kind, name and text."""
    recording = run_source(source, seed)
    for kind, name, node in recording.done:
        assert node is not None, f"{kind} {name!r} was not found\n{source}"
        assert node.kind == kind
        if kind in {"Gen", "Select"}:
            assert node.attrs.get("name", "") == name
        elif kind == "Text":
            assert node.attrs["text"].split("{…}")[0] in name
    return recording


STATEMENTS = [
    'c.user("t")',
    'c += "t"',
    'c += ("t"\n      "u")',
    'c.gen(name="n",\n      max_tokens=3)',
    '(c\n   .user)("t")',
    'c.select(["a", "b"], name="n").probs["a"]',
    "c.user(f\"t {c.gen(name='n')} and {c.gen(name='m')!r:>{len(c.gen(name='o'))}}\")",
    'c.user(f"""t\n {c.gen(name=\'n\')}\n  {c.gen(name=\'m\',\n  max_tokens=4)}""" f"{c.gen(name=\'o\')}")',
    'with c.scratch() as t:\n    é = "ü"; t.user("é"); t.gen(name="n")',
    'with c.assistant():\n    c += "t"',
    'with c.scratch() as t, t.scratch() as u:\n    u.gen(name="n")',
    'x = [c.gen(name="n") for _ in range(2)]',
    'x = {c.gen(name="n"): len(c.gen(name="m")) for _ in range(2) if c.gen(name="o")}',
    'x = sum(len(c.gen(name="n")) for _ in range(2) for _ in range(2))',
    'x = c.gen(name="n") if c.gen(name="m") == "a" else c.gen(name="o")',
    'x = c.gen(name="n") and (c.gen(name="m") or c.gen(name="o"))',
    'while flip() and c.gen(name="n"):\n    c.gen(name="m")\nelse:\n    c.user("t")',
    'x = max(["a", "b"], key=lambda v: c.gen(name="n"))',
    'x = sorted(c.split(2), key=lambda b: b.gen(name="n"))',
    'a, b = c.split(2)\na.gen(name="n")\nb.gen(name="m")',
    'l = [c]\nl[0] += "t"\nl[0].gen(name="n")',
    'd = {"k": c}\nd["k"].gen(name="n")\nfor v in d.values():\n    v.user("t")',
    'ask = c.gen\nask(name="n")',
    'getattr(c, "user")("t")',
    'x = parallel(lambda b, k: b.gen(name="n"), c.split(3), 1)',
    'x = c.fork(2, lambda b, i: b.fork(2, lambda d, j: d.gen(name="n")))',
    'def branch(b, i):\n    b += "t"\n    return b.gen(name="n")\nx = c.fork(range(3), branch)\ny = c.fork(2, branch)',
    'def ask(d):\n    d.user("t")\n    return d.gen(name="n")\nask(c)\nask(d=c)\nask(*[c])\n'
    "x = [ask(c) for _ in range(2)]",
    'def captured():\n    c.user("t")\n    return c.gen(name="n")\ncaptured()',
    'import functools\ndef ask(n, d):\n    return d.gen(name="n")\nx = functools.partial(ask, 3)(c)',
    'match c.select(["a", "b"], name="n").value:\n    case "a":\n        c.user("t")\n    case _:\n        c.user("u")',
    'try:\n    c.gen(name="n")\n    if flip(): raise ValueError\n'
    'except ValueError:\n    c.user("t")\nfinally:\n    c += "u"',
    'if (y := c.gen(name="n")) == "a": c.user("t"); c.user("u")',
    'for i, x in enumerate(["a", "b"]):\n    c.user(f"t{i}{x}")\n'
    '    if c.gen(name="n") == "a": continue\n    c.gen(name="m")',
    'x = c.tool(parse, c.gen(name="n"))',
]


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("indent", ["", "if flip() or True:\n"])
def test_a_statement_s_operations_are_found(statement: str, indent: str) -> None:
    body = indent + textwrap.indent(statement, "    " if indent else "")
    source = "def main(c):\n" + textwrap.indent(body, "    ") + "\n"
    assert run_and_match(source).done


def test_helpers_called_from_two_lines_are_two_operations() -> None:
    source = 'def ask(c):\n    return c.gen(name="n")\n\n\ndef main(c):\n    ask(c)\n    ask(c)\n'
    nodes = [node for _, _, node in run_and_match(source).done]
    assert nodes[0] is not nodes[1]


def test_a_decorated_program_keeps_its_lines() -> None:
    source = 'def keep(f):\n    return f\n\n\n@keep\n@keep\ndef main(c):\n    c.user("t")\n'
    assert run_and_match(source).done[0][2].site.line == 8


def test_the_lines_decide_where_there_are_no_columns() -> None:
    source = 'def main(c):\n    c.user("t")\n    c.user("u"); c.user("v")\n'
    graph = compile_program(load(source, "main"), "main")
    (first, second, _) = (node.site for node in graph.nodes)
    assert graph.find(None, (first._replace(column=0),)) == 0
    assert graph.find(None, (second._replace(column=0),)) is None  # two operations on the line


@given(programs(), st.integers(0, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_operation_of_a_random_program_is_found(source: str, seed: int) -> None:
    run_and_match(source, seed)
