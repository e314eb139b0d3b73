"""Errors of the language. Those of the engine (``runtime.errors``) are re-exported: one place to look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..runtime.errors import (
    ContextOverflow,
    EngineClosed,
    EngineFailed,
    FurcateError,
    InvalidRegex,
    ModelLoadError,
    ModelNotFound,
    UnsatisfiableConstraint,
    UnsupportedByBackend,
    UnsupportedSchema,
)

if TYPE_CHECKING:
    from .run import Run

__all__ = [
    "BackendError",
    "BranchError",
    "BudgetExceeded",
    "Cancelled",
    "ContextBusy",
    "ContextClosed",
    "ContextOverflow",
    "EngineClosed",
    "EngineFailed",
    "FurcateError",
    "InvalidChoices",
    "InvalidMark",
    "InvalidRegex",
    "NoModel",
    "ModelLoadError",
    "ModelNotFound",
    "NoChatTemplate",
    "NoSource",
    "ProgramTimeout",
    "TemplateRefused",
    "Truncated",
    "UnboundedGeneration",
    "UnsatisfiableConstraint",
    "UnsupportedByBackend",
    "UnsupportedSchema",
    "ValidationFailed",
]


class BackendError(FurcateError):
    """The model or a backend failed in an operation; ``__cause__`` is the reason."""

    def __init__(self, message: str, *, where: str = "", path: str = "") -> None:
        super().__init__(message)
        self.where = where
        """``file:line`` of the operation."""
        self.path = path
        """Branch path and operation, e.g. ``judge/fork[2]/gen``."""
        self.run: Run[Any] | None = None


class BranchError(FurcateError):
    """A branch of a fork failed. Of the first failed branch, in branch order; ``others`` holds the rest."""

    def __init__(self, message: str, *, index: int, cause: Exception, others: Sequence[BranchError] = ()) -> None:
        super().__init__(message)
        self.index = index
        self.cause = cause
        self.others = others
        self.run: Run[Any] | None = None


class ContextClosed(FurcateError):
    """A context was used after its program or branch had ended, or after ``close()``."""


class ContextBusy(FurcateError):
    """A context was used while its own fork was running, or twice at once."""


class InvalidChoices(FurcateError, ValueError):
    """The choices of a ``select`` are empty, or two of them have the same text."""


class NoModel(FurcateError):
    """A program was run and no model is set."""


class InvalidMark(FurcateError):
    """A mark of another context, or one that an earlier rewind has dropped."""


class NoChatTemplate(FurcateError):
    """A role was used with a model that has no chat template."""


class TemplateRefused(FurcateError):
    """The model's chat template forbids or drops a turn at this place."""


class NoSource(FurcateError):
    """A program has no source that could be compiled: it runs, without a graph ahead of time."""


class UnboundedGeneration(FurcateError):
    """A ``gen`` without ``max_tokens`` whose type has no finite length."""


class ValidationFailed(FurcateError):
    """A generated value was decoded but its own validators refused it."""


class Truncated(FurcateError):
    """``max_tokens`` ended a value where its type may not end; ``partial`` is what there was."""

    def __init__(self, message: str, *, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial
        self.run: Run[Any] | None = None


class BudgetExceeded(FurcateError):
    """A budget was used up; raised before the operation is dispatched."""

    def __init__(self, message: str, *, kind: Literal["tokens", "seconds", "cost"], used: float, limit: float) -> None:
        super().__init__(message)
        self.kind: Literal["tokens", "seconds", "cost"] = kind
        self.used = used
        self.limit = limit


class ProgramTimeout(FurcateError, TimeoutError):
    """The program ran longer than its ``timeout``."""


class Cancelled(BaseException):
    """The run, or the branch, was cancelled. A BaseException, so that ``except Exception`` does not swallow it."""
