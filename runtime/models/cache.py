"""Furcate's own cache of converted models: where it is, and how a directory gets into it whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ModelLoadError

try:
    import fcntl
except ImportError:  # not on Windows: remains are then told by their age
    fcntl = None  # type: ignore[assignment]  # the module is looked at before each use

_PARTIAL = ".partial-"
_LOCK = ".lock"
"""Held by the process that fills a partial directory: a lock that can be had is that of a killed one."""
_STARTING_S = 60
"""Age below which a partial directory without a lock may still be about to get one, or its final name."""
_STALE_S = 6 * 3600
"""The same where locks cannot be asked."""


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

    Several processes may do so at once: the first rename wins and the others drop their copies. What a killed process
    has left is dropped on the way. Raises ModelLoadError where the cache cannot be written; what ``build`` raises
    passes through, an OSError as ModelLoadError.
    """
    partial: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _drop_stale(target.parent)
        partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{target.name}-", dir=target.parent))
        with _held(partial / _LOCK):
            build(partial)
            (partial / _LOCK).unlink()
            _flush(partial)
            partial.chmod(0o755)
            if not target.exists():
                _rename(partial, target)
    except OSError as error:
        raise unwritable(target.parent, error) from error
    finally:
        if partial is not None and partial.exists():
            shutil.rmtree(partial, ignore_errors=True)


def unwritable(directory: Path, error: Exception) -> ModelLoadError:
    """The error for a cache that is full or may not be written."""
    return ModelLoadError(
        f"the cache {directory} cannot be written: {error}. Free space there, or set FURCATE_CACHE_DIR to a directory "
        "with space that this user may write."
    )


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    with lock.open("wb") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _flush(directory: Path) -> None:
    """To the disk before the rename, so that not even a power cut leaves a directory of empty files."""
    for path in (*directory.rglob("*"), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _rename(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():  # not another process's copy, which would be as good
            raise


def _drop_stale(parent: Path) -> None:
    for path in parent.glob(f"{_PARTIAL}*"):
        try:
            if _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue  # published or dropped by its owner just now


def _is_abandoned(partial: Path) -> bool:
    age_s = time.time() - partial.stat().st_mtime
    if fcntl is None:
        return age_s > _STALE_S
    try:
        with (partial / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return age_s > _STARTING_S
    except OSError:  # held, or a file system without locks
        return age_s > _STALE_S
    return True
