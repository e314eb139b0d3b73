"""Following a call: the function's body is read in place of the call."""

from __future__ import annotations

import ast

from .builder import Chain
from .calls import Calls
from .functions import bind
from .planner import Arguments, Frame
from .source import bound_names, call_sites, holds_functions, is_generator, site
from .state import State, merge
from .values import Env, Function, Value, blend, const, join, unparse


class Following(Calls):
    """Reads function bodies."""

    def follow(self, function: Function, arguments: Arguments) -> Value:
        """Read a function's body in place of a call to it."""
        values = [function, *arguments.all]
        contexts = frozenset[int]().union(*(self.captures(value) for value in values))
        near = function.env is not None or function.module.file == self.home
        if not contexts and not near:
            return blend(*arguments.all)
        if is_generator(function.node):
            return self._not_followed("a generator runs when it is iterated", arguments, contexts)
        if function.node in self.active:
            if not contexts:
                return blend(*arguments.all)
            number = self.emit(
                "Call", function.name, arguments.node, contexts, *arguments.all, recursive=True, helper=True
            )
            return Value(sources=frozenset({number}), contexts=contexts)
        if len(self.active) > self.max_depth:
            return self._not_followed(f"calls are more than {self.max_depth} deep here", arguments, contexts)
        if bind(function, arguments) is None:
            value = self._not_followed(f"the arguments do not fit {function.name}", arguments, contexts)
            if contexts:
                self.builder.nodes[-1].attrs["misfit"] = function.name
            return value
        return self.enter(function, arguments, body=False)

    def _not_followed(self, reason: str, arguments: Arguments, contexts: frozenset[int]) -> Value:
        if contexts:
            return self.opaque(arguments.node, reason, contexts, *arguments.all)
        return blend(*arguments.all)

    def enter(self, function: Function, arguments: Arguments, *, body: bool) -> Value:
        """Read a function's body; ``body`` for the outermost frame of a program or branch."""
        names = bind(function, arguments)
        if names is None:
            raise ValueError(f"the arguments do not fit {function.name}")
        env = Env(self.builder.new_frame(), function.env, function.module, bound_names(function.node))
        self.state.frames[env.frame] = names
        chain: Chain = ()
        if not body:
            awaited = self.awaited.get(arguments.node)
            chain = (*self.frame.chain, call_sites(self.frame.file, arguments.node, awaited))
        caller = getattr(self, "frame", None)
        self.frame = frame = Frame(function.name, env, function.module.file, chain, body, function.node)
        self.active.append(function.node)
        if isinstance(function.node, ast.Lambda):
            value = self.evaluate(function.node.body)
            if self.state.alive:
                self.leave(function.node.body, value)
        else:
            self.execute(function.node.body)
        if self.state.alive:
            frame.returns.append((self.state, const(None)))
        self.active.pop()
        states = [state for state, _ in frame.returns]
        self.state = _returned(states, self.state)
        if not holds_functions(function.node):
            self.state.frames.pop(env.frame, None)
        if caller is not None:
            self.frame = caller
        result = None
        for _, value in frame.returns:
            result = value if result is None else join(result, value)
        self.returned = frame
        return const(None) if result is None else result

    def leave(self, node: ast.expr | ast.stmt, value: Value) -> None:
        """A return: of the program or branch a node, of a helper the end of its path."""
        frame = self.frame
        if frame.emits_return:
            at = site(frame.file, node)
            label = "return" if value == const(None) else f"return {_shown(node)}"
            number = self.builder.add("Return", label, at, **({"finally": True} if frame.finals else {}))
            self.builder.connect(value.sources, number, "value")
            if not value.sources:
                tips = frozenset[int]().union(*(self._root_tips(frame)))
                self.builder.connect(tips, number, "control")
            frame.return_nodes.append(number)
        frame.returns.append((self.state, value))
        self.state = State(self.state.frames, self.state.tips, False)

    def _root_tips(self, frame: Frame) -> list[frozenset[int]]:
        arguments = frame.node.args
        first = [*arguments.posonlyargs, *arguments.args][:1]
        own = self.state.frames[frame.env.frame].get(first[0].arg, Value()) if first else Value()
        return [self.state.tips.get(lineage, frozenset()) for lineage in own.contexts]


def _returned(states: list[State], last: State) -> State:
    return merge(states) if states else State(last.frames, last.tips, False)


def _shown(node: ast.expr | ast.stmt) -> str:
    expression = node.value if isinstance(node, ast.Return) else node
    return unparse(expression, 40) if expression is not None else ""
