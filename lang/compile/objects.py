"""Real objects found in a program's globals: their attributes, output types and choices, read without running code."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import random
import types
import typing
from datetime import date
from typing import Any, Literal, get_args, get_origin

from pydantic.errors import PydanticUserError

from ..errors import FurcateError
from ..types import regex, resolve
from .values import Const, Method, Object, Sequence, TypeCall, Value, constant_of, is_constant, origins, snapshot

_MISSING = object()
_CLOCK = frozenset(
    [
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "ctime",
        "localtime",
        "gmtime",
        "strftime",
    ]
)


def attribute(owner: Object, name: str) -> Value:
    """``owner.name`` where it can be told without running a property; otherwise a Method that may be called."""
    real = owner.real
    origin = origins((owner,))
    found: Any = _MISSING
    if isinstance(real, types.ModuleType):
        found = vars(real).get(name, _MISSING)
        if found is _MISSING and real.__name__.partition(".")[0] == "furcate":
            found = getattr(real, name, _MISSING)  # a name that the package loads when it is asked for
    elif isinstance(real, enum.EnumMeta):
        found = real.__members__.get(name, _MISSING)
    elif isinstance(real, enum.Enum) and name in {"value", "name"}:
        found = getattr(real, name)
    elif isinstance(real, type):
        static = inspect.getattr_static(real, name, _MISSING)
        if isinstance(static, staticmethod | classmethod | types.ClassMethodDescriptorType):
            found = getattr(real, name)
        elif not isinstance(static, property):
            found = static
    elif not is_program(real) and not isinstance(real, dict):
        static = inspect.getattr_static(type(real), name, _MISSING)
        if isinstance(static, types.FunctionType):
            found = types.MethodType(static, real)
        elif isinstance(static, staticmethod | classmethod) or isinstance(real, types.MethodType):
            found = getattr(real, name, _MISSING)
        elif isinstance(static, types.MethodDescriptorType):
            found = getattr(real, name)
        elif _is_frozen(real):
            found = inspect.getattr_static(real, name, _MISSING)
    if found is _MISSING:
        return Method(receiver=owner, name=name, **origin)
    value = snapshot(found)
    return dataclasses.replace(value, **origins((owner, value)))


def is_program(real: Any) -> bool:
    """Whether an object is a Program: something compiled that wraps a plain function."""
    return (
        not inspect.isfunction(real)
        and not isinstance(real, type)
        and inspect.isfunction(getattr(real, "__wrapped__", None))
        and hasattr(type(real), "compile")
        and hasattr(type(real), "check")
    )


def is_furcate(real: Any, *names: str) -> bool:
    """Whether an object is the package's own function or class of one of these names."""
    module = getattr(real, "__module__", None) or ""
    return module.partition(".")[0] == "furcate" and getattr(real, "__name__", None) in names


def is_volatile(real: Any) -> bool:
    """Whether calling it gives something else on every run: clocks, random numbers, fresh identifiers."""
    name = getattr(real, "__name__", "")
    owner = getattr(real, "__self__", None)
    if isinstance(owner, type):
        return issubclass(owner, date) and name in {"now", "utcnow", "today"}
    module = getattr(real, "__module__", None) or type(owner).__module__
    if module == "random":
        return owner is None or owner is getattr(random, "_inst", None)
    return (
        (module == "time" and name in _CLOCK)
        or (module == "uuid" and name in {"uuid1", "uuid4"})
        or module == "secrets"
        or (module in {"os", "posix", "nt"} and name in {"urandom", "getpid"})
    )


# ---- output types
def is_type(real: Any) -> bool:
    """Whether an object is a class or a typing form."""
    return isinstance(real, type | types.UnionType | types.GenericAlias) or get_origin(real) is not None


def subscript_type(container: Object, index: Value) -> Object | None:
    """``Literal["a", "b"]``, ``list[int]`` and the like, made again; None where it is none of these."""
    real = container.real
    parts = index.items if isinstance(index, Sequence) else (index,)
    if real is Literal:
        if all(map(is_constant, parts)):
            return Object(real=Literal[tuple(map(constant_of, parts))])
        return None
    if any(real is known for known in _GENERICS) and all(isinstance(p, Object | Const | TypeCall) for p in parts):
        arguments = tuple(map(_type_argument, parts))
        try:
            return Object(real=real[arguments if len(arguments) > 1 else arguments[0]])
        except TypeError:
            return None
    return None


def _type_argument(part: Value) -> Any:
    if isinstance(part, TypeCall):  # ``fc.regex("...")`` as metadata of Annotated
        pattern = part.arguments[0] if part.maker == "regex" and part.arguments else None
        return regex(pattern.value) if isinstance(pattern, Const) and isinstance(pattern.value, str) else None
    return part.real if isinstance(part, Object) else constant_of(part)


def union_type(a: Value, b: Value) -> Object | None:
    """``A | B`` of two output types, None where one of them is none."""
    parts = [None if isinstance(v, Const) and v.value is None else getattr(v, "real", _MISSING) for v in (a, b)]
    if any(part is not None and not is_type(part) for part in parts) or parts == [None, None]:
        return None
    try:
        return Object(real=typing.Union[parts[0], parts[1]])  # noqa: UP007  # made from values, not written
    except TypeError:
        return None


def options_of(value: Value) -> tuple[Any, ...] | None:
    """The finitely many values of a collection of constants, a Literal, an Enum or bool; None otherwise."""
    if isinstance(value, Sequence):
        if all(isinstance(item, Const | Object) for item in value.items):
            return tuple(item.value if isinstance(item, Const) else getattr(item, "real", None) for item in value.items)
        return None
    return type_options(value.real) if isinstance(value, Object) else None


def type_options(real: Any) -> tuple[Any, ...] | None:
    """The values of a finite type."""
    if get_origin(real) is Literal:
        return get_args(real)
    if isinstance(real, enum.EnumMeta):
        return tuple(real)
    if real is bool:
        return (True, False)
    return None


def output_type(wanted: Value | None, pattern: str | None) -> tuple[int | None, str | None]:
    """Bytes, and so at most tokens, of the longest text of a ``gen``'s type, None where there is no longest or the type
    is not known; and why the type cannot be generated, None where it can."""
    try:
        if pattern is not None:
            return regex(pattern).max_bytes, None
        if wanted is None:
            return None, None
        if isinstance(wanted, Const):
            return resolve(type(None) if wanted.value is None else wanted.value).max_bytes, None
        return (resolve(wanted.real).max_bytes if isinstance(wanted, Object) else None), None
    except (FurcateError, TypeError, PydanticUserError) as error:
        # a pattern has a rule of its own, which shows it
        return None, None if pattern is not None else str(error).splitlines()[0]


def option_text(option: Any) -> str:
    """A choice's text."""
    plain = option.value if isinstance(option, enum.Enum) else option
    if isinstance(plain, bool):
        return str(plain).lower()
    return "null" if plain is None else str(plain)


def _is_frozen(real: Any) -> bool:
    params = getattr(type(real), "__dataclass_params__", None)
    return bool(getattr(params, "frozen", False)) or (isinstance(real, tuple) and hasattr(type(real), "_fields"))


_GENERICS: tuple[Any, ...] = (
    list, tuple, dict, set, frozenset, typing.Optional, typing.Union, typing.Annotated, typing.List, typing.Dict,  # noqa: UP006
)  # fmt: skip
