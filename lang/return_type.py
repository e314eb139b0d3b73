"""The declared return type of a program, for rebuilding values that were written to a file."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any


def return_type(fn: Callable[..., Any]) -> Any | None:
    """The resolved return annotation of ``fn``; None where there is none or it cannot be resolved."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(fn), include_extras=True)
    except (NameError, TypeError, AttributeError):
        return None
    return hints.get("return")
