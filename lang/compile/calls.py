"""Calls: functions that are followed into, programs, builtins, methods of plain values, and what cannot be read."""

from __future__ import annotations

import functools
import inspect
import textwrap
import types
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import text
from .builtin_calls import BUILTINS, PURE_MODULES, collection_method, each_of
from .comprehensions import Comprehensions
from .functions import bind, function_of
from .objects import is_furcate, is_program, is_type, is_volatile
from .planner import Arguments
from .values import (
    Const,
    ContextValue,
    Function,
    Many,
    Method,
    Named,
    Object,
    Sequence,
    TypeCall,
    Value,
    blend,
    const,
    constant_of,
    is_constant,
    many,
    origins,
    snapshot,
    unparse,
    with_origin,
)

_STRING_METHODS = frozenset(
    [
        "strip",
        "lstrip",
        "rstrip",
        "upper",
        "lower",
        "title",
        "capitalize",
        "replace",
        "removeprefix",
        "removesuffix",
        "split",
        "splitlines",
        "casefold",
        "startswith",
        "endswith",
        "count",
        "find",
        "isdigit",
        "zfill",
        "ljust",
        "rjust",
        "center",
    ]
)
_PURE_TEXT: tuple[Callable[..., Any], ...] = (textwrap.dedent, textwrap.indent, inspect.cleandoc)
_RUNS = frozenset({"run", "aio", "stream", "astream", "map", "amap"})


class Calls(Comprehensions):
    """Evaluates calls."""

    def call(self, callee: Value, arguments: Arguments) -> Value:
        """The value of a call; adds the operations in it."""
        if isinstance(callee, Method):
            if isinstance(callee.receiver, ContextValue):
                return self.operate(callee.name, callee.receiver, arguments)
            return self._method(callee, arguments)
        if isinstance(callee, Function):
            return self.follow(callee, arguments)
        if isinstance(callee, Object):
            return self._object(callee, arguments)
        return self._unknown(callee, arguments, "it is not known what is called")

    def _object(self, callee: Object, arguments: Arguments) -> Value:
        real = callee.real
        if is_furcate(real, "parallel"):
            return self.parallel(arguments)
        if is_furcate(real, "regex", "grammar", "json_schema"):
            return TypeCall(maker=real.__name__, arguments=tuple(arguments.positional), **origins(arguments.all))
        if is_program(real):
            return self.program(callee, arguments, "")
        if real is functools.partial and arguments.positional:
            return self._partial(arguments)
        if isinstance(real, functools.partial) and not is_type(real):
            return self.call(function_of(real) or Value(), arguments)
        if any(real is known for known in _PURE_TEXT) and all(map(is_constant, arguments.positional)):
            return const(real(*map(constant_of, arguments.positional)), **origins(arguments.all))
        builtin = BUILTINS.get(real) if _hashable(real) else None
        if builtin is not None:
            if any(isinstance(value, Function) for value in arguments.all):
                return each_of(self, real, arguments)
            return builtin(arguments)
        if real is getattr and len(arguments.positional) > 1:
            name = arguments.positional[1]
            if isinstance(name, Const) and isinstance(name.value, str):
                return self.attribute(arguments.positional[0], name.value)
        if is_volatile(real):
            value = blend(callee, *arguments.all)
            return replace(value, volatile=value.volatile | {unparse(arguments.node)})
        function = function_of(real)
        if function is not None:
            return self.follow(function, arguments)
        if self._is_pure(real) and not any(isinstance(value, Function) for value in arguments.all):
            value = blend(*arguments.all)
            return many(value, None) if value.contexts else value
        return self._unknown(callee, arguments, "its source cannot be read")

    def _is_pure(self, real: Any) -> bool:
        module = getattr(real, "__module__", None) or type(getattr(real, "__self__", None)).__module__
        return str(module).partition(".")[0].lstrip("_") in PURE_MODULES

    def _partial(self, arguments: Arguments) -> Value:
        first = arguments.positional[0]
        function = function_of(first.real) if isinstance(first, Object) else first
        if not isinstance(function, Function) or arguments.rest is not None:
            return blend(*arguments.all)
        return replace(
            function,
            bound=(*function.bound, *arguments.positional[1:]),
            bound_keywords=(*function.bound_keywords, *arguments.keywords.items()),
            **origins((function, *arguments.all)),
        )

    # ---- methods of plain values
    def _method(self, method: Method, arguments: Arguments) -> Value:
        receiver, name = method.receiver, method.name
        if isinstance(receiver, Object) and is_program(receiver.real):
            if name == "using":
                return with_origin(receiver, *arguments.all)
            if name in _RUNS:
                return self.program(receiver, arguments, name)
        if isinstance(receiver, Object) and isinstance(receiver.real, dict):
            return _dict_method(receiver, name)
        if text.is_text(receiver):
            return self._text_method(receiver, name, arguments)
        if isinstance(receiver, Sequence | Many | Named):
            return collection_method(self, receiver, name, arguments)
        if name == "join" and len(arguments.positional) == 1:
            return text.hole(receiver, *arguments.positional)
        return self._unknown(method, arguments, f"it is not known what .{name} is")

    def _text_method(self, receiver: Value, name: str, arguments: Arguments) -> Value:
        values = [receiver, *arguments.all]
        if name == "join" and len(arguments.positional) == 1:
            return text.joined(receiver, arguments.positional[0])
        if isinstance(receiver, Const) and arguments.rest is None:
            if name == "format":
                return text.format_template(receiver.value, arguments.positional, arguments.keywords)
            if name in _STRING_METHODS and not arguments.keywords and all(map(is_constant, arguments.positional)):
                try:
                    made = getattr(receiver.value, name)(*map(constant_of, arguments.positional))
                except (TypeError, ValueError):
                    return blend(*values)
                if isinstance(made, list):
                    return Sequence(items=tuple(const(m) for m in made), mutable=True, **origins(values))
                return const(made, **origins(values))
        return text.hole(*values) if name in _STRING_METHODS - {"split", "splitlines"} else blend(*values)

    # ---- what is called
    def program(self, callee: Object, arguments: Arguments, how: str) -> Value:
        """A program called inside a program: a Call node with its body on a context of its own."""
        real = callee.real
        name = getattr(real, "name", None) or real.__wrapped__.__name__
        attrs: dict[str, Any] = {"how": how} if how else {}
        function = function_of(real.__wrapped__)
        if function is not None and function.node in self.active:
            attrs["recursive"] = True
        number = self.emit("Call", name, arguments.node, frozenset(), *arguments.all, program=name, **attrs)
        result = Value(sources=frozenset({number}), **_still(arguments))
        if function is None:
            self.builder.nodes[number].attrs["reason"] = "its source cannot be read"
        elif function.node not in self.active:
            lineage = self.builder.new_lineage()
            self.state.tips[lineage] = frozenset({number})
            self.builder.ended.append(lineage)
            root = ContextValue(contexts=frozenset({lineage}))
            given = Arguments(arguments.node, [root, *arguments.positional], arguments.keywords, arguments.rest)
            if how in {"map", "amap"}:
                given = Arguments(arguments.node, [root], {}, blend(*arguments.all))
            if bind(function, given) is None:
                self.builder.nodes[number].attrs |= {
                    "reason": f"the arguments do not fit {function.name}", "misfit": function.name,
                }  # fmt: skip
                return result
            scope, self.scope, busy, self.busy = self.scope, number, self.busy, {}
            with self.builder.region(number):
                self.enter(function, given, body=True)
            self.scope, self.busy = scope, busy
            self.state.alive = True
        return result

    def _unknown(self, callee: Value, arguments: Arguments, reason: str) -> Value:
        values = [callee, *arguments.all]
        contexts = frozenset[int]().union(*(self.captures(value) for value in values))
        if contexts:
            return self.opaque(arguments.node, reason, contexts, *values)
        for value in arguments.all:
            if isinstance(value, Sequence) and value.mutable:
                self.weaken(value, Value())
        return blend(*values)

    @abstractmethod
    def enter(self, function: Function, arguments: Arguments, *, body: bool) -> Value:
        """Read a function's body; ``body`` for the outermost frame of a program or branch."""


def _still(arguments: Arguments) -> dict[str, Any]:
    return {"volatile": frozenset[str]().union(*(value.volatile for value in arguments.all))}


def _dict_method(receiver: Object, name: str) -> Value:
    """The items of a global dict as they are now."""
    real: dict[Any, Any] = receiver.real
    found = {"items": list(real.items()), "keys": list(real), "values": list(real.values())}.get(name)
    return blend(receiver) if found is None else with_origin(snapshot(found), receiver)


def _hashable(real: Any) -> bool:
    return isinstance(real, type | types.BuiltinFunctionType)
