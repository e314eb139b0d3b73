"""``load_model``: from a name to a model that can run."""

from __future__ import annotations

import torch

from ..errors import ModelNotFound
from .loaded import LoadedModel
from .tiny import TINY_NAME, load_tiny

__all__ = ["LoadedModel", "load_model"]


def load_model(name: str, *, dtype: torch.dtype | None = None, device: str | None = None) -> LoadedModel:
    """Load the model called ``name``. Raises ModelNotFound, listing what was tried."""
    if name == TINY_NAME:
        return load_tiny(dtype=dtype, device=device)
    raise ModelNotFound(f"no model is called {name!r}")
