"""What is known of a Python value before the program runs: a constant, a context, a function, or where it came from."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import reduce
from typing import Any

from .source import FunctionNode

_NONE: frozenset[int] = frozenset()
_STILL: frozenset[str] = frozenset()
MAX_SNAPSHOT = 256
"""Items of a global container that are read as constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of which only the origin is known. The subclasses know more."""

    sources: frozenset[int] = _NONE
    """Ids of the operations whose results it depends on."""
    volatile: frozenset[str] = _STILL
    """Calls in it that give something else on every run, as source text (``datetime.now()``)."""
    contexts: frozenset[int] = _NONE
    """Lineages of the contexts that it is, or holds."""


UNKNOWN = Value()


class Hole(Enum):
    """A part of a string that is not known before the program runs."""

    STEADY = "steady"
    VOLATILE = "volatile"
    """Something else on every run: a clock, a random number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Const(Value):
    """An immutable constant; ``of`` keeps 1, True and 1.0 apart."""

    value: Any
    of: type


@dataclass(frozen=True, slots=True, kw_only=True)
class Template(Value):
    """A string with holes where its parts are not known."""

    parts: tuple[str | Hole, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Varying(Value):
    """A constant of each pass of one loop, or of each branch of one fork: ``loop`` is that node's id."""

    loop: int
    each: tuple[Value, ...]
    shape: tuple[str | Hole, ...] = ()
    """The string's constant parts, and holes where it varies; empty for what was not made of parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence(Value):
    """A list or tuple with known items."""

    items: tuple[Value, ...]
    mutable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Many(Value):
    """A collection of alike items, of known length or not."""

    element: Value
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Value):
    """A dict with known names: ``**keywords``, a display with constant keys."""

    items: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextValue(Value):
    """A Context: one of ``contexts``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Value):
    """``receiver.name``, read but not called."""

    receiver: Value
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager(Value):
    """A context manager of the language: what ``as`` binds, and the Scratch node whose body follows."""

    bound: Value
    region: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkValue(Value):
    """``c.mark()``: the last operations of each lineage at that moment."""

    tips: tuple[tuple[int, frozenset[int]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen(Value):
    """One of finitely many values picked by the model; ``wrapped`` for a Choice, whose ``value`` it is."""

    options: tuple[Any, ...]
    wrapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Test(Value):
    """The truth of a test that says which options are left in either arm."""

    __test__ = False  # not a test class for pytest

    when_true: tuple[Any, ...]
    when_false: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCall(Value):
    """An output type made by a call: ``fc.regex("...")``."""

    maker: str
    arguments: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Object(Value):
    """A real object found in a global, a closure or a default: a module, a class, a function, a program."""

    real: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Object) and other.real is self.real and _origin(self) == _origin(other)

    __hash__ = None  # type: ignore[assignment]  # values are compared, never hashed


@dataclass(frozen=True, slots=True)
class Env:
    """A function's frame: where its names live. Two are equal if they are the same frame."""

    frame: int
    parent: Env | None = field(default=None, compare=False)
    module: Module | None = field(default=None, compare=False)
    names: frozenset[str] = field(default=_STILL, compare=False)
    """Names local to the frame."""


@dataclass(frozen=True, slots=True)
class Module:
    """What a function's free names mean: its file, its globals and its closure."""

    file: str
    globals: dict[str, Any] = field(compare=False, repr=False)
    cells: dict[str, Any] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(Value):
    """A function whose source can be read."""

    name: str
    node: FunctionNode
    module: Module
    env: Env | None = None
    """The frame that it is nested in; None for a function of a module."""
    defaults: tuple[tuple[str, Value], ...] = ()
    bound: tuple[Value, ...] = ()
    """Leading arguments that are given already (``self``, ``functools.partial``)."""
    bound_keywords: tuple[tuple[str, Value], ...] = ()


def const(value: Any, **origin: Any) -> Const:
    """A constant."""
    return Const(value=value, of=type(value), **origin)


def sequence(items: Iterable[Value], *, mutable: bool = False) -> Sequence:
    """A list or tuple of known items, with their origins."""
    listed = tuple(items)
    return Sequence(items=listed, mutable=mutable, **origins(listed))


def many(element: Value, count: int | None = None, *more: Value) -> Many:
    """A collection of items like ``element``, which depends on ``more`` but holds no context of theirs."""
    return Many(element=element, count=count, **{**origins((element, *more)), "contexts": element.contexts})


def named(items: Mapping[str, Value]) -> Named:
    """A dict with known names, with the origins of its values."""
    return Named(items=tuple(items.items()), **origins(items.values()))


def values_of(container: Value) -> Value:
    """A collection of a dict's values, where they are known; anything else as it is."""
    if isinstance(container, Named):
        values = sequence(value for _, value in container.items)
        return many(element_of(values), len(values.items), container)
    return container


def blend(*values: Value) -> Value:
    """An unknown value that depends on all of ``values``."""
    return Value(**origins(values))


def origins(values: Iterable[Value]) -> dict[str, Any]:
    """The origin of something made from ``values``, as keywords."""
    sources, volatile, contexts = _NONE, _STILL, _NONE
    for value in values:
        sources |= value.sources
        volatile |= value.volatile
        contexts |= value.contexts
    return {"sources": sources, "volatile": volatile, "contexts": contexts}


def with_origin(value: Value, *others: Value) -> Value:
    """``value`` that depends on ``others`` as well."""
    return replace(value, **origins((value, *others)))


def join(a: Value, b: Value) -> Value:
    """What is true of both: the value after two paths meet."""
    if a == b:
        return a
    if type(a) is type(b):
        if all(getattr(a, f.name) == getattr(b, f.name) for f in fields(a) if f.name not in _ORIGIN):
            return with_origin(a, b)
        if isinstance(a, Sequence) and isinstance(b, Sequence) and len(a.items) == len(b.items):
            return sequence(map(join, a.items, b.items), mutable=a.mutable or b.mutable)
        if isinstance(a, Manager) and isinstance(b, Manager):
            return blend(a, b)
    if isinstance(a, Sequence | Many) and isinstance(b, Sequence | Many):
        elements = [element_of(v) for v in (a, b) if count_of(v) != 0]
        count = count_of(a) if count_of(a) == count_of(b) else None
        return many(reduce(join, elements) if elements else UNKNOWN, count, a, b)
    return blend(a, b)


def element_of(value: Value) -> Value:
    """What iterating over ``value`` gives."""
    if isinstance(value, Many):
        return value.element
    if isinstance(value, Sequence):
        return reduce(join, value.items) if value.items else blend(value)
    return blend(value)


def count_of(value: Value) -> int | None:
    """How many items iterating over ``value`` gives, None if not known."""
    if isinstance(value, Many):
        return value.count
    if isinstance(value, Sequence):
        return len(value.items)
    if isinstance(value, Const) and isinstance(value.value, str | bytes):
        return len(value.value)
    return None


def passes(value: Value, loop: int) -> Value:
    """What the variable of a loop over ``value`` holds: the constants of its passes where they are known."""
    if isinstance(value, Sequence) and len(value.items) > 1 and all(map(is_constant, value.items)):
        return Varying(loop=loop, each=value.items, **origins(value.items))
    return element_of(value)


def settle(value: Value, loop: int) -> Value:
    """What is left of ``value`` after a pass of ``loop``: it no longer moves with the loop."""
    if isinstance(value, Varying) and value.loop == loop:
        return blend(value)
    if isinstance(value, Sequence):
        items = tuple(settle(item, loop) for item in value.items)
        return value if all(map(operator.is_, items, value.items)) else replace(value, items=items)
    if isinstance(value, Many):
        element = settle(value.element, loop)
        return value if element is value.element else replace(value, element=element)
    return value


def is_constant(value: Value) -> bool:
    """Whether the value is known whole."""
    if isinstance(value, Sequence):
        return all(map(is_constant, value.items))
    return isinstance(value, Const)


def constant_of(value: Value) -> Any:
    """The Python value of a constant for which ``is_constant`` holds; a sequence is a tuple."""
    if isinstance(value, Sequence):
        return tuple(map(constant_of, value.items))
    assert isinstance(value, Const)
    return value.value


def snapshot(real: Any, depth: int = 3) -> Value:
    """A value found in a global or closure cell: constants and small containers are read now, once."""
    if real is None or isinstance(real, str | bytes | int | float | complex) or real is Ellipsis:
        if type(real) in _CONSTANTS:
            return const(real)
        return Object(real=real)  # an Enum member or another subclass
    if isinstance(real, list | tuple) and depth and len(real) <= MAX_SNAPSHOT and type(real) in {list, tuple}:
        return sequence((snapshot(item, depth - 1) for item in real), mutable=isinstance(real, list))
    if isinstance(real, range) and len(real) <= MAX_SNAPSHOT:
        return sequence(map(const, real))
    return Object(real=real)


def _origin(value: Value) -> tuple[object, object, object]:
    return value.sources, value.volatile, value.contexts


_ORIGIN = frozenset({"sources", "volatile", "contexts"})
_CONSTANTS = frozenset({type(None), str, bytes, int, float, complex, bool, type(Ellipsis)})


def unparse(node: ast.AST, limit: int = 60) -> str:
    """Source text of a syntax node on one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
