"""Functions whose source can be read, and how a call's arguments fall on their parameters."""

from __future__ import annotations

import functools
import inspect
import types
from dataclasses import replace
from typing import Any

from ..errors import NoSource
from .planner import Arguments
from .source import find_function
from .values import Function, Module, Value, blend, join, many, named, sequence, snapshot


def function_of(real: Any) -> Function | None:
    """The function behind a real callable: a function, a bound method, a partial, an object with ``__call__``; None
    where its source cannot be read, and for the package's own."""
    if isinstance(real, functools.partial):
        inner = function_of(real.func)
        if inner is None:
            return None
        given = tuple(snapshot(value) for value in real.args)
        named = tuple((name, snapshot(value)) for name, value in real.keywords.items())
        return replace(inner, bound=(*inner.bound, *given), bound_keywords=(*inner.bound_keywords, *named))
    if isinstance(real, types.MethodType):
        inner = function_of(real.__func__)
        return None if inner is None else replace(inner, bound=(snapshot(real.__self__), *inner.bound))
    if not isinstance(real, types.FunctionType):
        method = inspect.getattr_static(type(real), "__call__", None)
        if isinstance(real, type) or not isinstance(method, types.FunctionType):
            return None
        return function_of(types.MethodType(method, real))
    if (real.__module__ or "").partition(".")[0] == "furcate":
        return None
    try:
        return read_function(real)
    except NoSource:
        return None


def read_function(real: types.FunctionType) -> Function:
    """A real function with its syntax tree, globals, closure and defaults. Raises NoSource."""
    node = find_function(real)
    return Function(name=real.__name__, node=node, module=_module_of(real), defaults=tuple(_defaults(real).items()))


def bind(function: Function, arguments: Arguments) -> dict[str, Value] | None:
    """Parameter names to values; None where the arguments do not fit."""
    a = function.node.args
    positional = [p.arg for p in (*a.posonlyargs, *a.args)]
    given = [*function.bound, *arguments.positional]
    keywords = {**dict(function.bound_keywords), **arguments.keywords}
    defaults = dict(function.defaults)
    rest = arguments.rest
    names: dict[str, Value] = dict(zip(positional, given, strict=False))
    extra = given[len(positional) :]
    if extra and a.vararg is None:
        return None
    if a.vararg is not None:
        names[a.vararg.arg] = sequence(extra) if rest is None else many(blend(*extra, rest), None)
    spare: dict[str, Value] = {}
    for name, value in keywords.items():
        if name in positional or any(p.arg == name for p in a.kwonlyargs):
            if name in names:
                return None
            names[name] = value
        elif a.kwarg is not None:
            spare[name] = value
        else:
            return None
    if a.kwarg is not None:
        names[a.kwarg.arg] = named(spare) if rest is None else many(blend(*spare.values(), rest), None)
    for name in [*positional, *(p.arg for p in a.kwonlyargs)]:
        if name not in names:
            if name in defaults and rest is None:
                names[name] = defaults[name]
            elif rest is not None:
                names[name] = rest if name not in defaults else join(rest, defaults[name])
            else:
                return None
    return names


def _module_of(real: types.FunctionType) -> Module:
    cells = {}
    for name, cell in zip(real.__code__.co_freevars, real.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return Module(real.__code__.co_filename, real.__globals__, cells)


def _defaults(real: types.FunctionType) -> dict[str, Value]:
    """Values of parameters that have a default: what a caller leaves out is a constant."""
    code = real.__code__
    positional = code.co_varnames[: code.co_argcount]
    values = real.__defaults__ or ()
    found = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
    found.update(real.__kwdefaults__ or {})
    return {name: snapshot(value) for name, value in found.items()}
