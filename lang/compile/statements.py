"""Statements: how a body runs from top to bottom, parts, loops and ends."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable

from . import text
from .choices import arm_names, options_label
from .operations import Operations
from .patterns import captured_names, case_label, is_whole
from .planner import TooLarge
from .source import bound_names, loaded_names, site
from .state import State, merge
from .values import (
    Chosen,
    Const,
    ContextValue,
    Manager,
    Many,
    Named,
    Object,
    Sequence,
    Value,
    Varying,
    blend,
    const,
    count_of,
    element_of,
    passes,
    snapshot,
    unparse,
    with_origin,
)


class Statements(Operations):
    """Runs statements."""

    def execute(self, body: Iterable[ast.stmt]) -> None:
        """Run statements on ``self.state``; what follows the end of a path is not read."""
        for statement in body:
            if not self.state.alive:
                return
            if self.statements_left is not None:
                self.statements_left -= 1
                if self.statements_left < 0:
                    raise TooLarge
            run: Callable[[ast.stmt], None] | None = getattr(self, f"_do_{type(statement).__name__.lower()}", None)
            if run is not None:
                run(statement)

    # ---- simple statements
    def _do_expr(self, node: ast.Expr) -> None:
        self.evaluate(node.value)

    def _do_assert(self, node: ast.Assert) -> None:
        self.evaluate(node.test)

    def _do_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.write(target.id, Value())

    def _do_return(self, node: ast.Return) -> None:
        self.leave(node, const(None) if node.value is None else self.evaluate(node.value))

    def _do_raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self.evaluate(node.exc)
        self._die()

    def _do_break(self, node: ast.Break) -> None:
        self.frame.loops[-1].breaks.append(self.state)
        self._die()

    def _do_continue(self, node: ast.Continue) -> None:
        self.frame.loops[-1].continues.append(self.state)
        self._die()

    def _die(self) -> None:
        self.state = State(self.state.frames, self.state.tips, False)

    def _do_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._warn_of_captured(node)
        made: Value = self.define(node, node.name)
        for decorator in reversed(node.decorator_list):
            made = blend(self.evaluate(decorator), made)
        self.write(node.name, made)

    _do_asyncfunctiondef = _do_functiondef

    def _do_classdef(self, node: ast.ClassDef) -> None:
        self.write(node.name, Value())

    def _do_import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            module = sys.modules.get(name)
            self.write(alias.asname or name, Value() if module is None else Object(real=module))

    def _do_importfrom(self, node: ast.ImportFrom) -> None:
        module = sys.modules.get(node.module or "") if not node.level else None
        for alias in node.names:
            found = vars(module).get(alias.name, self) if module is not None else self
            self.write(alias.asname or alias.name, Value() if found is self else snapshot(found))

    # ---- assignment
    def _do_assign(self, node: ast.Assign) -> None:
        value = self._assigned(node.value, node.targets)
        for target in node.targets:
            self.assign(target, value)

    def _do_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self._assigned(node.value, [node.target]))

    def _assigned(self, expression: ast.expr, targets: list[ast.expr]) -> Value:
        """The value of an assignment; the model's result in it is marked if its only name is never read."""
        before = len(self.builder.nodes)
        value = self.evaluate(expression)
        made = [n for n in self.builder.nodes[before:] if n.kind in {"Gen", "Select"} and n.id in value.sources]
        target = targets[0]
        if made and len(targets) == 1 and isinstance(target, ast.Name) and not target.id.startswith("_"):
            read = loaded_names(self.frame.node)
            if target.id in bound_names(self.frame.node) and not read & {target.id, "locals"}:
                made[-1].attrs["unread"] = target.id
        return value

    def _do_augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            current = self._read_own(node)
            if current is None:
                return
        else:
            current = self.evaluate(_loaded(node.target))
        value = self.evaluate(node.value)
        if isinstance(node.op, ast.Add) and (
            isinstance(current, ContextValue) or (type(current) is Value and current.contexts)
        ):
            self.append(node, current, value, "raw")
            return
        if isinstance(current, Sequence | Many) and isinstance(node.op, ast.Add):
            self.weaken(current, element_of(value))
            if not isinstance(node.target, ast.Name):
                return
        self.assign(node.target, text.lift(lambda a, b: self.binary(node.op, a, b), current, value))

    def _read_own(self, node: ast.AugAssign) -> Value | None:
        """The target's value before ``+=``; None after the trap of a captured name, which Python takes as local."""
        assert isinstance(node.target, ast.Name)
        name, env = node.target.id, self.frame.env
        while env.module is None and env.parent is not None and name not in env.names:
            env = env.parent  # the frame of a comprehension
        own = self.state.frames.get(env.frame, {})
        if name in env.names and name not in own and env.parent is not None:
            inner, self.frame.env = self.frame.env, env.parent
            outer = self.read(name)
            self.frame.env = inner
            if outer.contexts:
                number = self.builder.add(
                    "Py", unparse(node), site(self.frame.file, node), trap="captured", name=name,
                    reason=f"{name} is assigned here, so Python takes it as a local name that has no value yet",
                )  # fmt: skip
                self.attach(number, outer.contexts)
                return None  # what follows is read as if it ran, so that its mistakes are found in the same pass
        return self.read(name)

    def _warn_of_captured(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Note functions that would fall into the trap, called or not: the graph's ``traps``."""
        local = bound_names(node)
        plain = {
            n.id
            for inner in ast.walk(node)
            if not isinstance(inner, ast.AugAssign)
            for n in ast.iter_child_nodes(inner)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        } | {p.arg for p in ast.walk(node.args) if isinstance(p, ast.arg)}
        for inner in ast.walk(node):
            if not isinstance(inner, ast.AugAssign) or not isinstance(inner.target, ast.Name):
                continue
            name = inner.target.id
            if name in local and name not in plain and isinstance(self.read(name), ContextValue):
                self.traps[site(self.frame.file, inner)] = name

    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind an assignment's target."""
        match target:
            case ast.Name(id=name):
                self.write(name, value)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element, part in zip(elements, _unpacked(value, elements), strict=True):
                    self.assign(element, part)
            case ast.Starred(value=inner):
                self.assign(inner, value)
            case ast.Subscript():
                container = self.evaluate(target.value)
                self.evaluate(target.slice)
                if isinstance(container, Sequence | Many | Named):
                    self.weaken(container, value)
                elif value.contexts:
                    self.opaque(target, "a context is kept in a container that is not followed", value.contexts)
            case ast.Attribute():
                self.evaluate(target.value)
                if value.contexts:
                    self.opaque(target, "a context is kept in an attribute", value.contexts)

    # ---- parts
    def _do_if(self, node: ast.If) -> None:
        test = self.evaluate(node.test)
        if isinstance(test, Const):
            self.execute(node.body if test.value else node.orelse)
            return
        names = arm_names(test)
        self.branch(
            node, f"if {unparse(node.test)}", test,
            [(names[0], lambda: self.execute(node.body)), (names[1], lambda: self.execute(node.orelse))],
        )  # fmt: skip

    def _do_match(self, node: ast.Match) -> None:
        subject = self.evaluate(node.subject)
        left = subject.options if isinstance(subject, Chosen) and not subject.wrapped else None
        arms: list[tuple[str, Callable[[], Value | None]]] = []
        whole = False
        for case in node.cases:
            label, left = case_label(self, case, left)

            def run(case: ast.match_case = case) -> None:
                for name in captured_names(case.pattern):
                    self.write(name, with_origin(subject) if is_whole(case.pattern) else blend(subject))
                if case.guard is not None:
                    self.evaluate(case.guard)
                self.execute(case.body)

            arms.append((label, run))
            whole = whole or (case.guard is None and is_whole(case.pattern))
        if not whole and left != ():
            arms.append((options_label(left or (), "else"), lambda: None))
        self.branch(node, f"match {unparse(node.subject)}", subject, arms)

    def _do_try(self, node: ast.Try) -> None:
        before = self.state.copy()
        returned = len(self.frame.returns)
        self.frame.finals += bool(node.finalbody)
        self.execute(node.body)
        ended = self.state
        if node.handlers:
            within = State(ended.frames, ended.tips, True)
            raised = merge([before, within, *(State(s.frames, s.tips) for s, _ in self.frame.returns[returned:])])

            def no_error() -> None:
                self.state = ended.copy()
                self.execute(node.orelse)

            def handle(handler: ast.ExceptHandler) -> Callable[[], None]:
                def run() -> None:
                    self.state = raised.copy()
                    if handler.name:
                        self.write(handler.name, Value())
                    self.execute(handler.body)

                return run

            arms: list[tuple[str, Callable[[], Value | None]]] = [("no error", no_error)]
            arms += [(unparse(h.type) if h.type else "any error", handle(h)) for h in node.handlers]
            self.branch(node.handlers[0], "except", Value(), arms, exception=True)
        elif ended.alive:
            self.execute(node.orelse)
        if node.finalbody:
            self.frame.finals -= 1
            ends = [State(s.frames, s.tips) for s, _ in self.frame.returns[returned:]]
            alive = self.state.alive
            self.state = merge([self.state, *ends]) if alive or ends else State(ended.frames, ended.tips)
            first = len(self.builder.nodes)
            self.execute(node.finalbody)
            for draft in self.builder.nodes[first:]:
                draft.in_finally = True
            self.state.alive = self.state.alive and alive

    _do_trystar = _do_try

    def _do_with(self, node: ast.With | ast.AsyncWith) -> None:
        self._enter_items(list(node.items), node.body)

    _do_asyncwith = _do_with

    def _enter_items(self, items: list[ast.withitem], body: list[ast.stmt]) -> None:
        if not items:
            self.execute(body)
            return
        value = self.evaluate(items[0].context_expr)
        bound = value.bound if isinstance(value, Manager) else blend(value)
        if items[0].optional_vars is not None:
            self.assign(items[0].optional_vars, bound)
        if isinstance(value, Manager) and value.region is not None:
            with self.builder.region(value.region):
                self._enter_items(items[1:], body)
        else:
            self._enter_items(items[1:], body)

    # ---- loops
    def _do_for(self, node: ast.For | ast.AsyncFor) -> None:
        over = self.evaluate(node.iter)

        def once(loop: int) -> None:
            self.assign(node.target, passes(over, loop))
            self.execute(node.body)

        trips = count_of(over)
        if trips == 0:
            self.execute(node.orelse)
            return
        endless = isinstance(node.iter, ast.Call) and unparse(node.iter.func).rpartition(".")[2] in {"count", "cycle"}
        attrs = {"unbounded": True} if endless and trips is None else {}
        label = f"for {unparse(node.target)} in {unparse(node.iter)}"
        self.loop(node, label, over, once, trips=trips, orelse=node.orelse, **attrs)

    _do_asyncfor = _do_for

    def _do_while(self, node: ast.While) -> None:
        depends: list[Value] = []

        def once(loop: int) -> list[State]:
            test = self.evaluate(node.test)
            depends.append(test)
            ends = [] if isinstance(test, Const) and test.value else [self.state.copy()]
            if isinstance(test, Const) and not test.value:
                self._die()
                return ends
            self.execute(node.body)
            return ends

        start = len(self.builder.nodes)
        self.loop(node, f"while {unparse(node.test)}", Value(), once, trips=None, orelse=node.orelse, unbounded=True)
        if depends and start < len(self.builder.nodes) and self.builder.nodes[start].kind == "Loop":
            sources = frozenset(s for s in depends[-1].sources if s < len(self.builder.nodes))
            if sources:
                self.builder.nodes[start].attrs["model_dependent"] = True
            self.builder.connect(sources, start, "value")


def _unpacked(value: Value, targets: list[ast.expr]) -> list[Value]:
    """The parts of a value that is unpacked onto targets."""
    stars = [i for i, target in enumerate(targets) if isinstance(target, ast.Starred)]
    count = len(targets)
    if isinstance(value, Varying):
        rows = [_unpacked(each, targets) for each in value.each]
        if not stars and all(len(row) == count for row in rows):
            return [Varying(loop=value.loop, each=tuple(row[i] for row in rows), sources=value.sources,
                            volatile=value.volatile, contexts=value.contexts) for i in range(count)]  # fmt: skip
    if isinstance(value, Sequence) and not stars and len(value.items) == count:
        return list(value.items)
    if isinstance(value, Sequence) and len(stars) == 1 and len(value.items) >= count - 1:
        first, after = stars[0], count - stars[0] - 1
        items = value.items
        middle = Sequence(items=items[first : len(items) - after], mutable=True, sources=value.sources,
                          volatile=value.volatile, contexts=value.contexts)  # fmt: skip
        return [*items[:first], middle, *items[len(items) - after :]]
    element = element_of(value)
    return [Many(element=element, sources=value.sources, volatile=value.volatile, contexts=value.contexts)
            if i in stars else element for i in range(count)]  # fmt: skip


def _loaded(target: ast.expr) -> ast.expr:
    """An assignment's target as an expression that is read."""
    if isinstance(target, ast.Attribute):
        return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    if isinstance(target, ast.Subscript):
        return ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
    return target
