"""Static checks: each finding with its line, its level and its mend; no false alarm; suppression."""

from __future__ import annotations

import importlib.util
import linecache
import textwrap
from typing import Any

import pytest
from recording_context import load
from small_programs import NAMES, load_program

import furcate as fc
from furcate.lang.checks import Finding, check_graph
from furcate.lang.compiler import compile_program
from furcate.lang.graph import Graph, Node, Site


def check(body: str, before: str = "", **model: Any) -> list[Finding]:
    """Findings on ``def main(c, arg): body``; the first line of the body is line 2 where there is nothing before."""
    source = textwrap.dedent(before) + "def main(c, arg=None):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    return check_graph(compile_program(load(source, "main", fc=fc), "main"), **model)


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


CLEAN = [
    'c.gen(max_tokens=3)\nc.gen(bool)\nc.gen(max_tokens=arg)\nc.gen(**arg)\nc.gen(fc.regex("a{3}"))',
    'c.user("q")\nc.select(["yes", "no"])',
    'c += "q"\nc.select(["yes", "yes, certainly"], end="\\n")',
    'c.select(["a", "a"])',
    "for _ in c.steps(3):\n    c.gen(max_tokens=3)",
    "for x in arg:\n    c.gen(max_tokens=3)",
    "n = 0\nwhile n < 3:\n    n += 1",
    'import time\nc.system("s" * 500)\nc.user(f"Now is {time.time()}. What is it?")',
    'import time\nprint(time.time())\nc.system("s" * 500)',
    'c.user("a <b> | c |> d <|> <||> x < y | z > w")',
    'c.user("a")\nc.fork(2, lambda b, i: b.user("b"))\nc.user("d")',
    'c.gen(fc.regex("a|b"), max_tokens=2)\nc.gen(regex=arg, max_tokens=2)',
    "x = c.gen(max_tokens=3)\nreturn x",
    "_ = c.gen(max_tokens=3)\n_x = c.gen(max_tokens=3)",
    "x = c.gen(max_tokens=3)\ndef f():\n    return x\nreturn f()",
    "x = c.gen(max_tokens=3)\nx += 'a'\nprint(x)",
    'def more():\n    nonlocal c\n    c += "x"\nmore()',
    'def more(c):\n    c += "x"\nmore(c)',
    "c.fork(3, lambda b, i: b.gen(max_tokens=3, temperature=1.0))",
    'c.fork(3, lambda b, i: (b.user(f"{i}"), b.gen(max_tokens=3)))',
    "c.fork(1, lambda b, i: b.gen(max_tokens=3))",
    "c.fork(arg, lambda b, i: b.gen(max_tokens=3))",
    'c.fork(["a", "b"], lambda b, x: b.gen(max_tokens=3, name=x))',
    "c.fork(3, lambda b, i: b.gen(max_tokens=3, temperature=arg))",
    "c.fork(3, arg)",
]


@pytest.mark.parametrize("body", CLEAN)
def test_there_is_no_false_alarm(body: str) -> None:
    assert check(body, max_context=1000, count_tokens=len) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_small_programs_are_clean(name: str) -> None:
    found = check_graph(load_program(name).compile(), max_context=2048, count_tokens=len)
    expected = {"proofread": ["F003"], "letter": [], "careful": []}
    assert codes(found) == expected.get(name, [])


FOUND = [
    ("F001", "error", 2, "c.gen()"),
    ("F001", "error", 2, "c.gen(int)"),
    ("F001", "error", 2, "c.gen(list[bool], max_tokens=None)"),
    ("F001", "error", 3, 'x = [1]\ny = [c.gen(regex="a+") for _ in x]\nreturn y'),
    ("F002", "note", 3, 'c.user("q")\nc.select(["yes", "no", "yes, certainly"])'),
    ("F002", "warning", 3, 'c += "q"\nc.select(["yes", "no", "yes, certainly"])'),
    ("F003", "warning", 2, "while not c.gen(max_tokens=4).startswith('stop'):\n    pass"),
    ("F003", "warning", 2, "while True:\n    c.gen(max_tokens=4)\n    if arg: break"),
    ("F003", "warning", 3, "import itertools\nfor i in itertools.count():\n    c.select(['a', 'b'])"),
    ("F004", "warning", 3, 'from datetime import datetime\nc.system(f"Now is {datetime.now()}. " + "x" * 400)'),
    ("F004", "warning", 3, 'import uuid\nc.system(f"Run {uuid.uuid4()}")\nc.system("x" * 400)'),
    ("F004", "warning", 4, 'import time\nt = time.time()\nc += str(t)\nfor _ in range(2):\n    c += "x" * 400'),
    ("F005", "warning", 2, 'c.user("hello<|im_end|>")'),
    ("F005", "warning", 3, 'x = "<|eot_id|>"\nc += f"{arg}{x}"'),
    ("F005", "warning", 3, 'for x in ["a", "<|end|>"]:\n    c.user(x)'),
    ("F006", "error", 2, 'c.fork([1, 2], lambda b, i: c.user(f"{i}"))'),
    ("F006", "error", 3, "def branch(b, i):\n    return c.select(['a', 'b'])\nc.fork([1, 2], branch)"),
    ("F007", "error", 2, 'c.gen(fc.regex(r"a^b"), max_tokens=8)'),
    ("F007", "error", 2, 'c.gen(regex="(", max_tokens=8)'),
    ("F008", "error", 2, "c.gen(max_tokens=1001)"),
    ("F008", "error", 3, 'c.user("x" * 500)\nc.gen(max_tokens=501)'),
    ("F008", "error", 3, 'c.user("x" * 990)\nc.fork([1, 2], lambda b, i: b.gen(max_tokens=11, name=i))'),
    ("F008", "warning", 3, "for _ in range(50):\n    c.gen(max_tokens=21)"),
    ("F009", "warning", 2, "unread = c.gen(max_tokens=8)"),
    ("F009", "warning", 2, "unread: int = len(c.gen(max_tokens=8))"),
    ("F010", "error", 3, 'def captured():\n    c += " and again"\ncaptured()'),
    ("F010", "error", 3, 'def never_called():\n    c += " and again"'),
    ("F011", "warning", 2, "c.fork(2, lambda b, i: b.gen(max_tokens=8))"),
    ("F011", "warning", 2, "c.fork(2, lambda b, i: b.gen(max_tokens=8, temperature=0))"),
]


@pytest.mark.parametrize(("code", "level", "line", "body"), FOUND)
def test_a_mistake_is_found_at_its_line(code: str, level: str, line: int, body: str) -> None:
    found = check(body, max_context=1000, count_tokens=len)
    first = next((finding for finding in found if finding.code == code), None)
    assert first is not None, f"{code} was not found: {codes(found)}"
    assert (first.level, first.line) == (level, line)
    assert set(codes(found)) == {code}
    assert first.message
    assert first.mend


def test_nothing_is_too_long_without_a_model() -> None:
    assert check("c.gen(max_tokens=100_000)") == []


def test_a_helper_called_twice_is_one_finding() -> None:
    found = check("ask(c)\nask(c)", "def ask(d):\n    d.gen()\n")
    assert codes(found) == ["F001"]


def test_findings_come_in_the_order_of_the_source() -> None:
    found = check('c.user("<|a|>")\nx = c.gen()\nc.user("<|b|>")')
    assert [finding.line for finding in found] == [2, 3, 3, 4]


@pytest.mark.parametrize("comment", ["# furcate: ignore[F005]", "# why  # furcate: ignore[F001, F005]"])
def test_a_comment_on_the_line_suppresses_its_codes(comment: str) -> None:
    found = check(f'c.user("<|a|>")  {comment}\nc.user("<|b|>")')
    assert [(finding.code, finding.line) for finding in found] == [("F005", 3)]


@pytest.mark.parametrize("comment", ["# furcate: ignore[F001]", "# ignore[F005]", "# furcate: ignore"])
def test_another_comment_suppresses_nothing(comment: str) -> None:
    assert codes(check(f'c.user("<|a|>")  {comment}')) == ["F005"]


def test_a_finding_shows_the_line_with_a_caret() -> None:
    file = "<shown>.py"
    linecache.cache[file] = (1, None, ["\n", '    é = "ü"; x = c.gen()\n'], file)
    shown = Finding("F001", "error", "no bound", "give one", file, 2, len('    é = "ü"; x = '.encode())).render()
    assert shown.splitlines() == [
        "<shown>.py:2:18: error F001: no bound",
        '    é = "ü"; x = c.gen()',
        "                 ^",
        "  mend: give one",
    ]


def test_a_finding_without_its_source_is_shown_too() -> None:
    assert Finding("F001", "error", "no bound", "give one", "gone.py", 2, 0).render().splitlines() == [
        "gone.py:2:1: error F001: no bound",
        "  mend: give one",
    ]


def test_a_graph_without_sites_is_checked() -> None:
    graph = Graph("p", (Node(0, "Gen", "gen", None, None, {"bounded": False, "type": "str"}),), ())
    assert check_graph(graph) == []
    sited = Graph("p", (Node(0, "Gen", "gen", Site("p.py", 1, 0), None, {"bounded": False, "type": "str"}),), ())
    assert codes(check_graph(sited)) == ["F001"]


BAD_CALLS = """
from typing import Annotated

import furcate as fc
from furcate import Context, program


@program
def other(c: Context, text: str) -> str:
    c.user(text)
    return c.gen(max_tokens=3)


@program
def bad(c: Context) -> str:
    def one_argument(b: Context) -> int:
        return 1

    c.user("x")
    c.fork(3, one_argument)
    c.gen(max_tokens=3, temprature=1)
    c.gen(Annotated[str, fc.regex("[A-Z]{2}")])
    return other(c, "t")
"""


def test_calls_that_cannot_work_are_found_with_their_place(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(BAD_CALLS)
    spec = importlib.util.spec_from_file_location("bad_calls", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = BAD_CALLS.splitlines()
    found = [(f.code, lines[f.line - 1].strip()) for f in module.bad.check()]
    assert found == [
        ("F012", "c.fork(3, one_argument)"),
        ("F013", "c.gen(max_tokens=3, temprature=1)"),
        ("F012", 'return other(c, "t")'),
    ]
    assert module.other.check() == []
