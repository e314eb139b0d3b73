"""Regular rules for the text of values: pieces of pattern with an estimate of the states they cost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from ..runtime.constraints import char_sets
from ..runtime.constraints.char_sets import CharSet
from ..runtime.constraints.regex_syntax import EMPTY, WIDE_POSITIONS, anchors, char_class, translate

Json = str | int | float | bool | None
"""A JSON scalar."""


class Rule(NamedTuple):
    """A pattern in the automaton compiler's dialect, safe to stand anywhere in a larger one."""

    pattern: str
    positions: int
    """Estimated states, with counted repetitions written out."""


def literal(text: str) -> Rule:
    """Exactly ``text``, which holds neither U+0001 nor U+0002."""
    return Rule("".join(rf"\x{{{ord(char):x}}}" for char in text) or EMPTY, len(text.encode()))


def sequence(rules: Iterable[Rule]) -> Rule:
    """The rules one after the other."""
    parts = list(rules)
    return Rule("".join(part.pattern for part in parts) or EMPTY, sum(part.positions for part in parts))


def either(rules: Iterable[Rule]) -> Rule:
    """Any one of the rules, of which there is at least one."""
    parts = list(rules)
    return Rule(f"(?:{'|'.join(part.pattern for part in parts)})", sum(part.positions for part in parts))


def repeated(rule: Rule, low: int, high: int | None) -> Rule:
    """``rule`` at least ``low`` and at most ``high`` times; None = no limit."""
    pattern = f"(?:{rule.pattern}){{{low},{'' if high is None else high}}}"
    return Rule(pattern, rule.positions * max(1, low if high is None else high))


def _rule(pattern: str) -> Rule:
    return Rule(f"(?:{pattern})", len(pattern))


_HEX = "[0-9a-fA-F]"
_RAW: CharSet = char_sets.subtract(char_sets.ALL, ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))
_RAW_CLASS = str(char_class(_RAW))
_ESCAPES = (
    r'\\(?:["\\/bfnrt]'
    rf"|u(?:[0-9a-ce-fA-CE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}})"
    rf"|u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})"
)
_STRING_CHAR = Rule(f"(?:{_RAW_CLASS}|{_ESCAPES})", 2 * WIDE_POSITIONS)
"""One character of a JSON string: as itself, or by any of JSON's escapes; surrogates only in pairs."""

_QUOTE = literal('"')


def json_string(min_length: int, max_length: int | None) -> Rule:
    """A JSON string of so many characters (code points of its value)."""
    return quoted(repeated(_STRING_CHAR, min_length, max_length))


def quoted(content: Rule) -> Rule:
    """``content``, which needs no escapes, as a JSON string."""
    return sequence((_QUOTE, content, _QUOTE))


def json_scalar(value: Json) -> Rule:
    """One JSON scalar, spelt as ``json.dumps`` spells it, non-ASCII characters as themselves."""
    return literal(json.dumps(value, ensure_ascii=False))


@lru_cache(maxsize=1)
def _short_escapes() -> dict[int, str]:
    return {code: json.dumps(chr(code))[1:-1] for code in (*range(0x20), 0x22, 0x5C)}


def _spelt_in_json(chars: CharSet) -> str | None:
    """One character of a set inside a JSON string: as itself where it may, else by its usual escape."""
    arms = [char_class(char_sets.intersect(chars, _RAW))] if char_sets.intersect(chars, _RAW) else []
    for code, escape in _short_escapes().items():
        if any(low <= code <= high for low, high in chars):
            arms.append(literal(escape).pattern)
    return f"(?:{'|'.join(str(arm) for arm in arms)})" if arms else None


def pattern_text(pattern: str) -> Rule:
    """Bare text that matches a user's ``pattern`` as a whole. Raises as ``translate`` does."""
    return _rule(translate(pattern))


def pattern_string(pattern: str) -> Rule:
    """A JSON string whose value matches a user's ``pattern`` as a whole, in its usual spelling."""
    return quoted(_rule(translate(pattern, _spelt_in_json)))


def opened(pattern: str) -> str:
    """``pattern`` so that a match of the whole is what was meant: an end that is anchored where the other is not
    leaves the other open (``^a`` begins with a); without any anchor the pattern stands for the whole text."""
    starts, ends = anchors(pattern)
    if starts == ends:
        return pattern
    flags = re.match(r"(?:\(\?[aimsux]+\))*", pattern)
    end = flags.end() if flags else 0
    body = f"(?:{pattern[end:]})"
    return pattern[:end] + (f"{body}(?s:.*)" if starts else f"(?s:.*){body}")


def plain_text(min_length: int, max_length: int | None) -> Rule:
    """Bare text of so many characters."""
    return repeated(Rule(translate("(?s:.)"), WIDE_POSITIONS), min_length, max_length)


INTEGER = _rule("-?(?:0|[1-9][0-9]*)")

NUMBER = _rule(
    r"-?(?:0|[1-9][0-9]{0,63})(?:\.[0-9]+)?(?:[eE](?:\+?0{0,2}(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-3][0-9])|-[0-9]{1,3}))?"
)
"""A JSON number that a float holds: at most 64 digits before the point and an exponent of at most 239."""

DECIMAL = _rule(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")

UUID_TEXT = _rule("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "(?:0[48]|[2468][048]|[13579][26])"
DATE = _rule(
    f"{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29"
)
"""Days of the proleptic Gregorian calendar, years 0001 to 9999."""

_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
TIME = _rule(_CLOCK + _ZONE)
DATETIME = _rule(f"{DATE.pattern}T{_CLOCK}{_ZONE}")


def integer_between(low: int | None, high: int | None) -> Rule | None:
    """Integers from ``low`` to ``high``, without leading zeros or ``-0``; None where there are none."""
    arms: list[str] = []
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        arms.extend(f"-(?:{arm})" for arm in _naturals(least, None if low is None else -low))
    if high is None or high >= 0:
        arms.extend(_naturals(max(low or 0, 0), high))
    return _rule("|".join(arms)) if arms else None


def _naturals(low: int, high: int | None) -> list[str]:
    """Patterns of the natural numbers from ``low`` to ``high``, one per number of digits."""
    if high is not None and high < low:
        return []
    longest = len(str(high if high is not None else low))
    arms = []
    for digits in range(len(str(low)), longest + 1):
        least = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        most = 10**digits - 1 if high is None else min(high, 10**digits - 1)
        arms.append(_digits_between(str(least), str(most)))
    if high is None:
        arms.append(f"[1-9][0-9]{{{longest},}}")
    return arms


def _digits_between(low: str, high: str) -> str:
    """Digit strings of one length from ``low`` to ``high``."""
    if low == high:
        return low
    rest = len(low) - 1
    if low[0] == high[0]:
        return low[0] + f"(?:{_digits_between(low[1:], high[1:])})"
    if low[1:].strip("0") == "" and high[1:].strip("9") == "":
        return _any_digits(low[0], high[0], rest)
    arms = [low[0] + f"(?:{_digits_between(low[1:], '9' * rest)})"]
    if int(high[0]) - int(low[0]) > 1:
        arms.append(_any_digits(str(int(low[0]) + 1), str(int(high[0]) - 1), rest))
    arms.append(high[0] + f"(?:{_digits_between('0' * rest, high[1:])})")
    return "|".join(arms)


def _any_digits(first: str, last: str, rest: int) -> str:
    head = first if first == last else f"[{first}-{last}]"
    return head + (f"[0-9]{{{rest}}}" if rest else "")
