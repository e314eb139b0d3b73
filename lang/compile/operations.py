"""Operations on a context: text, generation, choices, branches, host code."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ..graph import NodeKind
from ..operation import GenOptions
from . import text
from .expressions import OPERATIONS
from .following import Following
from .functions import bind, function_of
from .objects import option_text, options_of, output_type
from .planner import Arguments
from .source import loaded_names
from .values import (
    Chosen,
    Const,
    ContextValue,
    Function,
    Manager,
    MarkValue,
    Object,
    Sequence,
    TypeCall,
    Value,
    blend,
    const,
    constant_of,
    count_of,
    is_constant,
    many,
    passes,
    sequence,
    settle,
    snapshot,
    unparse,
)

GEN_OPTIONS = frozenset(GenOptions.__annotations__) | {"regex"}
"""Options that ``gen`` knows."""

MAX_HANDLES = 16
"""Handles of one ``split`` that are told apart; more are taken as alike."""
_SHORT = 44


class Operations(Following):
    """Adds the node of each operation."""

    def operate(self, name: str, context: Value, arguments: Arguments) -> Value:
        """The value of an operation on a context; adds its node."""
        if name not in OPERATIONS:
            return self.opaque(arguments.node, f"Context has no operation {name}", context.contexts, *arguments.all)
        operation: Callable[[Value, Arguments], Value] = getattr(self, f"_op_{name}")
        return operation(context, arguments)

    # ---- text
    def append(self, node: ast.Call | ast.AugAssign, context: Value, value: Value, role: str) -> None:
        """A Text node."""
        attrs = {"role": role, **text.text_attrs(value)}
        shown = attrs["text"].replace("\n", "\\n")
        shown = shown if len(shown) <= _SHORT else shown[: _SHORT - 1] + "…"
        self.emit("Text", f'{role}: "{shown}"', node, context.contexts, value, **attrs)

    def _op_text(self, context: Value, arguments: Arguments) -> Value:
        self.append(arguments.node, context, arguments.get(0, "text") or Value(), "raw")
        return const(None)

    def _op_system(self, context: Value, arguments: Arguments) -> Value:
        self.append(arguments.node, context, arguments.get(0, "text") or Value(), "system")
        return const(None)

    def _op_user(self, context: Value, arguments: Arguments) -> Value:
        self.append(arguments.node, context, arguments.get(0, "text") or Value(), "user")
        return const(None)

    def _op_assistant(self, context: Value, arguments: Arguments) -> Value:
        value = arguments.get(0, "text")
        if value is None and arguments.rest is None:
            self.emit(
                "Text", "assistant:", arguments.node, context.contexts,
                role="assistant", text="", constant=True, chars=0, opens=True,
            )  # fmt: skip
            return Manager(bound=const(None))
        self.append(arguments.node, context, value or Value(), "assistant")
        return const(None)

    # ---- generation
    def _op_gen(self, context: Value, arguments: Arguments) -> Value:
        node = arguments.node
        wanted = arguments.positional[0] if arguments.positional else None
        shown = unparse(node.args[0]) if node.args else "str"
        options = arguments.keywords
        attrs: dict[str, Any] = {"type": shown}
        pattern = _pattern(wanted) or options.get("regex")
        if isinstance(pattern, Const) and isinstance(pattern.value, str):
            attrs["regex"] = pattern.value
        limit = options.get("max_tokens")
        attrs["max_tokens"] = _number(limit)
        for name in ("stop", "temperature", "name"):
            if name in options:
                attrs[name] = _json(options[name])
        unknown = [name for name in options if name not in GEN_OPTIONS]
        if unknown:
            attrs["unknown_options"] = unknown
        given = limit is not None and not (isinstance(limit, Const) and limit.value is None)
        longest, refused = output_type(wanted, attrs.get("regex"))
        if refused is not None:
            attrs["refused"] = refused
        if given or arguments.rest is not None:
            longest = None
        elif longest is not None:
            attrs["longest"] = longest
        attrs["bounded"] = given or arguments.rest is not None or longest is not None
        label = f"{attrs['name']}: {shown}" if isinstance(attrs.get("name"), str) else shown
        if attrs["max_tokens"] is not None:
            label += f" ≤ {attrs['max_tokens']}"
        number = self.emit("Gen", f"gen {label}", node, context.contexts, *arguments.all, **attrs)
        found = options_of(wanted) if isinstance(wanted, Object) else None
        if found is not None:
            return Chosen(options=found, sources=frozenset({number}))
        return Value(sources=frozenset({number}))

    def _op_select(self, context: Value, arguments: Arguments) -> Value:
        node = arguments.node
        offered = arguments.positional[0] if arguments.positional else Value()
        options = options_of(offered)
        attrs: dict[str, Any] = {"how": "sum"}
        for name in ("how", "end", "name"):
            if name in arguments.keywords:
                attrs[name] = _json(arguments.keywords[name])
        if options is not None:
            attrs["choices"] = [option_text(option) for option in options]
        shown = " | ".join(attrs["choices"]) if options else unparse(node.args[0]) if node.args else "?"
        shown = shown if len(shown) <= _SHORT else shown[: _SHORT - 1] + "…"
        number = self.emit("Select", f"select {shown}", node, context.contexts, *arguments.all, **attrs)
        if options is None:
            return Value(sources=frozenset({number}))
        return Chosen(options=options, wrapped=True, sources=frozenset({number}))

    # ---- branches
    def _op_fork(self, context: Value, arguments: Arguments) -> Value:
        items = arguments.positional[0] if arguments.positional else Value()
        named = isinstance(items, Const) and isinstance(items.value, int) and not isinstance(items.value, bool)
        branches = items.value if named and isinstance(items, Const) else count_of(items)
        if named and isinstance(items, Const) and 0 <= items.value <= 256:
            items = snapshot(range(items.value))
        function = self._function(arguments.positional[1] if len(arguments.positional) > 1 else None)
        attrs = self._fork_attrs(arguments, branches, counted=named)
        attrs["item_used"] = function is None or _uses_item(function)
        number = self.emit(
            "Fork", self._fork_label(arguments, 1, branches), arguments.node, context.contexts, items, **attrs
        )
        branch = self._branch_of(number)
        loop = self.builder.new_frame()
        given = Arguments(arguments.node, [branch, passes(items, loop) if branches != 0 else Value()], {})
        busy, self.busy = self.busy, {**self.busy, **dict.fromkeys(context.contexts, number)}
        result = settle(self._branches(number, function, given, branch), loop)
        self.busy = busy
        return self._joined(number, context, branch, result, arguments, branches)

    def parallel(self, arguments: Arguments) -> Value:
        """The value of ``parallel(...)``; adds its nodes."""
        handles = arguments.positional[1] if len(arguments.positional) > 1 else Value()
        branches = count_of(handles)
        function = self._function(arguments.positional[0] if arguments.positional else None)
        attrs = self._fork_attrs(arguments, branches, counted=False)
        contexts = ContextValue(contexts=handles.contexts, sources=handles.sources)
        number = self.emit(
            "Fork", self._fork_label(arguments, 0, branches), arguments.node, contexts.contexts, blend(*arguments.all),
            parallel=True, **attrs,
        )  # fmt: skip
        given = Arguments(arguments.node, [contexts, *arguments.positional[2:]], {}, arguments.rest)
        result = self._branches(number, function, given, contexts)
        return self._joined(number, contexts, contexts, result, arguments, branches)

    def _branches(self, fork: int, function: Function | None, given: Arguments, branch: Value) -> Value:
        """Read the body of a fork's branches, once."""
        scope, self.scope = self.scope, fork
        before = self.state.copy()
        with self.builder.region(fork):
            if function is None:
                self.returned = None
                reason = "the branch function's source cannot be read"
                result = self.opaque(given.node, reason, branch.contexts, *given.positional[1:])
            elif bind(function, given) is None:
                self.returned = None
                reason = f"the arguments do not fit {function.name}"
                result = self.opaque(given.node, reason, branch.contexts, *given.positional[1:])
                self.builder.nodes[-1].attrs["misfit"] = function.name
            elif function.node in self.active:
                self.returned = None
                call = self.builder.add("Call", function.name, None, recursive=True, helper=True)
                self.attach(call, branch.contexts, *given.positional[1:])
                result = Value(sources=frozenset({call}))
            else:
                result = self.enter(function, given, body=True)
        self.scope = scope
        if not self.state.alive:
            self.state = before
        return result

    def _joined(
        self, fork: int, context: Value, branch: Value, result: Value, arguments: Arguments, branches: int | None
    ) -> Value:
        tips = {lineage: self.state.tips.get(lineage, frozenset()) for lineage in branch.contexts}
        nodes = self.builder.nodes
        attrs = {"until": nodes[fork].attrs["until"]} if "until" in nodes[fork].attrs else {}
        number = self.builder.add("Join", "join", nodes[fork].site, fork=fork, **attrs)
        for found in tips.values():
            self.builder.connect(found, number, "context")
        if not tips:
            self.builder.connect((fork,), number, "context")
        if self.returned is not None:
            self.builder.connect(self.returned.return_nodes, number, "value")
        else:
            self.builder.connect(result.sources, number, "value")
        for lineage in context.contexts:
            self.state.tips[lineage] = frozenset({number})
            nodes[number].lineages |= {lineage}
        count = branches if "until" not in arguments.keywords else None
        element = Value(
            sources=frozenset({number}), volatile=result.volatile, contexts=result.contexts - branch.contexts
        )
        return many(element, count)

    def _function(self, value: Value | None) -> Function | None:
        if isinstance(value, Object):
            return function_of(value.real)
        return value if isinstance(value, Function) else None

    def _fork_attrs(self, arguments: Arguments, branches: int | None, *, counted: bool) -> dict[str, Any]:
        attrs: dict[str, Any] = {"branches": branches}
        if counted:
            attrs["counted"] = True
        for keyword in arguments.node.keywords:
            if keyword.arg in {"until", "errors"}:
                attrs[keyword.arg] = unparse(keyword.value)
        return attrs

    def _fork_label(self, arguments: Arguments, index: int, branches: int | None) -> str:
        node = arguments.node
        name = unparse(node.args[index], 24) if len(node.args) > index else "?"
        count = "?" if branches is None else str(branches)
        return f"{'fork' if index else 'parallel'} {name} x {count}"

    def _op_split(self, context: Value, arguments: Arguments) -> Value:
        count = _number(arguments.get(0, "n"))
        shown = "?" if count is None else str(count)
        number = self.emit(
            "Split", f"split x {shown}", arguments.node, context.contexts, *arguments.all, branches=count
        )
        handles = [self._branch_of(number) for _ in range(count if count is not None and count <= MAX_HANDLES else 1)]
        return sequence(handles, mutable=True) if len(handles) == count else many(handles[0], count)

    def _branch_of(self, node: int) -> ContextValue:
        """A new context that begins at ``node`` and ends within the program."""
        lineage = self.builder.new_lineage()
        self.state.tips[lineage] = frozenset({node})
        self.builder.ended.append(lineage)
        return ContextValue(contexts=frozenset({lineage}))

    def _op_scratch(self, context: Value, arguments: Arguments) -> Value:
        number = self.emit("Scratch", "scratch", arguments.node, context.contexts)
        bound = self._branch_of(number)
        return Manager(bound=bound, region=number, contexts=bound.contexts)

    # ---- marks, host code, the rest
    def _op_mark(self, context: Value, arguments: Arguments) -> Value:
        tips = tuple((lineage, self.state.tips.get(lineage, frozenset())) for lineage in sorted(context.contexts))
        return MarkValue(tips=tips)

    def _op_rewind(self, context: Value, arguments: Arguments) -> Value:
        mark = arguments.get(0, "mark")
        if isinstance(mark, MarkValue):
            for lineage, tips in mark.tips:
                self.state.tips[lineage] = tips
        self._plain("Py", context, arguments, "rewind", "drops everything after the mark")
        return const(None)

    def _op_close(self, context: Value, arguments: Arguments) -> Value:
        self._plain("Py", context, arguments, "close", "gives the context's KV back")
        return const(None)

    def _plain(self, kind: NodeKind, context: Value, arguments: Arguments, name: str, effect: str) -> None:
        self.emit(kind, name, arguments.node, context.contexts, op=name, effect=effect)

    def _op_tool(self, context: Value, arguments: Arguments) -> Value:
        called = unparse(arguments.node.args[0], 40) if arguments.node.args else "?"
        number = self.emit("Tool", f"tool {called}", arguments.node, context.contexts, *arguments.all, tool=called)
        passed = frozenset[int]().union(*(self.captures(value) for value in arguments.all))
        if passed:
            self.builder.nodes[number].attrs["opaque"] = True
            self.attach(number, passed - context.contexts)
        return Value(sources=frozenset({number}), contexts=passed)

    def _op_steps(self, context: Value, arguments: Arguments) -> Value:
        count = _number(arguments.get(0, "n"))
        if count is None:
            return many(blend(*arguments.all), None, *arguments.all)
        return snapshot(range(count)) if 0 <= count <= 256 else many(Value(), count)


def _pattern(wanted: Value | None) -> Value | None:
    if isinstance(wanted, TypeCall) and wanted.maker == "regex" and wanted.arguments:
        return wanted.arguments[0]
    pattern = getattr(wanted.real, "pattern", None) if isinstance(wanted, Object) else None
    return const(pattern) if isinstance(pattern, str) else None


def _uses_item(function: Function) -> bool:
    """Whether a branch function reads its second argument, or may through ``*args``."""
    a = function.node.args
    names = [p.arg for p in (*a.posonlyargs, *a.args)][len(function.bound) + 1 :][:1]
    return not names or names[0] in loaded_names(function.node)


def _number(value: Value | None) -> int | None:
    if isinstance(value, Const) and isinstance(value.value, int) and not isinstance(value.value, bool):
        return value.value
    return None


def _json(value: Value) -> Any:
    """A constant option as JSON has it, None where it is not known."""
    if not is_constant(value):
        return None
    plain = constant_of(value)
    return list(plain) if isinstance(value, Sequence) else plain
