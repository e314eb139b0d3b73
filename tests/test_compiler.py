"""The compiler on sources, text and operations: what it reads of a program without running it."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
from planning import edges, kinds, of_kind, plan
from recording_context import load

from furcate import NoSource
from furcate.lang.compiler import compile_program


# ---- source
def test_a_lambda_has_no_source() -> None:
    with pytest.raises(NoSource, match="lambda"):
        compile_program(lambda c: c.gen(max_tokens=1), "anonymous")


def test_code_of_exec_has_no_source() -> None:
    space: dict[str, Any] = {}
    exec("def main(c):\n    c.user('hello')\n", space)
    with pytest.raises(NoSource, match="file"):
        compile_program(space["main"], "main")


def test_a_file_that_changed_since_it_was_loaded_is_no_source() -> None:
    main = load("def main(c, a):\n    c.user('x')\n", "main")
    file = main.__code__.co_filename
    lines = ["import os\n", "\n", "def main(c, a, b):\n", "    c.user('y')\n"]
    linecache.cache[file] = (1, None, lines, file)
    with pytest.raises(NoSource, match="not the one that was loaded"):
        compile_program(main, "main")


def test_what_is_no_function_has_no_source() -> None:
    with pytest.raises(NoSource, match="Python function"):
        compile_program(len, "len")


def test_compiling_runs_nothing() -> None:
    ran = []
    plan("note(); x = note(c)\nc.user('end')\nprint(Loud().name)", note=lambda *_: ran.append(1), Loud=Loud)
    assert not ran


class Loud:
    @property
    def name(self) -> str:
        raise AssertionError("a property was read")


# ---- text
@pytest.mark.parametrize(
    ("expression", "text", "constant"),
    [
        ("'a' 'b'", "ab", True),
        ("'a' + NAME + str(2)", "aBob2", True),
        ("f'{NAME:>5}|{NAME!r}|{2 + 3}'", "  Bob|'Bob'|5", True),
        ("f'to {arg}: {NAME}'", "to {…}: Bob", False),
        ("'-' * 3", "---", True),
        ("', '.join(['x', arg, 'y'])", "x, {…}, y", False),
        ("', '.join(arg)", "{…}", False),
        ("'Hello {}, {who}'.format(arg, who=NAME)", "Hello {…}, Bob", False),
        ("NAME.upper().replace('B', 'C')", "COC", True),
        ("textwrap.dedent('''\\n    x\\n''').strip()", "x", True),
        ("NAMES[0] + NAMES[-1]", "xz", True),
        ("TABLE['k']", "v", True),
        ("'%s' % arg", "{…}", False),
    ],
)
def test_text_is_read_as_far_as_it_is_known(expression: str, text: str, constant: bool) -> None:
    before = "import textwrap\nNAME = 'Bob'\nNAMES = ['x', 'y', 'z']\nTABLE = {'k': 'v'}\n"
    (node,) = of_kind(plan(f"c.user({expression})", before), "Text")
    assert (node.attrs["text"], node.attrs["constant"]) == (text, constant)
    assert node.attrs["chars"] == len(text.replace("{…}", ""))


def test_a_loop_over_constants_has_the_text_of_every_pass() -> None:
    graph = plan("for i, x in enumerate(NAMES, 1):\n    c.user(f'{i}. {x}')", "NAMES = ['ash', 'oak']")
    (node,) = of_kind(graph, "Text")
    assert node.attrs["texts"] == ["1. ash", "2. oak"]
    assert node.attrs["text"] == "{…}. {…}"
    assert of_kind(graph, "Loop")[0].attrs["trips"] == 2


def test_a_value_of_the_pass_before_is_not_taken_for_this_one_s() -> None:
    graph = plan("last = ''\nfor x in ['a', 'b']:\n    c.user(last + x)\n    last = x")
    (node,) = of_kind(graph, "Text")
    assert "texts" not in node.attrs
    assert not node.attrs["constant"]


def test_a_list_that_the_program_changes_is_no_constant() -> None:
    graph = plan("names = ['a']\nnames.append(arg)\nfor x in names:\n    c.user(x)")
    assert of_kind(graph, "Loop")[0].attrs["trips"] is None
    assert not of_kind(graph, "Text")[0].attrs["constant"]


def test_the_constant_prefix_runs_through_loops_and_helpers_to_the_first_hole() -> None:
    before = "def intro(c):\n    c.system('S')\nSHOTS = [('q', 'a'), ('r', 'b')]\n"
    body = "intro(c)\nfor q, a in SHOTS:\n    c.user(q)\n    c.assistant(a)\nc.user(f'Now: {arg}')\nc.user('later')"
    graph = plan(body, before)
    assert graph.attrs["constant_prefix"] == [
        {"role": "system", "text": "S"},
        {"role": "user", "text": "q"},
        {"role": "assistant", "text": "a"},
        {"role": "user", "text": "r"},
        {"role": "assistant", "text": "b"},
        {"role": "user", "text": "Now: ", "open": True},
    ]
    assert [bool(n.attrs.get("constant_prefix")) for n in of_kind(graph, "Text")] == [True, True, True, False, False]


@pytest.mark.parametrize(
    "call",
    ["datetime.now()", "date.today()", "uuid.uuid4()", "random.random()", "time.time()", "os.urandom(3)", "stamp()"],
)
def test_text_that_differs_on_every_run_is_marked(call: str) -> None:
    before = """
        import os, random, time, uuid
        from datetime import date, datetime
        def stamp():
            return datetime.now().isoformat()
    """
    (node,) = of_kind(plan(f"x = {call}\nc.user(f'a {{x}} bcd')", before), "Text")
    assert node.attrs["volatile"] == [call if call != "stamp()" else "datetime.now()"]
    assert node.attrs["volatile_tail"] == 4


def test_a_seeded_generator_is_not_volatile() -> None:
    (node,) = of_kind(plan("c.user(str(RNG.random()))", "import random\nRNG = random.Random(3)"), "Text")
    assert "volatile" not in node.attrs


# ---- operations
def test_gen_s_options_are_read() -> None:
    graph = plan(
        "c.gen(int, max_tokens=LIMIT, stop=['x', 'y'], temperature=0.5, name='n')\nc.gen(max_tokens=arg)\nc.gen(bool)\n"
        "c.gen()\nc.gen(fc.regex('[ab]{3}'))\nc.gen(regex='a+')\nc.gen(**arg)\nc.gen(max_tokens=None)",
        "LIMIT = 5",
    )
    gens = of_kind(graph, "Gen")
    assert gens[0].attrs | {} == gens[0].attrs | {
        "type": "int", "max_tokens": 5, "stop": ["x", "y"], "temperature": 0.5, "name": "n", "bounded": True,
    }  # fmt: skip
    assert [gen.attrs["bounded"] for gen in gens] == [True, True, True, False, True, False, True, False]
    assert gens[4].attrs["longest"] == 3
    assert gens[5].attrs["regex"] == "a+"


@pytest.mark.parametrize(
    ("choices", "texts"),
    [
        ("['a', 'b']", ["a", "b"]),
        ("Literal['x', 'y']", ["x", "y"]),
        ("Label", ["p", "q"]),
        ("Kind", ["one", "two"]),
        ("bool", ["true", "false"]),
        ("(1, 2.5, None)", ["1", "2.5", "null"]),
        ("arg", None),
    ],
)
def test_select_s_choices_are_read(choices: str, texts: list[str] | None) -> None:
    before = """
        from enum import Enum
        from typing import Literal
        Label = Literal["p", "q"]
        class Kind(Enum):
            A = "one"
            B = "two"
    """
    (node,) = of_kind(plan(f"c.select({choices}, how='mean')", before), "Select")
    assert node.attrs.get("choices") == texts
    assert node.attrs["how"] == "mean"


def test_marks_rewind_the_lineage() -> None:
    graph = plan("c.user('a')\nm = c.mark()\nc.user('b')\nc.rewind(m)\nc.user('d')")
    assert kinds(graph) == ["Text", "Text", "Py", "Text"]
    assert edges(graph, "context") == {(0, 1), (0, 2), (2, 3)}


def test_results_flow_along_value_edges() -> None:
    graph = plan("x = c.gen(max_tokens=3)\ny = {'k': [x.strip()]}\nc.user(f\"so {y['k'][0]}\")\nreturn len(x)")
    assert edges(graph, "value") == {(0, 1), (0, 2)}


def test_a_read_out_depends_on_the_last_operation() -> None:
    graph = plan("c.gen(max_tokens=3)\nc.user('x')\nreturn c.last.text")
    assert (1, 2) in edges(graph, "value")
