"""What every part of the abstract interpreter shares: where it is, what it knows, and how it adds an operation."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..graph import NodeKind, Site
from .builder import Chain, GraphBuilder
from .source import FunctionNode, Located, call_sites, loaded_names, site
from .state import State, merge
from .values import (
    Env,
    Function,
    Many,
    Named,
    Sequence,
    Value,
    blend,
    count_of,
    element_of,
    join,
    many,
    origins,
    settle,
    snapshot,
    unparse,
    values_of,
)

GLOBAL_FRAME = -1
"""Number of the frame that holds names which the program rebinds with ``global``."""
MAX_PASSES = 6
"""Passes over a loop's body after which what still changes is taken as unknown."""
Arms = Collection[tuple[str, Callable[[], Value | None]]]
"""Labels of an If's arms, and what reads each."""
_MISSING = object()


class TooLarge(Exception):
    """More statements were read than this compilation may; it is started again with less depth."""


@dataclass(slots=True)
class Jumps:
    """States at the breaks and continues of a loop."""

    breaks: list[State] = field(default_factory=list)
    continues: list[State] = field(default_factory=list)


@dataclass(slots=True)
class Frame:
    """A function whose body is being read."""

    name: str
    env: Env
    file: str
    chain: Chain
    """Call sites from the body's own frame to this one."""
    emits_return: bool
    node: FunctionNode
    returns: list[tuple[State, Value]] = field(default_factory=list)
    return_nodes: list[int] = field(default_factory=list)
    loops: list[Jumps] = field(default_factory=list)
    finals: int = 0
    """``finally`` blocks that a return here still runs."""


@dataclass(slots=True)
class Arguments:
    """The values of a call."""

    node: ast.Call
    positional: list[Value]
    keywords: dict[str, Value]
    rest: Value | None = None
    """What ``*args`` and ``**kwargs`` of unknown content hold."""

    @property
    def all(self) -> list[Value]:
        """Every value passed."""
        return [*self.positional, *self.keywords.values(), *([] if self.rest is None else [self.rest])]

    def get(self, index: int, name: str) -> Value | None:
        """The argument at a position or by name."""
        return self.positional[index] if index < len(self.positional) else self.keywords.get(name)


class Planner(ABC):
    """State of one compilation."""

    def __init__(self, home: str, max_depth: int, max_statements: int | None) -> None:
        self.home = home
        """File of the program: functions of this file are followed even without a context among their arguments."""
        self.max_depth = max_depth
        """Calls inside calls that are followed."""
        self.statements_left = max_statements
        self.builder = GraphBuilder()
        self.state = State({GLOBAL_FRAME: {}})
        self.frame: Frame
        self.scope: int | None = None
        self.busy: dict[int, int] = {}
        """Lineage -> the Fork node of its own that is running."""
        self.active: list[FunctionNode] = []
        self.awaited: dict[ast.Call, ast.Await] = {}
        self.returned: Frame | None = None
        """The body that was read last."""
        self.traps: dict[Site, str] = {}
        """Where a nested function takes a captured context for a local name."""
        self.changed: list[Value] = []
        """Containers that were changed in place; held, so that an identity is not used again."""

    @abstractmethod
    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression; adds the operations in it."""

    @abstractmethod
    def execute(self, body: Iterable[ast.stmt]) -> None:
        """Run statements on ``self.state``."""

    @abstractmethod
    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind an assignment's target."""

    @abstractmethod
    def call(self, callee: Value, arguments: Arguments) -> Value:
        """The value of a call; adds the operations in it."""

    @abstractmethod
    def operate(self, name: str, context: Value, arguments: Arguments) -> Value:
        """The value of an operation on a context; adds its node."""

    @abstractmethod
    def parallel(self, arguments: Arguments) -> Value:
        """The value of ``parallel(...)``; adds its nodes."""

    @abstractmethod
    def follow(self, function: Function, arguments: Arguments) -> Value:
        """Read a function's body in place of a call to it."""

    # ---- nodes
    def emit(
        self, kind: NodeKind, label: str, node: ast.Call | ast.AugAssign, contexts: frozenset[int], *values: Value,
        **attrs: Any,
    ) -> int:  # fmt: skip
        """Add an operation on the contexts, which uses the values; executed operations will find it."""
        sites = call_sites(self.frame.file, node, self.awaited.get(node) if isinstance(node, ast.Call) else None)
        if self.frame.chain:
            attrs["via"] = self.frame.name
        number = self.builder.add(kind, label, sites[0], **attrs)
        self.attach(number, contexts, *values)
        self.builder.register(self.scope, (*self.frame.chain, sites), number)
        return number

    def attach(self, number: int, contexts: frozenset[int], *values: Value) -> None:
        """Make a node the last operation of the contexts and a reader of the values."""
        draft = self.builder.nodes[number]
        draft.lineages |= contexts
        for lineage in sorted(contexts):
            self.builder.connect(self.state.tips.get(lineage, frozenset()), number, "context")
            self.state.tips[lineage] = frozenset({number})
            if lineage in self.busy:
                draft.attrs["busy"] = self.busy[lineage]
        for value in values:
            self.builder.connect(value.sources, number, "value")

    def opaque(self, node: Located, reason: str, contexts: frozenset[int], *values: Value) -> Value:
        """A node for what cannot be read; it may do anything to the contexts, and its result may hold them."""
        number = self.builder.add("Py", unparse(node), site(self.frame.file, node), reason=reason)
        self.attach(number, contexts, *values)
        return Value(sources=frozenset({number}), contexts=contexts)

    # ---- control
    def branch(self, at: Located, label: str, test: Value, arms: Arms, **attrs: Any) -> Value:
        """An If node with one region for each arm; left out where no arm has a node and none leaves."""
        point = self.builder.checkpoint()
        number = self.builder.add("If", label, site(self.frame.file, at), arms=[name for name, _ in arms])
        draft = self.builder.nodes[number]
        draft.attrs.update(attrs)
        if test.sources:
            draft.attrs["model_dependent"] = True
        self.builder.connect(test.sources, number, "value")
        before, states, results = self.state, [], []
        for name, run in arms:
            self.state = before.copy()
            with self.builder.region(number, name):
                result = run()
            states.append(self.state)
            if self.state.alive and result is not None:
                results.append(result)
        if len(self.builder.nodes) == number + 1 and all(state.alive for state in states):
            counters = self.builder.checkpoint().counters
            self.builder.rollback(point)
            self.builder.lineages, self.builder.frames = counters
        leaving = [name for (name, _), state in zip(arms, states, strict=True) if not state.alive]
        if leaving:
            draft.attrs["leaves"] = leaving
        self.state = merge(states)
        value = blend(test)
        if results:
            value = results[0]
            for other in results[1:]:
                value = join(value, other)
        return value

    def loop(
        self, at: Located, label: str, over: Value, once: Callable[[int], list[State] | None],
        *, trips: int | None, orelse: list[ast.stmt] | None = None, **attrs: Any,
    ) -> None:  # fmt: skip
        """A Loop node. ``once`` reads one pass (given the loop's number) and returns the states in which the loop ends
        early by its own test, None for a loop that ends when ``over`` is used up."""
        before = entry = self.state
        attempt = 0
        while True:
            attempt += 1
            point = self.builder.checkpoint()
            returned, noted = len(self.frame.returns), len(self.frame.return_nodes)
            number = self.builder.add("Loop", label, site(self.frame.file, at), trips=trips, **attrs)
            pass_number = self.builder.new_frame()
            self.builder.connect(over.sources, number, "value")
            self.state = entry.copy()
            jumps = Jumps()
            self.frame.loops.append(jumps)
            with self.builder.region(number):
                exits = once(pass_number)
            self.frame.loops.pop()
            end = _settled(merge([self.state, *jumps.continues]), pass_number)
            again = merge([before, end]) if end.alive else before
            if again == entry or attempt > MAX_PASSES:
                break
            self.builder.rollback(point)
            del self.frame.returns[returned:], self.frame.return_nodes[noted:]
            entry = again if attempt < MAX_PASSES else _widened(before, again, number)
        if any(value is over for value in self.changed):
            self.builder.nodes[number].attrs["trips"] = trips = None
        if exits is None:
            exits = [end] if trips else [before, end]
        breaks = [_settled(state, pass_number) for state in jumps.breaks]
        self.state = merge([_settled(state, pass_number) for state in exits])
        if orelse and self.state.alive:
            self.execute(orelse)
        self.state = merge([self.state, *breaks])
        inside = len(self.builder.nodes) - number - 1
        if not inside:
            counters = self.builder.checkpoint().counters
            self.builder.rollback(point)
            self.builder.lineages, self.builder.frames = counters

    # ---- names
    def read(self, name: str) -> Value:
        """The value of a name here; of globals and closures, what they hold now."""
        env: Env | None = self.frame.env
        module = None
        while env is not None:
            if name in env.names:
                return self.state.frames.get(env.frame, {}).get(name, Value())
            module = module or env.module
            env = env.parent
        overlay = self.state.frames[GLOBAL_FRAME]
        if name in overlay:
            return overlay[name]
        if module is None:
            return Value()
        for space in (module.cells, module.globals, _builtins(module.globals)):
            real = space.get(name, _MISSING)
            if real is not _MISSING:
                return snapshot(real)
        return Value()

    def write(self, name: str, value: Value) -> None:
        """Bind a name where it lives."""
        env: Env | None = self.frame.env
        while env is not None:
            if name in env.names:
                self.state.frames.setdefault(env.frame, {})[name] = value
                return
            env = env.parent
        self.state.frames[GLOBAL_FRAME][name] = value

    def weaken(self, container: Value, *added: Value) -> None:
        """A list, set or dict was changed in place: all that is left is what its items may be."""
        items = values_of(container)
        if isinstance(items, Sequence | Many):
            empty = count_of(items) == 0
            element = added[0] if empty and added else element_of(items)
            for value in added:
                element = join(element, value)
            self.changed.append(container)
            self.state.replace_value(container, many(element, None, container))

    def captures(self, value: Value, seen: frozenset[int] = frozenset()) -> frozenset[int]:
        """Lineages that a value reaches: its own, and those that a function closes over."""
        found = value.contexts
        if isinstance(value, Function):
            for given in (*value.bound, *(v for _, v in value.bound_keywords)):
                found |= self.captures(given, seen)
            if value.env is not None and id(value.node) not in seen:
                frame, self.frame = self.frame, _inside(self.frame, value.env)
                for name in loaded_names(value.node):
                    found |= self.captures(self.read(name), seen | {id(value.node)})
                self.frame = frame
        elif isinstance(value, Sequence):
            for item in value.items:
                found |= self.captures(item, seen)
        elif isinstance(value, Named):
            for _, item in value.items:
                found |= self.captures(item, seen)
        return found


def _inside(frame: Frame, env: Env) -> Frame:
    return Frame(frame.name, env, frame.file, frame.chain, emits_return=False, node=frame.node)


def _builtins(globals_: dict[str, Any]) -> dict[str, Any]:
    found = globals_.get("__builtins__", {})
    return found if isinstance(found, dict) else vars(found)


def _settled(state: State, loop: int) -> State:
    """The state once a pass is over: nothing moves with the loop any more. ``state`` itself is changed."""
    for names in state.frames.values():
        for name, value in names.items():
            names[name] = settle(value, loop)
    return state


def _widened(before: State, after: State, known: int) -> State:
    """``after`` with what differs from ``before`` taken as unknown; nothing in it names a node from ``known`` on."""
    wide = after.copy()
    for frame, names in wide.frames.items():
        unchanged = before.frames.get(frame, {})
        for name, value in names.items():
            if unchanged.get(name) != value:
                origin = origins((value,))
                names[name] = Value(**{**origin, "sources": frozenset(n for n in value.sources if n < known)})
    wide.tips = {lineage: frozenset(n for n in tips if n < known) for lineage, tips in wide.tips.items()}
    return wide
