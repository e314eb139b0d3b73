"""Which model a program runs on: ``load``, ``using``, and the environment's fallback."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..runtime import logs
from .backends.base import Model
from .errors import NoModel

EMBEDDED = "smollm2-135m"
"""The default model: SmolLM2-135M-Instruct, fetched on first use."""

_model: contextvars.ContextVar[Model | None] = contextvars.ContextVar("furcate_model", default=None)
_fallback: dict[str, Model] = {}  # the model that FURCATE_MODEL names, loaded once


def load(name: str = EMBEDDED, /, **options: Any) -> Model:
    """Load a model and start an engine for it.

    name: ``smollm2-135m``, a local directory, a Hugging Face id, a ``.gguf`` file, ``test:tiny`` (random weights, the
    real engine) or ``test:scripted`` (no weights, no options: the shortest valid value). options: ``kv_tokens`` (size
    of the KV pool), ``max_step_tokens``, ``max_context`` (tokens that a sequence may hold), ``plan``,
    ``deterministic``, ``dtype``, ``device``.

    Raises ModelNotFound, ModelLoadError, TypeError for an option that the model does not have.
    """
    logs.configure()
    if not isinstance(name, str):
        raise TypeError(f"load takes a model's name or path as text, not {type(name).__name__}")
    if name == "test:scripted":
        from .testing import Scripted  # noqa: PLC0415 - a test model, loaded where it is asked for

        if options:
            raise TypeError(f"load: test:scripted has no options, and {', '.join(options)} was given")
        return Scripted()
    from .backends.engine import EngineModel  # noqa: PLC0415 - imports torch and transformers: seconds

    return EngineModel.load(name, **options)


def as_model(model: Model | str) -> Model:
    """``model``, loaded where it is a name. Raises TypeError for what is neither."""
    if isinstance(model, str):
        return load(model)
    if not isinstance(model, Model):
        raise TypeError(f"a model is a name or what fc.load returns, not {type(model).__name__}")
    return model


@contextmanager
def using(model: Model | str, /) -> Iterator[Model]:
    """``with fc.using(model):`` programs in the block run on ``model``. A name is loaded, and closed at the end."""
    loaded = as_model(model)
    token = _model.set(loaded)
    try:
        yield loaded
    finally:
        _model.reset(token)
        if loaded is not model:
            loaded.close()


def current_model() -> Model | None:
    """The model of the innermost ``using``, or the one that FURCATE_MODEL names, or None."""
    model = _model.get()
    if model is not None:
        return model
    name = os.environ.get("FURCATE_MODEL")
    if not name:
        return None
    if name not in _fallback:
        _fallback[name] = load(name)
    return _fallback[name]


def require_model() -> Model:
    """The current model. Raises NoModel, which says how to set one."""
    model = current_model()
    if model is None:
        raise NoModel(
            f'no model is set. Use `with fc.using("{EMBEDDED}"):` (fetched once, runs on a CPU), program.using(model), '
            "or the environment variable FURCATE_MODEL. (The block of `fc.using` reaches the thread that it is in, not "
            "threads that it starts.)"
        )
    return model
