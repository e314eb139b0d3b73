"""The Triton kernels in Triton's interpreter, which is chosen before triton is imported: each file has a process."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path.name for path in (ROOT / "tests" / "gpu").glob("interpreter_*.py"))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed (extra: gpu)")
@pytest.mark.parametrize("file", FILES)
def test_kernels_agree_with_their_references(file: str) -> None:
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", f"tests/gpu/{file}"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
