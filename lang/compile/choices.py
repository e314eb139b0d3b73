"""Tests on values that were picked from known options: what each arm of an ``if`` or ``match`` leaves."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from .objects import is_type, options_of
from .values import Chosen, Const, Object, Test, Value, blend, const, constant_of, is_constant, origins

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def compare(op: ast.cmpop, a: Value, b: Value) -> Value:
    """``a op b``, with the options that are left where ``a`` was picked from known ones."""
    if is_constant(a) and is_constant(b):
        try:
            return const(bool(_COMPARISONS[type(op)](constant_of(a), constant_of(b))), **origins((a, b)))
        except TypeError:
            return blend(a, b)
    if isinstance(b, Chosen) and isinstance(op, ast.Eq | ast.NotEq):
        a, b = b, a
    options = options_of(b) if isinstance(op, ast.In | ast.NotIn) else option_of(b)
    if isinstance(a, Chosen) and not a.wrapped and options is not None:
        left = tuple(o for o in a.options if o in options)
        rest = tuple(o for o in a.options if o not in options)
        if isinstance(op, ast.Eq | ast.In | ast.Is):
            return Test(when_true=left, when_false=rest, **origins((a, b)))
        if isinstance(op, ast.NotEq | ast.NotIn | ast.IsNot):
            return Test(when_true=rest, when_false=left, **origins((a, b)))
    return blend(a, b)


def option_of(value: Value) -> tuple[Any, ...] | None:
    """The option that a value compares equal to, as a tuple of one."""
    if isinstance(value, Const):
        return (value.value,)
    if isinstance(value, Object) and not is_type(value.real):
        return (value.real,)
    return None


def arm_names(test: Value) -> tuple[str, str]:
    """Labels of the two arms of a test: the options left in each, where they are known."""
    if isinstance(test, Test):
        return options_label(test.when_true, "then"), options_label(test.when_false, "else")
    return "then", "else"


def options_label(options: tuple[Any, ...], otherwise: str) -> str:
    """Options as an arm's label."""
    return " | ".join(str(getattr(o, "value", o)) for o in options) or otherwise
