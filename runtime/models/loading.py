"""``load_model``: from a name to a model that can run."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Unpack

from ..errors import ModelLoadError, ModelNotFound
from .directory import load_directory
from .embedded import load_embedded
from .gguf_file import load_gguf
from .hub import load_hub
from .known import EMBEDDED_NAME, TINY_NAME, list_models
from .loaded import LoadedModel, LoadOptions
from .tiny import load_tiny

__all__ = ["LoadedModel", "LoadOptions", "load_model"]


def load_model(name: str, **options: Unpack[LoadOptions]) -> LoadedModel:
    """Load the model called ``name``; fp32 on a CPU and with its whole context unless told otherwise.

    ``name`` is ``smollm2-135m`` (embedded), ``test:tiny``, a local directory, a ``.gguf`` file or a Hugging Face id.
    Raises ModelNotFound, which lists what was tried, or ModelLoadError where the files are there but cannot be used.
    """
    if name == TINY_NAME:
        return load_tiny(**options)
    if name == EMBEDDED_NAME:
        return load_embedded(**options)
    path = Path(name).expanduser()
    if path.is_dir():
        return load_directory(name, path, **options)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelNotFound(f"there is no file {path.absolute()}")
        return load_gguf(name, path, **options)
    if path.is_file():
        raise ModelLoadError(f"{path} is neither a model directory nor a .gguf file")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return load_hub(name, **options)
    raise ModelNotFound(_not_found(name, path))


def _not_found(name: str, path: Path) -> str:
    names = [info.name for info in list_models()]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    tried = f"a built-in name ({EMBEDDED_NAME}, {TINY_NAME}), the directory {path.absolute()}, a .gguf file"
    tried += ", a Hugging Face id (owner/model)"
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"no model is called {name!r}. Tried: {tried}.{hint}"
