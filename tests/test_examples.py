"""The numbered examples: each prints what is kept in examples/expected under a scripted model, and runs for real."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from furcate import Program, testing

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


def load(path: Path) -> ModuleType:
    name = f"example_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def answer_judge(prompt: str) -> str:
    if "Decide." in prompt:
        return '{"decision":"revise","score":7,"reason":"Good for children; help the baker."}'
    remarks = {"cost": "It costs little.", "safety": "Children are safer.", "fairness": "The baker loses."}
    return next(remark for view, remark in remarks.items() if f"judge the {view}" in prompt)


def answer_route(prompt: str) -> str:
    letter = prompt[prompt.rindex("user") :]
    return "delivery" if "order" in letter else "repairs" if "lamp" in letter else "billing"


def answer_due(prompt: str) -> str:
    return "Saturday" if prompt.endswith("Answer: ") else "Closed on Friday: a day later."


def answer_harbour(prompt: str) -> str:
    if "nights at the south quay cost" in prompt:
        return '{"action":"reply","text":"Yes, there are 5 berths, and three nights cost 36 euros."}'
    if "berths are free" in prompt:
        return '{"action":"price","quay":"south","nights":3}'
    return '{"action":"free","quay":"south"}'


def answer_riddle(prompt: str) -> str:
    if "Is this a good riddle" in prompt:
        return "yes"
    lines = ["I have no hands,", "yet I close doors.", "Who am I?"]
    return next((line for line in lines if line not in prompt), lines[-1])


def answer_chat(prompt: str) -> str:
    if "number" in prompt:
        return "12"
    return "The one under the moon." if "higher" in prompt else "The sea bulges on two sides."


ENGINE = {"07_shared_prefix"}
"""Examples about the engine's figures: their output is kept as ``test:tiny`` gives it."""

ANSWERS = {
    "01_judge": answer_judge,
    "02_few_shot": answer_route,
    "03_vote": answer_due,
    "04_react": answer_harbour,
    "05_tree_of_thought": answer_riddle,
    "06_chat": answer_chat,
}


def test_every_example_has_a_script_and_kept_output() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(ANSWERS.keys() | ENGINE)
    kept = {path.stem for path in (ROOT / "examples" / "expected").glob("*.txt")}
    assert kept == ANSWERS.keys() | ENGINE


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_is_kept(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(path).main("test:tiny" if path.stem in ENGINE else testing.Scripted(ANSWERS[path.stem]))
    expected = (ROOT / "examples" / "expected" / f"{path.stem}.txt").read_text(encoding="utf-8")
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_ends_in_values_of_its_types_on_random_valid_text(path: Path) -> None:
    load(path).main(testing.RandomValid(7))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_programs_of_an_example_compile_to_a_plan_without_mistakes(path: Path) -> None:
    programs = [value for value in vars(load(path)).values() if isinstance(value, Program)]
    assert programs or path.stem == "06_chat"
    for program in programs:
        assert len(program.compile().nodes) > 2
        assert [finding.render() for finding in program.check() if finding.level == "error"] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_on_the_real_engine(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(path).main("test:tiny")
    assert capsys.readouterr().out


def test_an_example_is_a_script_that_takes_a_model() -> None:
    script = [sys.executable, str(EXAMPLES[1]), "--model", "test:scripted"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 4


def readme_block(marker: str, language: str) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- {marker} -->\n```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None, marker
    return found[1]


def test_the_readme_shows_the_judge_as_it_is_written() -> None:
    assert readme_block("program", "python").strip() in (ROOT / "examples" / "01_judge.py").read_text(encoding="utf-8")


def test_the_readme_shows_the_graph_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from furcate.lang.cli import main  # noqa: PLC0415 - the command, as a reader would give it

    assert main(["graph", str(ROOT / "examples" / "01_judge.py") + ":judge"]) == 0
    assert readme_block("graph", "mermaid") == capsys.readouterr().out
