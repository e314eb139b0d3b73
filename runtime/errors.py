"""Errors of the engine. All derive from FurcateError, say what was tried and what to do."""

from __future__ import annotations


class FurcateError(Exception):
    """Base of every error that Furcate raises on purpose."""


class ContextOverflow(FurcateError):
    """A call needs more tokens than the model, or the KV pool, can hold."""

    def __init__(self, message: str, *, needed: int, limit: int, where: str = "") -> None:
        super().__init__(message)
        self.needed = needed
        self.limit = limit
        self.where = where


class UnsatisfiableConstraint(FurcateError):
    """No text satisfies the constraint, or none within ``max_tokens``."""


class InvalidRegex(FurcateError):
    """A regular expression is malformed, or uses what a constraint cannot express; the message shows where."""


class UnsupportedByBackend(FurcateError):
    """The model or backend lacks a feature that was asked for; the message names it."""


class UnsupportedSchema(FurcateError):
    """A part of a schema cannot be enforced exactly, or is no schema.

    ``path`` is its place as a JSON pointer fragment (``#/properties/a``), ``keyword`` what it is about, ``reason`` why.
    """

    def __init__(self, path: str, keyword: str = "", reason: str = "") -> None:
        super().__init__(f"{path}: {keyword}: {reason}" if reason else path)
        self.path = path
        self.keyword = keyword
        self.reason = reason or path


class ModelNotFound(FurcateError):
    """A model name could not be resolved; the message lists what was tried."""


class ModelLoadError(FurcateError):
    """A model's files are there but cannot be used."""


class EngineFailed(FurcateError):
    """A forward pass or the engine's own step failed; ``__cause__`` is the reason."""


class InvalidLogits(EngineFailed):
    """The model's logits are not numbers. The tokens they followed from are not kept in the cache."""


class EmptyPrompt(FurcateError, ValueError):
    """A call on a branch without a token: nothing predicts what comes first."""


class EngineClosed(FurcateError):
    """The engine was closed while the request was waiting."""
