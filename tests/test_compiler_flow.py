"""The compiler on branches, control flow and calls, and what it derives from the whole graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planning import edges, kinds, of_kind, plan
from random_programs import programs, run_source

import furcate as fc
from furcate import Context


# ---- branches
def test_a_fork_holds_its_body_once_and_joins() -> None:
    graph = plan(
        "c.user('t')\nr = c.fork(arg, one)\nc.user(r[0])",
        "def one(b, i):\n    b.user('q')\n    return b.gen(max_tokens=2)\n",
    )
    assert kinds(graph) == ["Text", "Fork", "Text", "Gen", "Return", "Join", "Text"]
    assert [node.parent for node in graph.nodes] == [None, None, 1, 1, 1, None, None]
    assert graph.nodes[1].attrs["branches"] is None
    assert edges(graph, "context") == {(0, 1), (1, 2), (2, 3), (3, 5), (5, 6)}
    assert edges(graph, "value") == {(3, 4), (4, 5), (5, 6)}


@pytest.mark.parametrize(
    "function",
    [
        "one", "lambda b, i: b.gen(max_tokens=2)", "Solver().one", "SOLVER.one", "functools.partial(two, k=3)", "later",
        "Solver.static",
    ],
)  # fmt: skip
def test_branch_functions_of_every_sort_are_followed(function: str) -> None:
    before = """
        import functools
        def one(b, i):
            return b.gen(max_tokens=2)
        def two(b, i, k):
            return b.gen(max_tokens=k)
        class Solver:
            def one(self, b, i):
                return b.gen(max_tokens=2)
            @staticmethod
            def static(b, i):
                return b.gen(max_tokens=2)
        SOLVER = Solver()
        async def later(b, i):
            return b.gen(max_tokens=2)
    """
    graph = plan(f"c.fork(3, {function})", before)
    if function == "Solver().one":  # an object made by the program is not followed
        assert kinds(graph) == ["Fork", "Py", "Join"]
    else:
        assert kinds(graph) == ["Fork", "Gen", "Return", "Join"]


def test_split_handles_are_told_apart() -> None:
    graph = plan("a, b = c.split(2)\na.user('x')\nb.user('y')\nc.user('z')\na.gen(max_tokens=1)")
    assert edges(graph, "context") == {(0, 1), (0, 2), (0, 3), (1, 4)}


def test_parallel_works_on_its_contexts() -> None:
    graph = plan(
        "kids = c.split(2)\nfc.parallel(one, kids, 5)\nkids[0].user('x')", "def one(b, n):\n    b.gen(max_tokens=n)\n"
    )
    assert kinds(graph) == ["Split", "Fork", "Gen", "Join", "Text"]
    assert graph.nodes[1].attrs["parallel"]
    assert graph.nodes[1].attrs["branches"] == 2
    assert graph.nodes[2].attrs["max_tokens"] == 5
    assert edges(graph, "context") == {(0, 1), (1, 2), (2, 3), (3, 4)}


def test_the_parent_inside_its_own_fork_is_marked() -> None:
    graph = plan("c.fork(2, lambda b, i: c.user('x'))\nc.user('y')")
    first, second = of_kind(graph, "Text")
    assert first.attrs["busy"] == 0
    assert "busy" not in second.attrs


# ---- control
def test_both_arms_of_a_test_on_the_model_s_answer_are_there() -> None:
    graph = plan("if c.gen(max_tokens=3) == 'x':\n    c.user('a')\nelse:\n    c.user('b')\nc.user('d')")
    (branch,) = of_kind(graph, "If")
    assert branch.attrs["model_dependent"]
    assert [node.attrs.get("arm") for node in of_kind(graph, "Text")] == ["then", "else", None]
    assert edges(graph, "context") == {(0, 2), (0, 3), (2, 4), (3, 4)}
    assert edges(graph, "control") == {(1, 2), (1, 3)}


def test_an_argument_s_test_is_not_the_model_s() -> None:
    graph = plan("if arg:\n    c.user('a')")
    assert "model_dependent" not in of_kind(graph, "If")[0].attrs


@pytest.mark.parametrize(
    ("test", "arms"),
    [
        ("x.value == 'a'", ["a", "b | d"]),
        ("'a' == x.value", ["a", "b | d"]),
        ("x.value != 'a'", ["b | d", "a"]),
        ("not x.value == 'a'", ["b | d", "a"]),
        ("x.value in ('a', 'd')", ["a | d", "b"]),
        ("x.probs['a'] > 0.5", ["then", "else"]),
        ("x.value == arg", ["then", "else"]),
    ],
)
def test_arms_are_labelled_by_choice(test: str, arms: list[str]) -> None:
    graph = plan(f"x = c.select(['a', 'b', 'd'])\nif {test}:\n    c.user('1')\nelse:\n    c.user('2')")
    assert of_kind(graph, "If")[0].attrs["arms"] == arms


def test_match_arms_are_labelled_by_what_is_left() -> None:
    body = """
        match c.gen(Literal["a", "b", "d", "e"]):
            case "a" | "b":
                c.user("1")
            case "d" if arg:
                c.user("2")
            case other:
                c.user(other)
    """
    graph = plan(body, "from typing import Literal")
    assert of_kind(graph, "If")[0].attrs["arms"] == ["a | b", "d", "d | e"]


def test_a_constant_settles_a_branch() -> None:
    graph = plan("if DEBUG:\n    c.user('a')\nelse:\n    c.user('b')", "DEBUG = False")
    assert [node.attrs["text"] for node in graph.nodes] == ["b"]


def test_a_branch_without_operations_is_left_out() -> None:
    assert kinds(plan("x = 1\nif arg:\n    x = 2\nfor i in range(arg):\n    x += i\nc.user(str(x))")) == ["Text"]


def test_nothing_follows_a_return() -> None:
    graph = plan("c.user('a')\nif arg:\n    return 1\nelse:\n    return 2\nc.user('never')")
    assert kinds(graph) == ["Text", "If", "Return", "Return"]


@pytest.mark.parametrize(
    ("loop", "trips"),
    [
        ("for _ in range(3):", 3),
        ("for _ in range(1, 10, 3):", 3),
        ("for _ in c.steps(N):", 4),
        ("for _ in c.steps(1000):", 1000),
        ("for _ in NAMES:", 2),
        ("for _ in enumerate(zip(NAMES, 'abc')):", 2),
        ("for _ in sorted(NAMES):", 2),
        ("for _ in c.fork(3, lambda b, i: i):", 3),
        ("for _ in {'a': 1}.items():", 1),
        ("for _ in TABLE.items():", 1),
        ("for _ in arg:", None),
        ("for _ in range(arg):", None),
        ("while arg:", None),
    ],
)
def test_trip_counts_are_proved_or_left_open(loop: str, trips: int | None) -> None:
    graph = plan(f"{loop}\n    c.user('x')", "N = 4\nNAMES = ['a', 'b']\nTABLE = {'k': 1}")
    assert of_kind(graph, "Loop")[-1].attrs["trips"] == trips


def test_a_loop_goes_back_to_its_first_operation() -> None:
    graph = plan("for _ in range(2):\n    c.user('x')\n    c.gen(max_tokens=1)")
    assert (2, 1) in edges(graph, "context")


def test_contexts_that_grow_in_a_loop_settle() -> None:
    body = """
        frontier = [c]
        for _ in range(3):
            kids = [kid for node in frontier for kid in node.split(2)]
            fc.parallel(lambda b: b.gen(max_tokens=4), kids)
            frontier = kids[:2]
        return frontier[0].gen(max_tokens=5)
    """
    graph = plan(body)
    split, gen = of_kind(graph, "Split")[0], of_kind(graph, "Gen")[-1]
    assert (split.id, split.id) not in edges(graph, "control")
    assert gen.attrs["max_tokens"] == 5
    assert gen.attrs["last_use"]


# ---- following
def test_recursion_is_marked_and_not_followed_again() -> None:
    graph = plan(
        "walk(c, 3)", "def walk(c, n):\n    c.gen(max_tokens=2)\n    if flip(n):\n        walk(c, n - 1)\n", flip=len
    )
    (call,) = of_kind(graph, "Call")
    assert call.attrs["recursive"]
    assert len(of_kind(graph, "Gen")) == 1
    assert of_kind(graph, "Gen")[0].attrs["bound"] is None


def test_a_program_in_a_program_is_a_call_on_a_context_of_its_own() -> None:
    def inner(c: Context, x: str) -> str:
        c.user(f"inner {x}")
        return c.gen(max_tokens=4)

    graph = plan("c.user('a')\nx = tip('b')\nc.user(x)", tip=fc.program(inner))
    assert kinds(graph) == ["Text", "Call", "Text", "Gen", "Return", "Text"]
    assert graph.nodes[2].attrs["text"] == "inner b"
    assert edges(graph, "context") == {(0, 5), (1, 2), (2, 3)}
    assert (1, 5) in edges(graph, "value")
    assert graph.attrs["bound"] == 0


def test_what_cannot_be_read_is_opaque_with_the_reason_and_unbounded() -> None:
    graph = plan("c.user('a')\nx = arg(c)\nc.user(x)")
    (node,) = of_kind(graph, "Py")
    assert node.attrs["reason"]
    assert edges(graph, "context") == {(0, 1), (1, 2)}
    assert (1, 2) in edges(graph, "value")
    assert graph.attrs["bound"] is None


def test_plain_python_is_no_node() -> None:
    graph = plan("x = sorted(arg, key=len)\ny = json.dumps(x)\nprint(y)\nc.user(y)", "import json")
    assert kinds(graph) == ["Text"]


def test_a_wrapper_around_a_helper_is_followed() -> None:
    def twice(fn: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            fn(*args, **kwargs)
            fn(*args, **kwargs)

        return wrapper

    @twice
    def ask(c: Context, text: str) -> None:
        c.user(text)

    graph = plan("ask(c, text='t')", ask=ask)
    assert [node.attrs["text"] for node in graph.nodes] == ["t", "t"]


def test_host_code_is_not_followed() -> None:
    graph = plan("x = c.tool(work, arg)\nc.user(x)", "def work(n):\n    return str(n)\n")
    assert kinds(graph) == ["Tool", "Text"]
    assert edges(graph, "value") == {(0, 1)}


# ---- what is derived
def test_bounds_are_the_longest_path() -> None:
    body = """
        c.user("a")
        for _ in range(3):
            c.gen(max_tokens=10)
            if arg:
                c.gen(max_tokens=5)
            else:
                c.gen(max_tokens=7)
        with c.scratch() as t:
            t.gen(max_tokens=100)
        c.gen(max_tokens=1)
    """
    graph = plan(body)
    assert graph.attrs["bound"] == 3 * 17 + 1
    assert [node.attrs["bound"] for node in of_kind(graph, "Gen")] == [52, 40, 42, 100, 1]


def test_a_return_still_runs_what_is_done_in_any_case() -> None:
    graph = plan("try:\n    c.user('a')\n    if arg:\n        return 1\nfinally:\n    c.gen(max_tokens=9)")
    assert of_kind(graph, "Text")[0].attrs["bound"] == 9
    nothing_else = plan("try:\n    if arg:\n        c.user('a')\n        return 1\nfinally:\n    c.gen(max_tokens=9)")
    assert of_kind(nothing_else, "Text")[0].attrs["bound"] == 9


def test_a_gen_without_a_bound_has_none() -> None:
    graph = plan("c.gen(max_tokens=2)\nc.gen(max_tokens=arg)\nc.gen(max_tokens=3)")
    assert [node.attrs["bound"] for node in of_kind(graph, "Gen")] == [None, None, 3]


def test_a_certain_fork_is_announced_and_an_uncertain_one_is_not() -> None:
    certain = plan("c.user('a')\nx = 1\nc.fork(3, lambda b, i: i)")
    assert certain.nodes[0].attrs["coming_fork"] == 3
    uncertain = [
        "if arg:\n    c.fork(3, lambda b, i: i)",
        "if arg:\n    return\nc.fork(3, lambda b, i: i)",
        "c.fork(arg, lambda b, i: i)",
        "if arg:\n    raise ValueError\nc.fork(2, len)",
    ]
    for body in uncertain:
        assert not any("coming_fork" in node.attrs for node in plan("c.user('a')\n" + body).nodes), body


@given(programs(), st.integers(0, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_hints_hold_on_every_run_of_a_random_program(source: str, seed: int) -> None:
    recording = run_source(source, seed)
    for context in recording.contexts:
        left = sum(count for kind, _, count in context.trace if kind in {"Gen", "Select"})
        for i, (kind, node, count) in enumerate(context.trace):
            assert node is not None
            bound = node.attrs.get("bound")
            assert bound is None or left <= bound, f"{node.label} is bound by {bound}, {left} came\n{source}"
            left -= count if kind in {"Gen", "Select"} else 0
            rest = context.trace[i + 1 :]
            if node.attrs.get("last_use"):
                assert not rest, f"{node.label} was not the last use\n{source}"
            coming = node.attrs.get("coming_fork")
            if coming:
                assert [(k, n) for k, _, n in rest[:1]] in ([("Fork", coming)], [("Split", coming)]), source
