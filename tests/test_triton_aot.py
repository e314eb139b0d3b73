"""The Triton kernels compiled for GPUs that are not there. Not in this process: another test may choose differently."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(selection: str, *options: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pytest", "-q", "-m", selection, "tests/gpu/aot_compile.py", *options]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed (extra: gpu)"
)


@needs_triton
def test_kernels_compile_under_their_ceilings() -> None:
    run("not slow")


@needs_triton
@pytest.mark.slow
def test_the_rarer_shapes_compile_under_their_ceilings() -> None:
    run("slow")


@needs_triton
def test_the_benchmarks_dry_run_needs_no_gpu() -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--dry-run", "--targets", "sm_90"]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    fork = next(plan for plan in result["plans"] if (plan["branches"], plan["prefix"]) == (64, 8192))
    assert fork["kv_bytes_unshared"] > 40 * fork["kv_bytes_read"]
    assert all(taken.endswith(" 0 B spilled") for taken in result["kernels"].values())
