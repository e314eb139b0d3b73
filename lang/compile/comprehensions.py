"""Comprehensions and generator expressions, as loops with names of their own."""

from __future__ import annotations

import ast

from .expressions import Expressions
from .source import holds_functions
from .values import Env, Value, Varying, count_of, element_of, many, passes, sequence, settle, unparse


class Comprehensions(Expressions):
    """Comprehensions and generator expressions, as loops with names of their own."""

    def comprehend(self, node: ast.expr, generators: list[ast.comprehension], element: ast.expr) -> Value:
        """Read a comprehension as nested loops; returns the collection that it makes."""
        names = frozenset(n.id for g in generators for n in ast.walk(g.target) if isinstance(n, ast.Name))
        outer = self.frame.env
        first = self.evaluate(generators[0].iter)
        self.frame.env = own = Env(self.builder.new_frame(), outer, None, names)
        try:
            return self._nest(node, generators, element, first)
        finally:
            self.frame.env = outer
            if not holds_functions(node):
                self.state.frames.pop(own.frame, None)

    def _nest(self, node: ast.expr, generators: list[ast.comprehension], element: ast.expr, over: Value) -> Value:
        generator, inner = generators[0], generators[1:]
        trips = count_of(over)
        made: list[Value] = []

        def once(loop: int) -> None:
            made.clear()
            self.assign(generator.target, passes(over, loop))
            tests = [self.evaluate(test) for test in generator.ifs]
            if inner:
                made.append(self._nest(node, inner, element, self.evaluate(inner[0].iter)))
            else:
                made.append(self.evaluate(element))
            value = made[0]
            if isinstance(value, Varying) and value.loop == loop and not tests:
                made[0] = sequence(value.each, mutable=True)
            else:
                known = trips if not tests else None
                if inner:
                    count = count_of(value)
                    known = None if known is None or count is None else known * count
                    value = element_of(value)
                made[0] = many(settle(value, loop), known, over, *tests)

        label = f"for {unparse(generator.target)} in {unparse(generator.iter)}"
        self.loop(node, label, over, once, trips=None if generator.ifs and not inner else trips)
        return made[0]
