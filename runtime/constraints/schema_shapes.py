"""Shapes: what a schema says of the values of one type. Closed under "and"; an "or" is several shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from .byte_dfa import ByteDFA
from .json_numbers import NumberRange
from .schema_documents import ANY, Key

_UNBOUNDED = NumberRange()


@dataclass(frozen=True, slots=True)
class Null:
    """null."""


@dataclass(frozen=True, slots=True)
class Bool:
    """Some of true and false."""

    values: frozenset[bool] = frozenset({True, False})


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers."""

    bounds: NumberRange = _UNBOUNDED
    multiples: frozenset[Fraction] = frozenset()
    only: frozenset[Fraction] | None = None
    unlike: frozenset[Fraction] = frozenset()
    not_multiples: frozenset[Fraction] = frozenset()
    not_integer: bool = False


@dataclass(frozen=True, slots=True)
class Str:
    """Strings; lengths in characters."""

    low: int = 0
    high: int | None = None
    wanted: frozenset[ByteDFA] = frozenset()
    unwanted: frozenset[ByteDFA] = frozenset()
    only: frozenset[str] | None = None
    unlike: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Kind:
    """Which keys of an object are meant: those that match a pattern, those that neither are named nor match any, or
    those that satisfy a key as strings."""

    pattern: str | None = None
    names: frozenset[str] | None = None
    patterns: frozenset[str] = frozenset()
    text: Key | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What of a value has been evaluated, for ``unevaluatedProperties`` and ``unevaluatedItems``."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    prefix: int = 0
    items: frozenset[Key] = frozenset()
    """Items that satisfy any of these."""
    all: bool = False

    def __or__(self, other: Seen) -> Seen:
        return Seen(
            self.names | other.names,
            self.patterns | other.patterns,
            max(self.prefix, other.prefix),
            self.items | other.items,
            self.all or other.all,
        )


@dataclass(frozen=True, slots=True)
class Obj:
    """Objects."""

    named: tuple[tuple[str, Key], ...] = ()
    patterns: frozenset[tuple[str, Key]] = frozenset()
    extras: frozenset[tuple[Kind, Key]] = frozenset()
    """Values of keys of a kind (``names`` and ``patterns`` of the kind are the declared ones)."""
    texts: Key = ANY
    """What every key satisfies as a string."""
    required: frozenset[str] = frozenset()
    low: int = 0
    high: int | None = None
    claims: frozenset[tuple[Kind, Key]] = frozenset()
    """There is a key of the kind with such a value."""
    seen: Seen = Seen()


@dataclass(frozen=True, slots=True)
class Arr:
    """Arrays."""

    prefix: tuple[Key, ...] = ()
    rest: Key = ANY
    low: int = 0
    high: int | None = None
    counts: frozenset[tuple[Key, Key, int, int | None]] = frozenset()
    """(items that count, items that do not, least and greatest number)"""
    unique: bool = False
    not_unique: bool = False
    seen: Seen = field(default=Seen())


Shape = Null | Bool | Number | Str | Obj | Arr
TOP: tuple[Shape, ...] = (Null(), Bool(), Number(), Str(), Obj(), Arr())
"""Any value."""


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _common(a: frozenset[object] | None, b: frozenset[object] | None) -> frozenset[object] | None:
    return b if a is None else a if b is None else a & b


def both(a: Shape, b: Shape) -> Shape | None:
    """The values in both shapes; None where the types differ or it is plain that there are none."""
    if isinstance(a, Null) and isinstance(b, Null):
        return a
    if isinstance(a, Bool) and isinstance(b, Bool):
        values = a.values & b.values
        return Bool(values) if values else None
    if isinstance(a, Number) and isinstance(b, Number):
        return _numbers(a, b)
    if isinstance(a, Str) and isinstance(b, Str):
        return _strings(a, b)
    if isinstance(a, Obj) and isinstance(b, Obj):
        return _objects(a, b)
    if isinstance(a, Arr) and isinstance(b, Arr):
        return _arrays(a, b)
    return None


def _numbers(a: Number, b: Number) -> Number | None:
    x, y = a.bounds, b.bounds
    low, low_open, high, high_open = x.low, x.low_open, x.high, x.high_open
    if y.low is not None and (low is None or (y.low, y.low_open) > (low, low_open)):
        low, low_open = y.low, y.low_open
    if y.high is not None and (high is None or y.high < high or (y.high == high and y.high_open)):
        high, high_open = y.high, y.high_open
    found = Number(
        NumberRange(x.integer or y.integer, low, low_open, high, high_open, x.plain or y.plain),
        a.multiples | b.multiples,
        _common(a.only, b.only),  # type: ignore[arg-type]  # sets of the same kind
        a.unlike | b.unlike,
        a.not_multiples | b.not_multiples,
        a.not_integer or b.not_integer,
    )
    if found.only is not None:
        found = replace(found, only=frozenset(value for value in found.only if holds(found, value)))
    return None if impossible(found) else found


def holds(shape: Number, value: Fraction) -> bool:
    """Whether a number satisfies all of a shape but ``only``."""
    return (
        shape.bounds.holds(value)
        and all((value / factor).denominator == 1 for factor in shape.multiples)
        and value not in shape.unlike
        and not any((value / factor).denominator == 1 for factor in shape.not_multiples)
        and not (shape.not_integer and value.denominator == 1)
    )


def holds_text(shape: Str, value: str) -> bool:
    """Whether a string satisfies all of a shape but ``only``."""
    if len(value) < shape.low or (shape.high is not None and len(value) > shape.high) or value in shape.unlike:
        return False
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return False
    return all(dfa.accepts(data) for dfa in shape.wanted) and not any(dfa.accepts(data) for dfa in shape.unwanted)


def _strings(a: Str, b: Str) -> Str | None:
    found = Str(
        max(a.low, b.low),
        _least(a.high, b.high),
        a.wanted | b.wanted,
        a.unwanted | b.unwanted,
        _common(a.only, b.only),  # type: ignore[arg-type]  # sets of the same kind
        a.unlike | b.unlike,
    )
    if found.only is not None:
        found = replace(found, only=frozenset(value for value in found.only if holds_text(found, value)))
    return None if impossible(found) else found


def _objects(a: Obj, b: Obj) -> Obj | None:
    named = dict(a.named)
    for name, key in b.named:
        named[name] = named[name] | key if name in named else key
    found = Obj(
        tuple(named.items()),
        a.patterns | b.patterns,
        a.extras | b.extras,
        a.texts | b.texts,
        a.required | b.required,
        max(a.low, b.low),
        _least(a.high, b.high),
        a.claims | b.claims,
        a.seen | b.seen,
    )
    return None if impossible(found) else found


def _arrays(a: Arr, b: Arr) -> Arr | None:
    length = max(len(a.prefix), len(b.prefix))
    prefix = tuple(
        (a.prefix[i] if i < len(a.prefix) else a.rest) | (b.prefix[i] if i < len(b.prefix) else b.rest)
        for i in range(length)
    )
    found = Arr(
        prefix,
        a.rest | b.rest,
        max(a.low, b.low),
        _least(a.high, b.high),
        a.counts | b.counts,
        a.unique or b.unique,
        a.not_unique or b.not_unique,
        a.seen | b.seen,
    )
    return None if impossible(found) else found


def impossible(shape: Shape) -> bool:
    """Whether it is plain that no value has the shape, without looking into what it contains."""
    if isinstance(shape, Number):
        if shape.only is not None:
            return not shape.only
        return shape.bounds.empty or (shape.bounds.integer and shape.not_integer)
    if isinstance(shape, Str):
        if shape.only is not None:
            return not shape.only
        return (shape.high is not None and shape.low > shape.high) or bool(shape.wanted & shape.unwanted)
    if isinstance(shape, Obj):
        return shape.high is not None and max(shape.low, len(shape.required)) > shape.high
    if isinstance(shape, Arr):
        return (shape.high is not None and shape.low > shape.high) or (shape.unique and shape.not_unique)
    return False


def covers(wide: Obj, narrow: Obj, *, ordered: bool) -> bool:
    """Whether it is plain that every object of ``narrow`` is one of ``wide``, also in the order of its keys."""
    keys = dict(narrow.named)
    if ordered and [name for name, _ in wide.named] != list(keys):
        return False
    return (
        all(key <= keys.get(name, ANY) for name, key in wide.named)
        and wide.patterns <= narrow.patterns
        and wide.extras <= narrow.extras
        and wide.texts <= narrow.texts
        and wide.required <= narrow.required
        and wide.low <= narrow.low
        and (wide.high is None or (narrow.high is not None and narrow.high <= wide.high))
        and wide.claims <= narrow.claims
    )


def product(left: Iterable[Shape], right: Iterable[Shape]) -> list[Shape]:
    """The values in one of ``left`` and in one of ``right``."""
    right = list(right)
    found: dict[Shape, None] = {}
    for a in left:
        for b in right:
            shape = both(a, b)
            if shape is not None:
                found[shape] = None
    return list(found)
