"""The command ``furcate``: what it prints, where, and with which exit code."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from furcate.lang.cli import main
from furcate.lang.cli_report import usage_text, value_json, value_text
from furcate.runtime.metrics import Usage

PROGRAMS = """
from datetime import date
from pydantic import BaseModel
import furcate as fc
from furcate import Choice, Context, program

class Point(BaseModel):
    x: int
    y: int

@program
def echo(c: Context, text: str, times: int = 1) -> str:
    c.user(text)
    return " ".join([text] * times)

@program
def typed(c: Context, when: date, at: Point) -> str:
    return f"{when.year} {at.x + at.y}"

@program
def pick(c: Context, text: str) -> Choice[str]:
    c.user(text)
    return c.select(["yes", "no"])

@program
def two(c: Context, text: str) -> int:
    c.user(text)
    def branch(b: Context, i: int) -> str:
        b.user(str(i))
        return b.gen(max_tokens=4)
    return len("".join(c.fork(2, branch))) * 0 + c.gen(int, max_tokens=8)

@program
def breaks(c: Context, text: str) -> str:
    raise KeyError(f"no {text}")

@program
def unbounded(c: Context) -> str:
    c.user("hello")
    return c.gen()
"""

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    (tmp_path / "programs.py").write_text(textwrap.dedent(PROGRAMS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command adds the folders of the programs that it loads
    monkeypatch.delitem(sys.modules, "programs", raising=False)
    monkeypatch.setenv("FURCATE_MODEL", "test:scripted")
    monkeypatch.delenv("FURCATE_SEED", raising=False)

    def call(*argv: str) -> tuple[int, str, str]:
        code = main(argv)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_run_prints_the_value_alone_where_the_output_is_not_a_terminal(cli: Cli) -> None:
    assert cli("run", "programs.py:echo", "--arg", "text=hi there") == (0, "hi there\n", "")


def test_an_argument_is_text_for_a_str_and_json_for_the_rest(cli: Cli) -> None:
    assert cli("run", "programs.py:echo", "--arg", "text=12", "--arg", "times=2")[1] == "12 12\n"
    assert cli("run", "programs.py:typed", "--arg", "when=2026-05-03", "--arg", 'at={"x": 1, "y": 2}')[1] == "2026 3\n"


def test_an_argument_can_come_from_a_file_or_begin_with_an_at_sign(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "essay.txt").write_text("line one\nline = two", encoding="utf-8")
    assert cli("run", "programs.py:echo", "--arg", "text=@essay.txt")[1] == "line one\nline = two\n"
    assert cli("run", "programs.py:echo", "--arg", "text=@@home")[1] == "@home\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("run", "programs.py:ecko"), "did you mean 'echo'"),
        (("run", "program.py:echo"), "did you mean 'programs.py'"),
        (("run", "nowhere.module:echo"), "no file and no module"),
        (("run", "programs.py"), "several programs"),
        (("run", "programs.py:echo"), "--arg text=..."),
        (("run", "programs.py:echo", "--arg", "texd=1"), "did you mean 'text'"),
        (("run", "programs.py:echo", "--arg", "text"), "NAME=VALUE"),
        (("run", "programs.py:echo", "--arg", "text=@missing.txt"), "cannot read missing.txt"),
        (("run", "programs.py:echo", "--arg", "text=a", "--arg", "times=many"), "argument 'times'"),
        (("run", "programs.py:echo", "--arg", "text=a", "--model", "test:tini"), "test:tiny"),
        (("map", "programs.py:echo", "missing.jsonl"), "cannot read missing.jsonl"),
        (("map", "programs.py:echo", "missing.jsonl", "--resume"), "--out"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_says_what_there_is(cli: Cli, argv: tuple[str, ...], said: str) -> None:
    code, out, err = cli(*argv)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_an_unknown_command_exits_with_2(cli: Cli) -> None:
    code, _, err = cli("rum")
    assert code == 2
    assert "run" in err


def test_an_error_of_the_program_names_its_line_and_has_a_traceback_only_with_debug(cli: Cli) -> None:
    code, out, err = cli("run", "programs.py:breaks", "--arg", "text=luck")
    line = textwrap.dedent(PROGRAMS).splitlines().index('    raise KeyError(f"no {text}")') + 1
    assert (code, out) == (1, "")
    assert "KeyError: 'no luck'" in err
    assert f"programs.py:{line} in breaks" in err
    assert "Traceback" not in err
    assert "Traceback" in cli("run", "programs.py:breaks", "--arg", "text=luck", "--debug")[2]


def test_run_as_json_holds_value_usage_and_seed(cli: Cli) -> None:
    code, out, _ = cli("run", "programs.py:two", "--arg", "text=hi", "--json", "--seed", "7")
    shown = json.loads(out)
    assert code == 0
    assert isinstance(shown["value"], int)
    assert shown["seed"] == 7
    assert shown["usage"]["computed"] == shown["usage"]["prefilled"] + shown["usage"]["decoded"]


def test_run_shows_graph_text_value_and_figures_when_asked(cli: Cli) -> None:
    code, out, _ = cli("run", "programs.py:two", "--arg", "text=hi", "--show")
    assert code == 0
    titles = [line.split()[1] for line in out.splitlines() if line.startswith("-- ")]
    assert titles == ["graph", "text", "value", "tokens"]
    assert "two/fork[1]/gen" in out


def test_run_on_the_engine_reports_what_the_branches_shared(cli: Cli) -> None:
    code, out, err = cli("run", "programs.py:pick", "--arg", "text=hi", "--json", "--model", "test:tiny")
    assert code == 0, err
    shown = json.loads(out)
    assert shown["value"]["value"] in ("yes", "no")
    assert sum(shown["value"]["probs"].values()) == pytest.approx(1.0)
    assert shown["engine"]["forward_passes"] > 0
    assert shown["engine"]["blocks_referenced"] == 0


@pytest.mark.parametrize("form", ["mermaid", "text", "dot", "json", "html"])
def test_graph_prints_every_form_without_a_model(cli: Cli, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FURCATE_MODEL", "no such model")
    code, out, err = cli("graph", "programs.py:two", "--format", form)
    assert (code, err) == (0, "")
    assert "Fork" in out or "fork" in out
    if form == "json":
        assert {"name", "nodes", "edges"} <= set(json.loads(out))


def test_check_exits_with_1_on_an_error_and_0_without(cli: Cli) -> None:
    code, out, _ = cli("check", "programs.py:unbounded")
    line = textwrap.dedent(PROGRAMS).splitlines().index("    return c.gen()") + 1
    assert code == 1
    assert f"programs.py:{line}" in out
    assert cli("check", "programs.py:echo")[0] == 0


def test_check_of_a_file_covers_every_program_in_it(cli: Cli) -> None:
    code, out, _ = cli("check", "programs.py")
    assert code == 1
    assert out.splitlines()[-1].startswith("6 programs: 1 error")


def test_check_as_json_is_a_list_of_findings(cli: Cli) -> None:
    code, out, _ = cli("check", "programs.py:unbounded", "--json")
    findings = json.loads(out)
    assert code == 1
    assert {"code", "level", "message", "mend", "file", "line", "column"} == set(findings[0])
    assert json.loads(cli("check", "programs.py:echo", "--json")[1]) == []


def test_map_prints_a_value_for_every_row_in_order(cli: Cli, tmp_path: Path) -> None:
    rows = [{"text": "a\u2028b", "times": 2}, ["c", 1], {"text": "d"}]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    (tmp_path / "rows.jsonl").write_text(lines, encoding="utf-8")
    code, out, err = cli("map", "programs.py:echo", "rows.jsonl")
    assert code == 0, err
    assert [json.loads(line) for line in out.strip("\n").split("\n")] == ["a\u2028b a\u2028b", "c", "d"]
    assert "3 rows done, 0 failed" in err


def test_map_keeps_going_past_a_failed_row_and_exits_with_1(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('"one"\n"two"\n', encoding="utf-8")
    code, out, err = cli("map", "programs.py:breaks", "rows.jsonl")
    assert (code, out) == (1, "")
    assert "row 1: KeyError" in err
    assert "0 rows done, 2 failed" in err


def test_map_resumes_a_file_of_results_without_repeating_rows(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n', encoding="utf-8")
    assert cli("map", "programs.py:echo", "rows.jsonl", "-o", "out.jsonl")[0] == 0
    first = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert len(first.splitlines()) == 2
    code, out, err = cli("map", "programs.py:echo", "rows.jsonl", "-o", "out.jsonl", "--resume")
    assert (code, out) == (0, "")
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == first
    assert "2 rows done" in err


def test_a_row_that_is_not_json_is_named_by_its_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('"one"\ntwo\n', encoding="utf-8")
    code, _, err = cli("map", "programs.py:breaks", "rows.jsonl")
    assert code == 2
    assert "rows.jsonl:2" in err


def test_models_lists_the_embedded_and_the_test_models(cli: Cli) -> None:
    code, out, _ = cli("models")
    assert code == 0
    assert "smollm2-135m" in out
    assert "test:tiny" in out
    assert isinstance(json.loads(cli("models", "--json")[1]), list)


def test_a_program_of_an_importable_module_is_found(cli: Cli) -> None:
    assert cli("run", "programs:echo", "--arg", "text=hi")[1] == "hi\n"


def test_a_program_file_does_not_shadow_a_module_of_its_name(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(textwrap.dedent(PROGRAMS), encoding="utf-8")
    assert cli("run", "json.py:echo", "--arg", "text=hi", "--json")[0] == 0


def test_an_error_outside_the_program_names_no_line_of_a_library(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import json\nvalue = json.loads('{')\n", encoding="utf-8")
    code, _, err = cli("graph", "broken.py:echo")
    assert code == 1
    assert "broken.py:2 in <module>" in err


def test_the_package_can_be_run_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "furcate", "--version"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("furcate 0.")


def test_version_is_that_of_the_package(cli: Cli) -> None:
    code, out, _ = cli("--version")
    assert code == 0
    assert out.startswith("furcate 0.")


def test_values_are_text_where_they_are_text_and_json_otherwise() -> None:
    assert value_text("as\nit is") == "as\nit is"
    assert value_text(["a", 1, None]) == '[\n  "a",\n  1,\n  null\n]'
    assert value_json(ValueError("no")) == '"no"'


def test_usage_says_what_sharing_saved() -> None:
    usage = Usage(prompt=100, cached=10, shared=60, prefilled=30, decoded=20, generated=21)
    shown = usage_text(usage, {})
    assert "cached 10 + shared 60 + prefilled 30" in shown
    assert "without sharing 120, 58% less" in shown
    assert usage_text(Usage(), {})
