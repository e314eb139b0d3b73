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
    """A part of a schema cannot be enforced exactly."""


class ModelNotFound(FurcateError):
    """A model name could not be resolved; the message lists what was tried."""


class ModelLoadError(FurcateError):
    """A model's files are there but cannot be used."""


class EngineFailed(FurcateError):
    """A forward pass or the engine's own step failed; ``__cause__`` is the reason."""


class EngineClosed(FurcateError):
    """The engine was closed while the request was waiting."""
