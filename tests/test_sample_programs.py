"""The sample programs that fix the language's surface: each runs unmodified on real and stand-in models.

They live in a folder ``shared/programs`` beside the checkout (or where FURCATE_SAMPLE_PROGRAMS says).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import furcate as fc
from furcate.testing import RandomValid

FOLDER = Path(os.environ.get("FURCATE_SAMPLE_PROGRAMS", Path(__file__).resolve().parents[2] / "shared" / "programs"))
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the sample programs are not beside this checkout")

ARGUMENTS = {
    "few_shot:classify": ("Superb acting, dull plot.",),
    "few_shot:classify_raw": ("Superb acting, dull plot.",),
    "judge:judge": ("Tea is better than coffee, because it is calmer. Everyone knows it.",),
    "nested:tip": ("gardening", 1),
    "nested:article": ("gardening",),
    "react:react": ("How many more people live in Finland than in Norway?",),
    "tree_of_thought:tree_of_thought": ("Make 24 from 4, 6, 8, 2.",),
    "vote:solve": ("Ann has 3 apples and buys 4 more. How many has she?",),
    "grammar:formula": ("two plus three",),
    "extract:outline": ("A document.",),
    "extract:extract": ("Invoice of 3 May 2026 from Alder & Co: 2 x AB-104 at 9.50 EUR.",),
}
REAL = ["few_shot:classify", "judge:judge", "react:react", "vote:solve", "nested:article"]


def load(name: str) -> ModuleType:
    path = FOLDER / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"sample_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def find(name: str) -> fc.Program:
    module, _, program = name.partition(":")
    return getattr(load(module), program)


def value_or_truncated(program: fc.Program, name: str) -> None:
    """Run it; random weights, and small ones, may reach ``max_tokens`` where a value may not end."""
    try:
        program(*ARGUMENTS[name])
    except fc.Truncated:
        return
    except fc.BranchError as error:
        if not isinstance(error.cause, fc.Truncated):
            raise


@pytest.fixture(scope="module")
def tiny():
    model = fc.load("test:tiny")
    yield model
    model.close()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_ends_in_a_value_or_truncated_on_random_weights(name, tiny):
    value_or_truncated(find(name).using(tiny, seed=11), name)
    tiny.check_integrity()
    assert tiny.stats()["blocks_referenced"] == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_ends_in_a_value_on_random_valid_answers(name, seed):
    find(name).using(RandomValid(seed), seed=seed)(*ARGUMENTS[name])


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_plan_names_every_operation_that_runs(name):
    run = find(name).using(RandomValid(5), seed=5).run(*ARGUMENTS[name])
    assert [e for e in run.events if e.kind == "break"] == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")) if FOLDER.is_dir() else [], ids=lambda p: p.stem)
def test_every_program_compiles_with_no_model_and_no_inputs(path):
    programs = [value for value in vars(load(path.stem)).values() if isinstance(value, fc.Program)]
    for program in programs:
        graph = program.compile()
        assert graph.nodes
        assert "flowchart" in graph.to_mermaid()
        assert graph.to_json()
        errors = [f for f in program.check() if f.level in ("error", "warning")]
        assert bool(errors) == (path.stem == "mistakes"), errors


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
def test_it_runs_on_the_embedded_model(name, embedded):
    value_or_truncated(find(name).using(embedded, seed=1), name)
    embedded.check_integrity()
    assert embedded.stats()["blocks_referenced"] == 0


@pytest.mark.slow
@pytest.mark.real
def test_the_chat_runs_as_a_script():
    done = subprocess.run(
        [sys.executable, str(FOLDER / "chat.py")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cached=" in done.stdout
