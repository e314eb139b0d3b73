"""Python's own functions and collections: what they make of values that are partly known."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from . import text
from .planner import Arguments, Planner
from .values import (
    Const,
    Function,
    Sequence,
    Value,
    blend,
    const,
    constant_of,
    count_of,
    element_of,
    is_constant,
    join,
    many,
    named,
    origins,
    sequence,
    settle,
    values_of,
    with_origin,
)

PURE_MODULES = frozenset(
    [
        "builtins",
        "itertools",
        "collections",
        "operator",
        "random",
        "heapq",
        "statistics",
        "math",
        "re",
        "json",
        "copy",
        "functools",
        "asyncio",
        "string",
    ]
)
"""Modules whose functions run no operation on a context that is passed through them."""

MAX_RANGE = 256
"""Longest range whose numbers are read as constants."""


def _range(arguments: Arguments) -> Value:
    if arguments.positional and all(isinstance(v, Const) and isinstance(v.value, int) for v in arguments.positional):
        try:
            numbers = range(*map(constant_of, arguments.positional))
        except (TypeError, ValueError):
            return blend(*arguments.all)
        origin = blend(*arguments.all)
        if len(numbers) <= MAX_RANGE:
            return sequence(const(n, **origins((origin,))) for n in numbers)
        return many(Value(), len(numbers), origin)
    return many(Value(), None, *arguments.all)


def _len(arguments: Arguments) -> Value:
    count = count_of(arguments.positional[0]) if arguments.positional else None
    return (
        blend(*arguments.all) if count is None else const(count, **{**origins(arguments.all), "contexts": frozenset()})
    )


def _enumerate(arguments: Arguments) -> Value:
    over = arguments.get(0, "iterable")
    start = arguments.get(1, "start")
    first = start.value if isinstance(start, Const) else 0 if start is None else None
    if isinstance(over, Sequence) and isinstance(first, int):
        return sequence(sequence((const(i), item)) for i, item in enumerate(over.items, first))
    if over is None:
        return blend(*arguments.all)
    return many(sequence((blend(over if start is None else start), element_of(over))), count_of(over))


def _zip(arguments: Arguments) -> Value:
    over = arguments.positional
    if over and all(isinstance(v, Sequence) for v in over):
        return sequence(map(sequence, zip(*(v.items for v in over if isinstance(v, Sequence)), strict=False)))
    counts = [count_of(v) for v in over]
    known = [count for count in counts if count is not None]
    count = min(known) if known and len(known) == len(counts) else None
    return many(sequence(element_of(v) for v in over), count, *arguments.all)


def _same(arguments: Arguments) -> Value:
    """A list of the same items, in the same order."""
    if not arguments.positional:
        return sequence((), mutable=True)
    over = arguments.positional[0]
    if isinstance(over, Sequence):
        return sequence(over.items, mutable=True)
    return many(element_of(over), count_of(over), over)


def _reordered(arguments: Arguments) -> Value:
    if not arguments.positional:
        return blend(*arguments.all)
    over = arguments.positional[0]
    return many(element_of(over), count_of(over), *arguments.all)


def _fewer(arguments: Arguments) -> Value:
    return many(element_of(arguments.positional[0]) if arguments.positional else Value(), None, *arguments.all)


def _one_of(arguments: Arguments) -> Value:
    if len(arguments.positional) == 1:
        return with_origin(element_of(arguments.positional[0]), *arguments.all)
    if not arguments.positional:
        return blend(*arguments.all)
    found = arguments.positional[0]
    for value in arguments.positional[1:]:
        found = join(found, value)
    return found


def _dict(arguments: Arguments) -> Value:
    if not arguments.positional and arguments.rest is None:
        return named(arguments.keywords)
    values = list(arguments.keywords.values())
    shown = sequence(values)
    return many(
        element_of(shown) if values and not arguments.positional else blend(*arguments.all), None, *arguments.all
    )


def _str(arguments: Arguments) -> Value:
    if not arguments.positional:
        return const("")
    return text.lift(lambda value: text.formatted(value, "s", None), arguments.positional[0])


def _repr(arguments: Arguments) -> Value:
    return text.lift(lambda value: text.formatted(value, "r", None), arguments.positional[0])


def _scalar(real: Callable[[Any], Any]) -> Callable[[Arguments], Value]:
    def made(arguments: Arguments) -> Value:
        if len(arguments.positional) == 1 and isinstance(arguments.positional[0], Const) and not arguments.keywords:
            try:
                return const(real(arguments.positional[0].value), **origins(arguments.all))
            except (TypeError, ValueError, OverflowError):
                return blend(*arguments.all)
        return Value(**{**origins(arguments.all), "contexts": frozenset()})

    return made


def _plain(arguments: Arguments) -> Value:
    """Something that holds none of the arguments."""
    return Value(**{**origins(arguments.all), "contexts": frozenset()})


BUILTINS: dict[Any, Callable[[Arguments], Value]] = {
    range: _range,
    len: _len,
    enumerate: _enumerate,
    zip: _zip,
    list: _same,
    tuple: _same,
    iter: _same,
    reversed: _reordered,
    sorted: _reordered,
    set: _fewer,
    frozenset: _fewer,
    filter: _fewer,
    map: _fewer,
    max: _one_of,
    min: _one_of,
    next: _one_of,
    dict: _dict,
    str: _str,
    repr: _repr,
    **{real: _scalar(real) for real in (int, float, bool, abs)},
    **dict.fromkeys((sum, any, all, print, isinstance, issubclass, hash, id, round, type, callable, hasattr), _plain),
}
"""Builtins -> what a call of them is worth."""

_EACH = {builtins.map: "first", builtins.filter: "first", sorted: "key", max: "key", min: "key"}


def each_of(planner: Planner, real: Any, arguments: Arguments) -> Value:
    """A builtin that calls a function on every item: a loop over the function's body."""
    place = _EACH.get(real)
    function = arguments.keywords.get("key")
    items = arguments.positional
    if place == "first" and items:
        function, items = items[0], items[1:]
    if place is None or not isinstance(function, Function) or not items:
        contexts = frozenset[int]().union(*(planner.captures(value) for value in arguments.all))
        if contexts:
            return planner.opaque(arguments.node, "it may call a function at any time", contexts, *arguments.all)
        return BUILTINS[real](arguments)
    several = real in {max, min} and len(items) > 1
    over = sequence(items) if several else items[0]
    made: list[Value] = [Value()]
    given = [over] if several or real is not map else items

    def once(loop: int) -> None:
        elements = [element_of(value) for value in given]
        made[0] = settle(planner.call(function, Arguments(arguments.node, elements, {})), loop)

    name = real.__name__
    planner.loop(arguments.node, f"each of {name}(...)", over, once, trips=count_of(over), callback=name)
    if real is map:
        return many(made[0], count_of(over), *items)
    if real is sorted:
        return many(element_of(over), count_of(over), over, made[0])
    if real is filter:
        return many(element_of(over), None, over, made[0])
    return with_origin(element_of(over), made[0])


_GROWS = frozenset({"append", "add", "insert", "extend", "update", "setdefault", "appendleft", "extendleft"})
_SHRINKS = frozenset({"pop", "remove", "clear", "popleft", "popitem", "discard", "sort", "reverse"})


def collection_method(planner: Planner, container: Value, name: str, arguments: Arguments) -> Value:
    """A method of a list, tuple, set or dict with known or alike items."""
    receiver = values_of(container)
    if name in {"extend", "update", "extendleft"}:
        planner.weaken(container, *(element_of(value) for value in arguments.positional), *arguments.keywords.values())
        return const(None)
    if name in _GROWS:
        planner.weaken(container, *arguments.positional[-1:])
        return with_origin(element_of(receiver), *arguments.all) if name == "setdefault" else const(None)
    if name in _SHRINKS:
        planner.weaken(container)
        return element_of(receiver)
    if name == "items":
        return many(sequence((Value(), element_of(receiver))), count_of(receiver), receiver)
    if name == "values":
        return many(element_of(receiver), count_of(receiver), receiver)
    if name == "keys":
        return many(Value(), count_of(receiver))
    if name == "get":
        return with_origin(element_of(receiver), *arguments.all)
    if name == "copy":
        return container
    if name == "count" and isinstance(receiver, Sequence) and is_constant(receiver):
        return blend(receiver)
    return blend(receiver, *arguments.all)
