"""The small programs of tests/programs, each file holding one program of its own name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from furcate.lang.program import Program

FOLDER = Path(__file__).parent / "programs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def load_program(name: str) -> Program:
    """The program ``name`` of tests/programs/name.py."""
    spec = importlib.util.spec_from_file_location(f"small_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)
