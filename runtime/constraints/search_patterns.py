r"""Patterns that are searched for, as JSON Schema has them: the automaton of all texts that hold a match.

The dialect is ECMA-262's as far as it is regular: ``\d`` and ``\w`` are ASCII, ``\D`` and ``\W`` all other characters.
Anchors may stand anywhere: the text is read between two marks, and ``^`` and ``$`` are those marks. Look-ahead at the
start of an anchored pattern becomes an intersection or a difference. A text never holds U+0001 to U+0004.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import lru_cache
from re import _constants as sre
from re import _parser as sre_parser
from typing import Any

import numpy as np

from ..errors import InvalidRegex, UnsatisfiableConstraint
from . import char_sets
from .byte_dfa import DEAD, ByteDFA, restricted
from .char_sets import CharSet
from .dfa_algebra import conjunction, minimal
from .limited import compile_limited
from .regex_syntax import EMPTY, MAX_POSITIONS, char_class, num_positions

START, END = 0x03, 0x04
_RESERVED: CharSet = ((0x01, 0x04),)
_LINE_ENDS: CharSet = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_SPACES: CharSet = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_ANYTHING = r"(?s:[\x{0}-\x{0}\x{3}-\x{10ffff}])*"
_DIGITS, _WORDS = char_sets.ASCII_CLASSES["digit"], char_sets.ASCII_CLASSES["word"]
_CATEGORIES: dict[Any, CharSet] = {
    sre.CATEGORY_DIGIT: _DIGITS,
    sre.CATEGORY_NOT_DIGIT: char_sets.complement(_DIGITS),
    sre.CATEGORY_SPACE: _SPACES,
    sre.CATEGORY_NOT_SPACE: char_sets.complement(_SPACES),
    sre.CATEGORY_WORD: _WORDS,
    sre.CATEGORY_NOT_WORD: char_sets.complement(_WORDS),
}
_STARTS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
_ENDS = (sre.AT_END, sre.AT_END_STRING)


@lru_cache(maxsize=512)
def searched(pattern: str) -> ByteDFA:
    """The automaton of the texts in which ``pattern`` matches somewhere.

    Raises InvalidRegex for what is malformed, not regular or too large; UnsatisfiableConstraint if no text matches.
    """
    source = re.sub(r"\(\?<([A-Za-z_]\w*)>", r"(?P<\1>", pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = sre_parser.parse(source)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRegex(f"the pattern {pattern!r} is malformed: {error}") from error
    if tree.state.flags & ~(sre.SRE_FLAG_UNICODE):
        raise InvalidRegex(f"the pattern {pattern!r} sets flags, which JSON Schema's dialect has not")
    if num_positions(tree) > MAX_POSITIONS:
        raise InvalidRegex(f"the pattern {pattern!r} stands for more than {MAX_POSITIONS:,} positions")
    items = list(tree)
    positive, negative, rest = _looks(items)
    wanted = [_marked(pattern, rest)]
    wanted.extend(_marked(pattern, [(sre.AT, sre.AT_BEGINNING), *look]) for look in positive)
    unwanted = []
    for look in negative:
        try:
            unwanted.append(_marked(pattern, [(sre.AT, sre.AT_BEGINNING), *look]))
        except UnsatisfiableConstraint:
            continue
    return conjunction(wanted, unwanted)


def _looks(items: list[Any]) -> tuple[list[list[Any]], list[list[Any]], list[Any]]:
    """Look-aheads right after a leading ``^``: positive ones, negative ones, and the pattern without them."""
    if not items or items[0][0] is not sre.AT or items[0][1] not in _STARTS:
        return [], [], items
    positive: list[list[Any]] = []
    negative: list[list[Any]] = []
    place = 1
    while place < len(items) and items[place][0] in (sre.ASSERT, sre.ASSERT_NOT) and items[place][1][0] == 1:
        (positive if items[place][0] is sre.ASSERT else negative).append(list(items[place][1][1]))
        place += 1
    return positive, negative, [items[0], *items[place:]]


def _marked(pattern: str, items: Sequence[Any]) -> ByteDFA:
    body = _sequence(pattern, items)
    dfa = compile_limited(f"{_ANYTHING}{body}{_ANYTHING}")
    start = int(dfa.table[0, START])
    if start == DEAD:
        raise UnsatisfiableConstraint(f"no text matches the pattern {pattern!r}")
    ended = dfa.table[:, END]
    accepting = (ended != DEAD) & dfa.accepting[ended]
    table = dfa.table.copy()
    table[:, [START, END]] = DEAD
    return minimal(restricted(*_from_state(table, accepting, start)))


def _from_state(table: Any, accepting: Any, start: int) -> tuple[Any, Any]:
    """The part of an automaton that is reachable from ``start``, which becomes state 0."""
    number = np.full(len(table), DEAD, dtype=np.int32)
    number[start] = 0
    order = [start]
    frontier = np.array([start])
    while len(frontier):
        targets = np.unique(table[frontier])
        fresh = targets[(targets != DEAD) & (number[targets] == DEAD)]
        number[fresh] = np.arange(len(order), len(order) + len(fresh))
        order.extend(fresh.tolist())
        frontier = fresh
    kept = table[order]
    return np.where(kept == DEAD, DEAD, number[kept]).astype(np.int32), accepting[order]


def _sequence(pattern: str, items: Sequence[Any]) -> str:
    return "".join(_item(pattern, op, value) for op, value in items) or EMPTY


def _item(pattern: str, op: Any, value: Any) -> str:
    if op in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
        chars = char_sets.subtract(_chars(op, value), _RESERVED)
        return char_class(chars) or r"[a&&b]"
    if op is sre.BRANCH:
        return f"(?:{'|'.join(_sequence(pattern, list(arm)) for arm in value[1])})"
    if op is sre.SUBPATTERN and not value[1] and not value[2]:
        return f"(?:{_sequence(pattern, list(value[3]))})"
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        low, high, body = value
        return f"(?:{_sequence(pattern, list(body))}){{{low},{'' if high is sre.MAXREPEAT else high}}}"
    if op is sre.AT and value in _STARTS:
        return rf"\x{{{START:x}}}"
    if op is sre.AT and value in _ENDS:
        return rf"\x{{{END:x}}}"
    raise InvalidRegex(f"the pattern {pattern!r} cannot constrain generation: {str(op).lower()} is not regular")


def _chars(op: Any, value: Any) -> CharSet:
    if op is sre.ANY:
        return char_sets.complement(_LINE_ENDS)
    if op is sre.LITERAL:
        return char_sets.subtract(((value, value),), char_sets.SURROGATES)
    if op is sre.NOT_LITERAL:
        return char_sets.complement(((value, value),))
    ranges: list[tuple[int, int]] = []
    negated = value[0][0] is sre.NEGATE
    for kind, what in value[1:] if negated else value:
        if kind is sre.LITERAL:
            ranges.append((what, what))
        elif kind is sre.RANGE:
            ranges.append(what)
        else:
            ranges.extend(_CATEGORIES[what])
    chars = char_sets.union(ranges)
    return char_sets.complement(chars) if negated else char_sets.intersect(chars, char_sets.ALL)
