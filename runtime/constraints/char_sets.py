"""Sets of characters as sorted code-point ranges, and the character classes of Python's ``re``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache

CharSet = tuple[tuple[int, int], ...]
"""Disjoint, ascending, non-adjacent ranges (low, high), both ends in the set."""

SURROGATES: CharSet = ((0xD800, 0xDFFF),)
"""Code points without a UTF-8 form: in no set of characters here."""


def union(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The ranges as one set."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def subtract(chars: CharSet, removed: CharSet) -> CharSet:
    """``chars`` without ``removed``."""
    kept: list[tuple[int, int]] = []
    for low, high in chars:
        start = low
        for gone_low, gone_high in removed:
            if gone_high < start or gone_low > high:
                continue
            if gone_low > start:
                kept.append((start, gone_low - 1))
            start = gone_high + 1
        if start <= high:
            kept.append((start, high))
    return tuple(kept)


ALL: CharSet = subtract(((0, sys.maxunicode),), SURROGATES)
"""Every character that has a UTF-8 form."""


def complement(chars: CharSet) -> CharSet:
    """Every character that is not in ``chars``."""
    return subtract(ALL, chars)


def intersect(a: CharSet, b: CharSet) -> CharSet:
    """The characters in both."""
    return subtract(a, complement(b))


ASCII_CLASSES: dict[str, CharSet] = {
    "digit": ((0x30, 0x39),),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "word": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
}
r"""``\d \s \w`` under ``re.ASCII``."""

_UNICODE_TESTS: dict[str, Callable[[str], bool]] = {
    "digit": str.isdecimal,
    "space": str.isspace,
    "word": lambda char: char.isalnum() or char == "_",
}


@lru_cache(maxsize=3)
def unicode_class(name: str) -> CharSet:
    r"""``\d \s \w`` as ``re`` reads them without ``re.ASCII``. name: ``digit``, ``space`` or ``word``."""
    test = _UNICODE_TESTS[name]
    return union((code, code) for low, high in ALL for code in range(low, high + 1) if test(chr(code)))


@lru_cache(maxsize=1)
def _case_groups() -> dict[int, tuple[int, ...]]:
    """Characters that ``re.IGNORECASE`` treats alike, for each character that has company."""
    groups: dict[int, set[int]] = {}
    for low, high in ALL:
        for code in range(low, high + 1):
            folded = ord(chr(code).lower()[0])
            if folded != code:
                groups.setdefault(folded, {folded}).add(code)
    # Lower-case letters that Unicode folds together although their lower forms differ, such as s and long s.
    for code in [
        code for low, high in ((0x80, 0x24FF), (0xA640, 0xABFF), (0xFB00, 0xFB06)) for code in range(low, high)
    ]:
        for other in {chr(code).upper().lower(), chr(code).casefold()}:
            if len(other) == 1 and ord(other) != code and re.fullmatch(re.escape(other), chr(code), re.IGNORECASE):
                groups.setdefault(ord(other), {ord(other)}).update(groups.pop(code, {code}))
    return {code: tuple(sorted(group)) for group in groups.values() for code in group}


def ignoring_case(chars: CharSet) -> CharSet:
    """``chars`` and every character that differs from one of them only by case."""
    groups = _case_groups()
    extra = [other for code, group in groups.items() if _holds(chars, code) for other in group]
    return union([*chars, *((code, code) for code in extra)])


def _holds(chars: CharSet, code: int) -> bool:
    return any(low <= code <= high for low, high in chars)
