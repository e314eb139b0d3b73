"""Strings that are partly known: f-strings, concatenation, ``join`` and ``format`` as templates with holes."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

from .values import (
    Const,
    Hole,
    Sequence,
    Template,
    Value,
    Varying,
    blend,
    const,
    constant_of,
    is_constant,
    origins,
)

HOLE_TEXT = "{…}"
MAX_CHARS = 1_000_000
"""Longest constant that is built while compiling."""
MAX_VARIANTS = 64
_CONVERSIONS: dict[str, Callable[[object], str]] = {"r": repr, "s": str, "a": ascii}


def lift(function: Callable[..., Value], *values: Value) -> Value:
    """``function`` of the values; where some are constants of a loop's passes, of each pass."""
    loops = {v.loop for v in values if isinstance(v, Varying)}
    if not loops:
        return function(*values)
    count = {len(v.each) for v in values if isinstance(v, Varying)}
    if len(loops) > 1 or len(count) > 1:
        return function(*(blend(v) if isinstance(v, Varying) else v for v in values))
    rows = [[v.each[i] if isinstance(v, Varying) else v for v in values] for i in range(count.pop())]
    each = tuple(function(*row) for row in rows)
    whole = function(*(_shape(v) if isinstance(v, Varying) else v for v in values))
    if all(map(is_constant, each)):
        shape = whole.parts if isinstance(whole, Template) else ()
        return Varying(loop=loops.pop(), each=each, shape=shape, **origins(values))
    return whole


def _shape(value: Varying) -> Value:
    return Template(parts=value.shape, **origins((value,))) if value.shape else blend(value)


def concatenate(*values: Value) -> Value:
    """The strings one after another."""
    parts: list[str | Hole] = []
    for value in values:
        for part in _parts(value):
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            elif part != "":
                parts.append(part)
    if all(isinstance(part, str) for part in parts):
        return const("".join(map(str, parts)), **origins(values))
    return Template(parts=tuple(parts), **origins(values))


def formatted(value: Value, conversion: str | None, spec: Value | None) -> Value:
    """A replacement field of an f-string."""
    if isinstance(value, Const) and isinstance(value.value, str | int | float | bool | None) and _plain(spec):
        shown = _CONVERSIONS[conversion](value.value) if conversion else value.value
        try:
            return const(format(shown, "" if spec is None else constant_of(spec)), **origins((value,)))
        except (ValueError, TypeError):
            return hole(value)
    if isinstance(value, Template) and conversion in {None, "s"} and spec is None:
        return value
    return hole(value, *(() if spec is None else (spec,)))


def joined(separator: Value, items: Value) -> Value:
    """``separator.join(items)``."""
    if not isinstance(items, Sequence):
        return hole(separator, items)
    pieces: list[Value] = []
    for item in items.items:
        pieces += [separator, item] if pieces else [item]
    return concatenate(*pieces)


def format_template(template: str, positional: list[Value], keywords: dict[str, Value]) -> Value:
    """``template.format(...)``; a hole where a field is more than a plain name or number."""
    pieces: list[Value] = []
    automatic = 0
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError:
        return hole(*positional, *keywords.values())
    for literal, name, spec, conversion in fields:
        pieces.append(const(literal))
        if name is None:
            continue
        key = name
        if key == "":
            key, automatic = str(automatic), automatic + 1
        value = keywords.get(key)
        if key.isdigit() and int(key) < len(positional):
            value = positional[int(key)]
        everything = hole(*positional, *keywords.values())
        pieces.append(everything if value is None else formatted(value, conversion, const(spec) if spec else None))
    return concatenate(*pieces)


def repeated(text: Value, times: Value) -> Value:
    """``text * times``."""
    if isinstance(times, Const) and isinstance(times.value, int):
        length = sum(len(part) for part in _parts(text) if isinstance(part, str))
        if 0 <= times.value * max(length, 1) <= MAX_CHARS:
            return concatenate(*[text] * times.value) if times.value else const("", **origins((text, times)))
    return hole(text, times)


def hole(*values: Value) -> Template:
    """An unknown string that depends on ``values``."""
    found = origins(values)
    return Template(parts=(Hole.VOLATILE if found["volatile"] else Hole.STEADY,), **found)


def is_text(value: Value) -> bool:
    """Whether the value is a string for certain."""
    return isinstance(value, Template) or (isinstance(value, Const) and isinstance(value.value, str))


def text_attrs(value: Value) -> dict[str, Any]:
    """What a Text node says of its text.

    ``text`` with holes, ``constant``, ``chars``; ``texts`` where each pass of a loop, or each branch, has a constant of
    its own; ``volatile`` calls and the number of constant characters after the first, ``volatile_tail``.
    """
    if isinstance(value, Varying) and all(isinstance(v, Const) for v in value.each):
        texts = [str(constant_of(v)) for v in value.each]
        if len(set(texts)) > 1:
            text, chars = _shown(value.shape or (Hole.STEADY,))
            return {"text": text, "constant": True, "chars": chars, "texts": texts[:MAX_VARIANTS]}
        value = const(texts[0], **origins((value,)))
    parts = _parts(value)
    text, chars = _shown(parts)
    attrs: dict[str, Any] = {"text": text, "constant": all(isinstance(part, str) for part in parts), "chars": chars}
    if value.volatile:
        attrs["volatile"] = sorted(value.volatile)
        first = parts.index(Hole.VOLATILE) if Hole.VOLATILE in parts else len(parts)
        attrs["volatile_tail"] = sum(len(part) for part in parts[first:] if isinstance(part, str))
    return attrs


def _parts(value: Value) -> tuple[str | Hole, ...]:
    if isinstance(value, Template):
        return value.parts
    if isinstance(value, Const) and isinstance(value.value, str):
        return (value.value,)
    return (Hole.VOLATILE if value.volatile else Hole.STEADY,)


def _plain(spec: Value | None) -> bool:
    return spec is None or isinstance(spec, Const)


def _shown(parts: tuple[str | Hole, ...]) -> tuple[str, int]:
    """The text with its holes, and the number of its constant characters."""
    known = [part if isinstance(part, str) else None for part in parts]
    return "".join(HOLE_TEXT if part is None else part for part in known), sum(len(part or "") for part in known)
