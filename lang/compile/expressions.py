"""Expressions: what each is worth before the program runs, and the operations found on the way."""

from __future__ import annotations

import ast
import operator
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from . import text
from .choices import arm_names, compare
from .objects import attribute, subscript_type, union_type
from .planner import Arguments, Planner
from .values import (
    Chosen,
    Const,
    ContextValue,
    Env,
    Function,
    Many,
    Method,
    Named,
    Object,
    Sequence,
    Test,
    Value,
    blend,
    const,
    constant_of,
    count_of,
    element_of,
    join,
    many,
    named,
    origins,
    sequence,
    snapshot,
    unparse,
    values_of,
    with_origin,
)

OPERATIONS = frozenset(
    [
        "text",
        "system",
        "user",
        "assistant",
        "gen",
        "select",
        "fork",
        "split",
        "scratch",
        "mark",
        "rewind",
        "tool",
        "steps",
        "close",
    ]
)
"""Methods of a Context."""
READS = frozenset({"tokens", "transcript", "messages", "usage", "last"})
"""Properties of a Context: they depend on its last operation."""

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Expressions(Planner):
    """Evaluates expressions."""

    @abstractmethod
    def comprehend(self, node: ast.expr, generators: list[ast.comprehension], element: ast.expr) -> Value:
        """Read a comprehension as nested loops; returns the collection that it makes."""

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression; adds the operations in it."""
        method = getattr(self, f"_eval_{type(node).__name__.lower()}", None)
        value: Value = method(node) if method is not None else self._children(node)
        return value

    def _children(self, node: ast.AST) -> Value:
        """The blend of every expression directly in a node that needs no rule of its own."""
        return blend(*(self.evaluate(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)))

    # ---- atoms
    def _eval_constant(self, node: ast.Constant) -> Value:
        return const(node.value)

    def _eval_name(self, node: ast.Name) -> Value:
        return self.read(node.id)

    def _eval_joinedstr(self, node: ast.JoinedStr) -> Value:
        return text.lift(text.concatenate, *(self.evaluate(part) for part in node.values))

    def _eval_formattedvalue(self, node: ast.FormattedValue) -> Value:
        value = self.evaluate(node.value)
        conversion = chr(node.conversion) if node.conversion > 0 else None
        if node.format_spec is None:
            return text.lift(lambda v: text.formatted(v, conversion, None), value)
        return text.lift(lambda v, s: text.formatted(v, conversion, s), value, self.evaluate(node.format_spec))

    def _eval_list(self, node: ast.List) -> Value:
        return self._display(node.elts, mutable=True)

    def _eval_tuple(self, node: ast.Tuple) -> Value:
        return self._display(node.elts, mutable=False)

    def _eval_set(self, node: ast.Set) -> Value:
        shown = self._display(node.elts, mutable=True)
        return many(element_of(shown), None, shown)

    def _display(self, elements: list[ast.expr], *, mutable: bool) -> Value:
        items: list[Value] = []
        known = True
        for element in elements:
            if isinstance(element, ast.Starred):
                inner = self.evaluate(element.value)
                known = known and isinstance(inner, Sequence)
                items += inner.items if isinstance(inner, Sequence) else [element_of(inner)]
            else:
                items.append(self.evaluate(element))
        shown = sequence(items, mutable=mutable)
        return shown if known else many(element_of(shown), None, shown)

    def _eval_dict(self, node: ast.Dict) -> Value:
        keys: list[Value | None] = []
        values: list[Value] = []
        for key, value in zip(node.keys, node.values, strict=True):
            keys.append(None if key is None else self.evaluate(key))
            values.append(self.evaluate(value))
        names = [key.value for key in keys if isinstance(key, Const) and isinstance(key.value, str)]
        if len(set(names)) == len(values):
            return named(dict(zip(names, values, strict=True)))
        shown = sequence(values, mutable=True)
        return many(element_of(shown), None, shown, *(key for key in keys if key is not None))

    def _eval_lambda(self, node: ast.Lambda) -> Value:
        return self.define(node, "<lambda>")

    def define(self, node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Function:
        """A function that is nested in the one being read; its defaults are evaluated now."""
        a = node.args
        positional = [*a.posonlyargs, *a.args]
        defaults = [
            (p.arg, self.evaluate(d))
            for p, d in zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True)
        ]
        defaults += [(p.arg, self.evaluate(d)) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d]
        env = self.frame.env
        module = self._module_of(env)
        return Function(name=name, node=node, module=module, env=env, defaults=tuple(defaults))

    def _module_of(self, env: Env) -> Any:
        inner: Env | None = env
        while inner is not None and inner.module is None:
            inner = inner.parent
        assert inner is not None
        return inner.module

    # ---- what contains
    def _eval_attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.evaluate(node.value), node.attr)

    def attribute(self, value: Value, name: str) -> Value:
        """``value.name``."""
        if value.contexts and (isinstance(value, ContextValue) or type(value) is Value):
            if name in READS:
                tips = frozenset().union(*(self.state.tips.get(c, frozenset()) for c in value.contexts))
                return Value(sources=value.sources | tips, volatile=value.volatile)
            if isinstance(value, ContextValue) or name in OPERATIONS:
                context = ContextValue(**origins((value,)))
                return Method(receiver=context, name=name, **origins((value,)))
        if isinstance(value, Chosen):
            if value.wrapped:
                return Chosen(options=value.options, **origins((value,))) if name == "value" else blend(value)
            return blend(value)
        if isinstance(value, Object):
            return attribute(value, name)
        return Method(receiver=value, name=name, **origins((value,)))

    def _eval_subscript(self, node: ast.Subscript) -> Value:
        return text.lift(self._item, self.evaluate(node.value), self.evaluate(node.slice))

    def _eval_slice(self, node: ast.Slice) -> Value:
        bounds = [const(None) if b is None else self.evaluate(b) for b in (node.lower, node.upper, node.step)]
        if all(isinstance(b, Const) and isinstance(b.value, int | None) for b in bounds):
            return const(slice(*map(constant_of, bounds)))
        return Many(element=Value(), **origins(bounds))  # a slice of unknown bounds

    def _item(self, container: Value, index: Value) -> Value:
        key = index.value if isinstance(index, Const) else None
        if isinstance(container, Sequence) and isinstance(key, int | slice):
            try:
                found = container.items[key]
            except (IndexError, ValueError):
                return blend(container)
            return sequence(found, mutable=container.mutable) if isinstance(found, tuple) else found
        if isinstance(container, Named):
            value = dict(container.items).get(key) if isinstance(key, str) else None
            return value if value is not None else with_origin(element_of(values_of(container)), index)
        if isinstance(container, Sequence | Many):
            slicing = isinstance(key, slice) or isinstance(index, Many)
            element = element_of(container)
            return many(element, None, container, index) if slicing else with_origin(element, index)
        if isinstance(container, Const) and isinstance(container.value, str) and isinstance(key, int | slice):
            try:
                return const(container.value[key], **origins((container, index)))
            except (IndexError, ValueError):
                return blend(container)
        if isinstance(container, Object):
            if isinstance(container.real, dict) and isinstance(key, str | int) and key in container.real:
                return with_origin(snapshot(container.real[key]), index)
            made = subscript_type(container, index)
            if made is not None:
                return made
        return blend(container, index)

    # ---- operators
    def _eval_binop(self, node: ast.BinOp) -> Value:
        return text.lift(lambda a, b: self.binary(node.op, a, b), self.evaluate(node.left), self.evaluate(node.right))

    def binary(self, op: ast.operator, a: Value, b: Value) -> Value:
        """``a op b``."""
        if isinstance(op, ast.Add):
            if text.is_text(a) or text.is_text(b):
                return text.concatenate(a, b)
            if isinstance(a, Sequence) and isinstance(b, Sequence):
                return sequence((*a.items, *b.items), mutable=a.mutable)
            if isinstance(a, Sequence | Many) and isinstance(b, Sequence | Many):
                counts = (count_of(a), count_of(b))
                total = None if None in counts else sum(c for c in counts if c is not None)
                return many(join(element_of(a), element_of(b)), total, a, b)
        if isinstance(op, ast.Mult):
            if text.is_text(a):
                return text.repeated(a, b)
            if text.is_text(b):
                return text.repeated(b, a)
            if isinstance(a, Sequence | Many):
                times = b.value if isinstance(b, Const) and isinstance(b.value, int) else None
                count = count_of(a)
                return many(element_of(a), None if times is None or count is None else times * count, a, b)
        if isinstance(op, ast.Mod) and text.is_text(a):
            return text.hole(a, b)
        if isinstance(op, ast.BitOr):
            made = union_type(a, b)
            if made is not None:
                return made
        work = _ARITHMETIC.get(type(op))
        if work is not None and _number(a) and _number(b):
            try:
                return const(work(constant_of(a), constant_of(b)), **origins((a, b)))
            except (ArithmeticError, ValueError):
                return blend(a, b)
        return blend(a, b)

    def _eval_unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            if isinstance(value, Test):
                return Test(when_true=value.when_false, when_false=value.when_true, **origins((value,)))
            return const(not value.value, **origins((value,))) if isinstance(value, Const) else blend(value)
        if isinstance(node.op, ast.USub) and _number(value):
            return const(-constant_of(value), **origins((value,)))
        return blend(value)

    def _eval_boolop(self, node: ast.BoolOp) -> Value:
        value = self.evaluate(node.values[0])
        wants = isinstance(node.op, ast.And)
        for operand in node.values[1:]:
            if isinstance(value, Const):
                if bool(value.value) is wants:
                    value = self.evaluate(operand)
                continue
            arm = "then" if wants else "else"

            def run(operand: ast.expr = operand) -> Value:
                return self.evaluate(operand)

            further = self.branch(operand, unparse(node), value, [(arm, run), ("skipped", lambda: None)])
            value = join(value, further) if not isinstance(value, Test) else blend(value, further)
        return value

    def _eval_ifexp(self, node: ast.IfExp) -> Value:
        test = self.evaluate(node.test)
        if isinstance(test, Const):
            return self.evaluate(node.body if test.value else node.orelse)
        names = arm_names(test)
        chosen = self.branch(
            node,
            unparse(node.test),
            test,
            [(names[0], lambda: self.evaluate(node.body)), (names[1], lambda: self.evaluate(node.orelse))],
        )
        return with_origin(chosen, test)

    def _eval_compare(self, node: ast.Compare) -> Value:
        left = self.evaluate(node.left)
        values = [left]
        for comparator in node.comparators:
            values.append(self.evaluate(comparator))
        if len(node.ops) == 1:
            return text.lift(lambda a, b: compare(node.ops[0], a, b), *values)
        return blend(*values)

    # ---- calls and what else runs
    def _eval_call(self, node: ast.Call) -> Value:
        callee = self.evaluate(node.func)
        positional: list[Value] = []
        keywords: dict[str, Value] = {}
        rest: list[Value] = []
        for argument in node.args:
            if not isinstance(argument, ast.Starred):
                value = self.evaluate(argument)
                (rest if rest else positional).append(value)
                continue
            value = self.evaluate(argument.value)
            if isinstance(value, Sequence) and not rest:
                positional += value.items
            else:
                rest.append(element_of(value))
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Named):
                keywords.update(value.items)
            else:
                rest.append(element_of(value))
        return self.call(callee, Arguments(node, positional, keywords, blend(*rest) if rest else None))

    def _eval_await(self, node: ast.Await) -> Value:
        if isinstance(node.value, ast.Call):
            self.awaited[node.value] = node
        return self.evaluate(node.value)

    def _eval_namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.assign(node.target, value)
        return value

    def _eval_starred(self, node: ast.Starred) -> Value:
        return self.evaluate(node.value)

    def _eval_listcomp(self, node: ast.ListComp) -> Value:
        return self.comprehend(node, node.generators, node.elt)

    def _eval_setcomp(self, node: ast.SetComp) -> Value:
        made = self.comprehend(node, node.generators, node.elt)
        return many(element_of(made), None, made)

    def _eval_generatorexp(self, node: ast.GeneratorExp) -> Value:
        return self.comprehend(node, node.generators, node.elt)

    def _eval_dictcomp(self, node: ast.DictComp) -> Value:
        made = self.comprehend(node, node.generators, ast.copy_location(ast.Tuple([node.key, node.value]), node))
        pair = element_of(made)
        return many(pair.items[1] if isinstance(pair, Sequence) else pair, None, made)


def _number(value: Value) -> bool:
    return isinstance(value, Const) and isinstance(value.value, int | float) and abs(value.value) < 1e12
