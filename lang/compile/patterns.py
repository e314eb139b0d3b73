"""Patterns of ``match``: the label of an arm, the options it takes, the names it binds."""

from __future__ import annotations

import ast
from functools import reduce

from .choices import options_label
from .objects import options_of
from .planner import Planner
from .values import Sequence, unparse


def case_label(
    planner: Planner, case: ast.match_case, left: tuple[object, ...] | None
) -> tuple[str, tuple[object, ...] | None]:
    """An arm's label, and the options that are left after it."""
    pattern = case.pattern
    if is_whole(pattern):
        return options_label(left or (), "else"), () if case.guard is None else left
    values = _pattern_values(planner, pattern)
    if left is not None and values is not None:
        taken = tuple(option for option in left if option in values)
        rest = left if case.guard is not None else tuple(option for option in left if option not in values)
        return options_label(taken, unparse(pattern)), rest
    return unparse(pattern), left


def _pattern_values(planner: Planner, pattern: ast.pattern) -> tuple[object, ...] | None:
    match pattern:
        case ast.MatchValue(value=expression) if isinstance(expression, ast.Constant | ast.Attribute | ast.UnaryOp):
            found = planner.evaluate(expression)
            return options_of(Sequence(items=(found,)))
        case ast.MatchSingleton(value=value):
            return (value,)
        case ast.MatchOr(patterns=patterns):
            parts = [_pattern_values(planner, p) for p in patterns]
            return None if None in parts else reduce(lambda a, b: a + b, [p for p in parts if p is not None])
    return None


def is_whole(pattern: ast.pattern) -> bool:
    """Whether a pattern matches anything."""
    return isinstance(pattern, ast.MatchAs) and (pattern.pattern is None or is_whole(pattern.pattern))


def captured_names(pattern: ast.pattern) -> list[str]:
    names = []
    for node in ast.walk(pattern):
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            names.append(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.append(node.rest)
    return names
