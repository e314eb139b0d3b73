r"""Regular expressions as users write them (Python's ``re``), rewritten for the automaton compiler.

The whole text must match, so a leading ``^`` and a trailing ``$`` are redundant. Supported is what is regular: classes,
groups, alternatives, repetition (greedy or lazy: the language is the same), the flags i, s, x, a. Look-around,
back-references, word boundaries, possessive repetition, atomic and conditional groups raise InvalidRegex.

``\d \w \s`` are their ASCII characters, while ``\D \W \S`` leave out the Unicode ones too, so that a text that
matches does so under either reading. The control characters U+0001 and U+0002 are in no class and in no text.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

# typeshed has no stubs for re's own parser; its tree has been stable since Python 2. Whether mypy minds depends on what
# it has read before (a cold run does not, a warm one does).
from re import _constants as sre  # type: ignore[attr-defined,unused-ignore]
from re import _parser as sre_parser  # type: ignore[attr-defined,unused-ignore]
from typing import Any, NamedTuple

from ..errors import InvalidRegex, UnsatisfiableConstraint
from . import char_sets
from .byte_dfa import MAX_PATTERN_CHARS
from .char_sets import CharSet

MAX_POSITIONS = 100_000
"""States that a pattern may come to, estimated with its counted repetitions written out. Patterns with more are
refused, since outlines-core can be neither limited nor interrupted."""

WIDE_POSITIONS = 8
"""States that match one character of a class which reaches beyond ASCII: UTF-8 takes up to four bytes."""

RESERVED: CharSet = ((0x01, 0x02),)

Spelling = Callable[[CharSet], str | None]
"""The pattern that spells one character of a set; None if the set is empty."""

Rewritten = str | None
"""A pattern in the compiler's dialect, None for one that matches no text at all."""

EMPTY = "(?:)"


def char_class(chars: CharSet) -> str | None:
    """``chars`` as a class of the compiler's dialect, None if empty."""
    if not chars:
        return None
    return "[" + "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in chars) + "]"


def plain(chars: CharSet) -> str | None:
    """A character as itself, without the two reserved ones."""
    return char_class(char_sets.subtract(chars, RESERVED))


@lru_cache(maxsize=512)
def translate(pattern: str, spelling: Spelling = plain) -> str:
    """``pattern`` in the compiler's dialect, each character spelt by ``spelling``.

    Raises InvalidRegex for what is malformed or not regular, UnsatisfiableConstraint if no text can match.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # re warns of classes that may change meaning; they are read as re does
            tree = sre_parser.parse(pattern)
    except (re.error, OverflowError) as error:
        raise InvalidRegex(f"the pattern {pattern!r} is malformed: {error}") from error
    except RecursionError as error:
        raise InvalidRegex(f"the pattern of {len(pattern)} characters is nested too deeply") from error
    if num_positions(tree) > MAX_POSITIONS:
        raise InvalidRegex(
            f"the pattern {pattern!r} stands for {num_positions(tree):,} positions with its repetitions written out;"
            f" at most {MAX_POSITIONS:,} are compiled"
        )
    rewritten = _Rewriter(pattern, spelling).sequence(list(tree), tree.state.flags, _Place(first=True, last=True))
    if rewritten is None:
        raise UnsatisfiableConstraint(f"no text matches the pattern {pattern!r}")
    return rewritten


def anchors(pattern: str) -> tuple[bool, bool]:
    """Whether ``pattern`` begins with ``^`` (or ``\\A``) and whether it ends with ``$`` (or ``\\Z``).

    Raises InvalidRegex if it is malformed.
    """
    try:
        tree = list(sre_parser.parse(pattern))
    except (re.error, OverflowError) as error:
        raise InvalidRegex(f"the pattern {pattern!r} is malformed: {error}") from error
    starts = bool(tree) and tree[0][0] is sre.AT and tree[0][1] in _STARTS
    ends = bool(tree) and tree[-1][0] is sre.AT and tree[-1][1] in _ENDS
    return starts, ends


def num_positions(items: Iterable[tuple[Any, Any]]) -> int:
    """Estimated states of a pattern's parse tree once its counted repetitions are written out."""
    total = 0
    for op, value in items:
        if op is sre.BRANCH:
            total += sum(num_positions(arm) for arm in value[1])
        elif op is sre.SUBPATTERN:
            total += num_positions(value[3])
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            low, high, body = value
            total += num_positions(body) * max(1, low if high is sre.MAXREPEAT else int(high))
        elif op in (sre.ANY, sre.NOT_LITERAL) or (op is sre.IN and value[0][0] is sre.NEGATE):
            total += WIDE_POSITIONS
        else:
            total += 1
    return total


_STARTS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
_ENDS = (sre.AT_END, sre.AT_END_STRING)
_CLASSES = {
    sre.CATEGORY_DIGIT: ("digit", False),
    sre.CATEGORY_NOT_DIGIT: ("digit", True),
    sre.CATEGORY_SPACE: ("space", False),
    sre.CATEGORY_NOT_SPACE: ("space", True),
    sre.CATEGORY_WORD: ("word", False),
    sre.CATEGORY_NOT_WORD: ("word", True),
}
_REFUSED = {
    sre.ASSERT: "look-ahead and look-behind",
    sre.ASSERT_NOT: "negative look-ahead and look-behind",
    sre.GROUPREF: "back-references",
    sre.GROUPREF_EXISTS: "conditional groups",
    sre.ATOMIC_GROUP: "atomic groups",
    sre.POSSESSIVE_REPEAT: "possessive repetition",
}

Item = tuple[Any, Any]


class _Place(NamedTuple):
    """What stands around an item of a pattern: decides what an anchor means there."""

    first: bool
    """No text can come before it."""
    last: bool
    """No text can come after it."""
    preceded: bool = False
    """Some text must come before it."""
    followed: bool = False
    """Some text must come after it."""


class _Rewriter:
    """Walks the tree of one pattern."""

    def __init__(self, pattern: str, spelling: Spelling) -> None:
        self._pattern = pattern
        self._spelling = spelling

    def sequence(self, items: Sequence[Item], flags: int, place: _Place) -> Rewritten:
        for op, _ in items:
            if op in _REFUSED:
                raise self._refusal(f"{_REFUSED[op]} cannot be turned into an automaton")
        parts: list[str] = []
        widths = [_width(item) for item in items]
        for i, item in enumerate(items):
            before, after = widths[:i], widths[i + 1 :]
            around = _Place(
                place.first and all(high == 0 for _, high in before),
                place.last and all(high == 0 for _, high in after),
                place.preceded or any(low > 0 for low, _ in before),
                place.followed or any(low > 0 for low, _ in after),
            )
            part = self._item(item, flags, around)
            if part is None:
                return None
            parts.append(part)
        text = "".join(parts)
        if len(text) > MAX_PATTERN_CHARS:
            raise self._refusal("it expands to too many characters")
        return text or EMPTY

    def _item(self, item: Item, flags: int, place: _Place) -> Rewritten:
        op, value = item
        if op is sre.LITERAL:
            return self._literal(value, flags)
        if op in (sre.NOT_LITERAL, sre.ANY, sre.IN):
            return self._spelling(self._chars(item, flags))
        if op is sre.BRANCH:
            arms = [self.sequence(list(arm), flags, place) for arm in value[1]]
            living = [arm for arm in arms if arm is not None]
            return f"(?:{'|'.join(living)})" if living else None
        if op is sre.SUBPATTERN:
            _, added, removed, body = value
            inner = self.sequence(list(body), (flags | added) & ~removed, place)
            return None if inner is None else f"(?:{inner})"
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            return self._repeat(value, flags, place)
        if op is sre.AT:
            return self._anchor(value, flags, place)
        raise self._refusal(f"{str(op).lower()} cannot be turned into an automaton")

    def _literal(self, code: int, flags: int) -> Rewritten:
        if self._spelling is plain and RESERVED[0][0] <= code <= RESERVED[0][1]:
            raise self._refusal(f"the control character U+{code:04X} is reserved")
        chars: CharSet = ((code, code),)
        if flags & re.IGNORECASE:
            chars = char_sets.ignoring_case(chars)
        return self._spelling(char_sets.subtract(chars, char_sets.SURROGATES))

    def _repeat(self, value: tuple[int, int, Sequence[Item]], flags: int, place: _Place) -> Rewritten:
        low, high, body = value
        once = high == 1
        inside = place if once else _Place(first=False, last=False)
        inner = self.sequence(list(body), flags, inside)
        if inner is None:
            return EMPTY if low == 0 else None
        if high == 0:
            return EMPTY
        upper = "" if high is sre.MAXREPEAT else str(high)
        return f"(?:{inner}){{{low},{upper}}}"

    def _anchor(self, at: Any, flags: int, place: _Place) -> Rewritten:
        if at not in (*_STARTS, *_ENDS):
            raise self._refusal("word boundaries cannot be turned into an automaton")
        if flags & re.MULTILINE and at in (sre.AT_BEGINNING, sre.AT_END):
            raise self._refusal("anchors of single lines (the flag m) are not supported")
        redundant, impossible = (place.first, place.preceded) if at in _STARTS else (place.last, place.followed)
        if redundant:
            return EMPTY
        if impossible:
            return None
        raise self._refusal("an anchor stands where text may or may not come before or after it")

    def _chars(self, item: Item, flags: int) -> CharSet:
        op, value = item
        if op is sre.ANY:
            return char_sets.ALL if flags & re.DOTALL else char_sets.complement(((0x0A, 0x0A),))
        if op is sre.NOT_LITERAL:
            return char_sets.complement(self._cased([(value, value)], flags))
        negated = value[0][0] is sre.NEGATE
        ranges: list[tuple[int, int]] = []
        classes: list[tuple[int, int]] = []
        for kind, what in value[1:] if negated else value:
            if kind is sre.LITERAL:
                ranges.append((what, what))
            elif kind is sre.RANGE:
                ranges.append(what)
            else:
                classes.extend(_category(what, wide=negated))
        chars = char_sets.union([*self._cased(ranges, flags), *classes])
        return char_sets.complement(chars) if negated else char_sets.intersect(chars, char_sets.ALL)

    def _cased(self, ranges: Sequence[tuple[int, int]], flags: int) -> CharSet:
        chars = char_sets.union(ranges)
        return char_sets.ignoring_case(chars) if flags & re.IGNORECASE else chars

    def _refusal(self, why: str) -> InvalidRegex:
        return InvalidRegex(f"the pattern {self._pattern!r} cannot constrain generation: {why}")


def _category(category: Any, *, wide: bool) -> CharSet:
    """A class under both its readings: their intersection, or, inside a negated class, their union."""
    name, negative = _CLASSES[category]
    narrow_class = wide == negative
    chars = char_sets.ASCII_CLASSES[name] if narrow_class else char_sets.unicode_class(name)
    return char_sets.complement(chars) if negative else chars


def _width(item: Item) -> tuple[int, int]:
    """Least and greatest number of characters that an item takes."""
    low, high = sre_parser.SubPattern(sre_parser.State(), [item]).getwidth()
    return low, high
