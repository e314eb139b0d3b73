"""Furcate's own cache of converted models: where it is, and how a directory gets into it whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import ModelLoadError

_PARTIAL = ".partial-"
_STALE_S = 6 * 3600
"""Age from which a partial directory is taken for the remains of a killed process."""


def cache_dir() -> Path:
    """``FURCATE_CACHE_DIR``, else ``furcate`` under ``XDG_CACHE_HOME`` or ``~/.cache``. It may not exist yet."""
    chosen = os.environ.get("FURCATE_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "furcate"


def models_dir() -> Path:
    """Directory of the converted models, one folder each."""
    return cache_dir() / "models"


def offline() -> bool:
    """Whether ``FURCATE_OFFLINE`` forbids every use of the network."""
    return os.environ.get("FURCATE_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def publish(target: Path, build: Callable[[Path], None]) -> None:
    """Fill a directory by ``build`` and rename it to ``target``, so that ``target`` is never seen half written.

    Several processes may do so at once: the first rename wins and the others drop their copies. Raises ModelLoadError
    where the cache cannot be written; what ``build`` raises passes through.
    """
    partial: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _drop_stale(target.parent)
        partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{target.name}-", dir=target.parent))
        build(partial)
        partial.chmod(0o755)
        if not target.exists():
            _rename(partial, target)
    except OSError as error:
        raise ModelLoadError(
            f"the cache {target.parent} cannot be written: {error}. Set FURCATE_CACHE_DIR to a directory with space "
            "that this user may write."
        ) from error
    finally:
        if partial is not None and partial.exists():
            shutil.rmtree(partial, ignore_errors=True)


def _rename(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():  # not another process's copy, which would be as good
            raise


def _drop_stale(parent: Path) -> None:
    for path in parent.glob(f"{_PARTIAL}*"):
        if time.time() - path.stat().st_mtime > _STALE_S:
            shutil.rmtree(path, ignore_errors=True)
