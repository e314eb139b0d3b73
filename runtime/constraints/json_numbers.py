"""Automata of JSON numbers: ranges and multiples, exactly, over the digits."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

from ..errors import InvalidRegex
from .byte_dfa import ByteDFA, compile_pattern, pruned
from .choices import compile_choices
from .dfa_algebra import conjunction

MAX_STEPS = 5_000
"""Remainders that ``multipleOf`` may track."""

_EXPONENT = r"(?:[eE](?:\+?0{0,2}(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-3][0-9])|-[0-9]{1,3}))?"
_WHOLE = "(?:0|[1-9][0-9]{0,63})"
_NONZERO = r"(?:[1-9][0-9]{0,63}(?:\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)"  # at least one digit that is not 0
_INTEGER = r"-?(?:0|[1-9][0-9]*)"


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Numbers between bounds. A bound that is None is not there."""

    integer: bool = False
    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    plain: bool = False
    """Whether integers are written without a fraction, as draft 4 has it."""

    @property
    def empty(self) -> bool:
        """Whether no number lies within (a number that is no integer counts where ``integer`` is not set)."""
        if self.low is None or self.high is None:
            return False
        if self.integer:
            return self.first_integer() > self.last_integer()
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))

    def first_integer(self) -> int:
        """The least integer within; needs ``low``."""
        assert self.low is not None
        least = -(-self.low.numerator // self.low.denominator)
        return least + 1 if self.low_open and least == self.low else least

    def last_integer(self) -> int:
        """The greatest integer within; needs ``high``."""
        assert self.high is not None
        most = self.high.numerator // self.high.denominator
        return most - 1 if self.high_open and most == self.high else most

    def holds(self, value: Fraction) -> bool:
        """Whether ``value`` lies within."""
        if self.integer and value.denominator != 1:
            return False
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        return not (self.high is not None and (value > self.high or (self.high_open and value == self.high)))


def fraction_of(value: float) -> Fraction:
    """The number that JSON's spelling of ``value`` stands for: 0.1 is one tenth."""
    return Fraction(Decimal(repr(value))) if isinstance(value, float) else Fraction(value)


def spellings(value: float, *, plain_integers: bool = False) -> set[str]:
    """How a number is written: as ``json.dumps`` does; integers also as ``1.0``, unless ``plain_integers``."""
    exact = fraction_of(value)
    texts = {json.dumps(value)}
    if exact.denominator == 1 and abs(exact) < 10**60:
        texts = {str(exact.numerator)}
        if not plain_integers:
            texts |= {f"{exact.numerator}.0", json.dumps(value)}
    return texts


@lru_cache(maxsize=256)
def number_automaton(bounds: NumberRange, multiples: frozenset[Fraction], *, plain_integers: bool) -> ByteDFA:
    """JSON numbers within ``bounds`` that are multiples of all ``multiples``.

    Raises UnsatisfiableConstraint if there are none, InvalidRegex if it would take too many states.
    """
    wanted = [] if multiples and not bounds.integer else [_base(bounds, plain_integers)]
    compared = bounds.integer or bool(multiples) or (bounds.low or 0) != 0 or (bounds.high or 0) != 0
    if bounds.low is not None and compared:
        wanted.append(_beyond(bounds.low, ">" if bounds.low_open else ">="))
    if bounds.high is not None and compared:
        wanted.append(_beyond(bounds.high, "<" if bounds.high_open else "<="))
    if multiples:
        step = Fraction(0)
        for factor in multiples:
            step = factor if step == 0 else _common_multiple(step, factor)
        wanted.append(_multiples(step))
    return conjunction(wanted)


def _common_multiple(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(lcm(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)


def _base(bounds: NumberRange, plain_integers: bool) -> ByteDFA:
    """Numbers as they may be spelt: with an exponent only where no bound but 0 is to be compared with."""
    if bounds.integer:
        return compile_pattern(_INTEGER + ("" if plain_integers or bounds.plain else r"(?:\.0)?"))
    plain = rf"{_WHOLE}(?:\.[0-9]+)?"
    if (bounds.low or 0) != 0 or (bounds.high or 0) != 0:
        return compile_pattern(f"-?{plain}")
    zero = r"-?0(?:\.0+)?"
    arms = []
    if bounds.low is None:
        arms.append(f"-{_NONZERO}{_EXPONENT}")
    if bounds.high is None:
        arms.append(f"{_NONZERO}{_EXPONENT}")
    if not ((bounds.low is not None and bounds.low_open) or (bounds.high is not None and bounds.high_open)):
        arms.append(f"{zero}{_EXPONENT}")
    return compile_pattern("|".join(arms)) if arms else compile_choices(())


def _places(value: Fraction) -> int:
    """Decimal places of a terminating decimal."""
    for places in range(400):
        if (value * 10**places).denominator == 1:
            return places
    raise InvalidRegex(f"the number {value} has no finite decimal form")


def _explored(
    start: Hashable, step: Callable[[Any, int], Hashable | None], accepts: Callable[[Any], bool], most: int
) -> ByteDFA:
    """The automaton of a step function over the characters of plain decimals."""
    number: dict[Hashable, int] = {start: 0}
    order: list[Hashable] = [start]
    edges: dict[int, dict[int, int]] = {}
    for state in order:
        row: dict[int, int] = {}
        for byte in b"-.0123456789":
            after = step(state, byte)
            if after is None:
                continue
            if after not in number:
                number[after] = len(order)
                order.append(after)
            row[byte] = number[after]
        edges[number[state]] = row
        if len(order) > most:
            raise InvalidRegex(f"a bound or multiple of numbers needs more than {most:,} states")
    return pruned(edges, [number[state] for state in order if accepts(state)], 0)


def _beyond(bound: Fraction, relation: str) -> ByteDFA:
    """Plain decimals (no exponent, no leading zeros) in ``relation`` to ``bound``: digits are compared as they come.

    A state is (sign, part, digits read, how the magnitude compares with the bound's so far).
    """
    places = _places(bound)
    digits = str(abs(int(bound * 10**places))).rjust(places + 1, "0")
    whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :]

    def step(state: tuple[int, str, int, int], byte: int) -> tuple[int, str, int, int] | None:
        sign, part, read, order = state
        if byte == 0x2D:
            return (-1, "start", 0, 0) if part == "start" and sign == 1 else None
        if byte == 0x2E:
            if part != "whole":
                return None
            return (sign, "point", 0, _compared(read, len(whole)) or order)
        digit = byte - 0x30
        if part in ("start", "whole"):
            if read < len(whole) and order == 0:
                order = _compared(digit, int(whole[read]))
            return (sign, "whole", min(read + 1, len(whole) + 1), order)
        if order == 0:
            order = _compared(digit, int(fraction[read]) if read < places else 0)
        return (sign, "fraction", min(read + 1, places), order)

    def accepts(state: tuple[int, str, int, int]) -> bool:
        sign, part, read, order = state
        if part in ("start", "point"):
            return False
        if part == "whole":
            order = _compared(read, len(whole)) or order or -int(fraction.strip("0") != "")
        elif order == 0:
            order = -int(fraction[read:].strip("0") != "")
        same_side = bound >= 0 if sign == 1 else bound <= 0
        side = sign * (order if same_side else 1)
        return {">": side > 0, ">=": side >= 0, "<": side < 0, "<=": side <= 0}[relation]

    return _explored((1, "start", 0, 0), step, accepts, MAX_STEPS)


def _compared(a: int, b: int) -> int:
    return (a > b) - (a < b)


def _multiples(factor: Fraction) -> ByteDFA:
    """Plain decimals that are multiples of ``factor``: the remainder is the state."""
    places = _places(factor)
    modulus = int(factor * 10**places)

    def step(state: tuple[str, int, int], byte: int) -> tuple[str, int, int] | None:
        part, left, read = state
        if byte == 0x2D:
            return ("sign", 0, 0) if part == "start" else None
        if byte == 0x2E:
            return ("point", left, 0) if part in ("whole", "zero") else None
        digit = byte - 0x30
        if part in ("start", "sign"):
            return ("zero" if digit == 0 else "whole", digit % modulus, 0)
        if part == "zero":
            return None
        if part == "whole":
            return ("whole", (left * 10 + digit) % modulus, 0)
        if read < places:
            return ("fraction", (left * 10 + digit) % modulus, read + 1)
        return ("fraction", left, read) if digit == 0 else None

    def accepts(state: tuple[str, int, int]) -> bool:
        part, left, read = state
        return part in ("zero", "whole", "fraction") and left * 10 ** (places - read) % modulus == 0

    return _explored(("start", 0, 0), step, accepts, MAX_STEPS)


def choice_of_numbers(values: Iterable[float], *, plain_integers: bool) -> ByteDFA:
    """The automaton of the spellings of some numbers."""
    return compile_choices(
        text.encode() for value in values for text in sorted(spellings(value, plain_integers=plain_integers))
    )
