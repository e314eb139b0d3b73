"""The compiler: a program's source becomes its execution graph, without running it, its inputs or a model."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .compile.analysis import derive
from .compile.functions import read_function
from .compile.planner import Arguments, TooLarge
from .compile.statements import Statements
from .compile.values import ContextValue, Function, Value
from .errors import NoSource
from .graph import Graph

__all__ = ["compile_program"]


def compile_program(fn: Callable[..., Any], name: str) -> Graph:
    """The planned graph of a plain function whose first parameter is a Context.

    Nothing of it is run. Globals and closure cells that are immutable, and small lists and tuples, are read once, as
    constants. What cannot be read becomes a ``Py`` node with the ``reason``. ``Graph.attrs`` holds ``file``, ``line``,
    ``bound``, ``constant_prefix`` and, where there are any, ``traps``.

    Raises NoSource where there is no source (a REPL, ``exec``, a lambda, a callable that is no Python
    function).
    """
    plain = inspect.unwrap(fn)
    if not inspect.isfunction(plain):
        raise NoSource(
            f"{name} is not a Python function, but {type(plain).__name__}: it runs, but it has no graph ahead of time"
        )
    if plain.__name__ == "<lambda>":
        raise NoSource(f"{name} is a lambda: it runs, but it has no graph ahead of time. Write it with def.")
    function = read_function(plain)
    if not function.node.args.posonlyargs + function.node.args.args:
        raise NoSource(f"{name} takes no Context as its first parameter, so there is nothing to compile")
    for max_depth, max_statements in _EFFORTS:
        compiler = Statements(function.module.file, max_depth, max_statements)
        with suppress(TooLarge):
            _read(compiler, function)
            break
    attrs: dict[str, Any] = {"file": function.module.file, "line": function.node.lineno, **derive(compiler.builder)}
    if compiler.traps:
        attrs["traps"] = [{"name": name, "at": at} for at, name in compiler.traps.items()]
    nodes, edges = compiler.builder.finished()
    return Graph(name, nodes, edges, compiler.builder.lookup(), attrs)


_EFFORTS = ((40, 8_000), (4, 8_000), (1, 8_000), (0, None))
"""(calls inside calls that are followed, statements that may be read): the first that suffices. Every call of a helper
is read anew, in every pass over a loop, so a deep web of helpers would take longer than it is worth."""


def _read(compiler: Statements, function: Function) -> None:
    """Read a program's body on a context of its own."""
    root = compiler.builder.new_lineage()
    compiler.state.tips[root] = frozenset()
    context = ContextValue(contexts=frozenset({root}))
    node = function.node
    call = ast.copy_location(ast.Call(ast.Name(function.name, ast.Load()), [], []), node)
    compiler.enter(function, Arguments(call, [context], {}, Value()), body=True)
