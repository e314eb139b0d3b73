"""Where a function is written: its syntax tree, and the sites that its instructions will report at run time."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from types import CodeType, FunctionType

from ..errors import NoSource
from ..graph import Site

Located = ast.expr | ast.stmt | ast.excepthandler
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def find_function(fn: FunctionType) -> FunctionNode:
    """The syntax tree of ``fn``, with the line numbers of its whole file.

    The file is looked up by the code's own name, so a decorator's ``__wrapped__`` does not mislead. Raises NoSource
    where there is no file (REPL, ``exec``), it does not parse, or no function in it fits the code.
    """
    code = fn.__code__
    text = "".join(linecache.getlines(code.co_filename, fn.__globals__))
    if not text:
        raise NoSource(
            f"{fn.__qualname__} has no source ({code.co_filename}): it runs, but it has no graph ahead of time. "
            "Write it in a file to compile it."
        )
    named = _functions_of(text).get((code.co_name, code.co_firstlineno), ())
    found = [node for node in named if _arguments(node) == _code_arguments(code)]
    if len(found) > 1:  # several lambdas on one line
        found = [node for node in found if _holds(node, code)]
    if len(found) != 1:
        raise NoSource(f"the source of {fn.__qualname__} in {code.co_filename} is not the one that was loaded")
    return found[0]


def site(file: str, node: Located) -> Site:
    """The first character of a syntax node."""
    return Site(file, node.lineno, node.col_offset)


def call_sites(file: str, node: ast.Call | ast.AugAssign, awaited: ast.Await | None = None) -> tuple[Site, ...]:
    """Every site that the call's instruction may report, the expression's own first character first.

    CPython moves the position of a method call that spans lines to the method's name (``compile.c``,
    ``update_start_location_to_match_attr``), and a suspended coroutine reports the ``await`` that drives it.
    """
    sites = [site(file, node)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        function = node.func
        end_line, end_column = function.end_lineno, function.end_col_offset
        if end_line is not None and end_column is not None and end_line != node.lineno:
            sites.append(Site(file, end_line, end_column - len(function.attr.encode())))
    if awaited is not None:
        sites.append(site(file, awaited))
    return tuple(dict.fromkeys(sites))


@functools.lru_cache(maxsize=4096)
def is_generator(node: FunctionNode) -> bool:
    """Whether the function's own body yields."""
    return any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in own_nodes(node))


@functools.lru_cache(maxsize=4096)
def holds_functions(node: ast.AST) -> bool:
    """Whether a function is nested in the node, which may keep its names beyond its end."""
    return any(
        inner is not node and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(node)
    )


def own_nodes(node: FunctionNode) -> list[ast.AST]:
    """The syntax nodes of a function's body without those of functions and classes nested in it."""
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    found: list[ast.AST] = []
    while body:
        inner = body.pop()
        found.append(inner)
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            body.extend(ast.iter_child_nodes(inner))
    return found


@functools.lru_cache(maxsize=4096)
def loaded_names(node: FunctionNode) -> frozenset[str]:
    """Names that the function, or a function nested in it, reads."""
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


@functools.lru_cache(maxsize=4096)
def bound_names(node: FunctionNode) -> frozenset[str]:
    """Names local to the function: parameters, and what its own body binds without ``nonlocal`` or ``global``."""
    names = set(parameter_names(node))
    outer: set[str] = set()
    for inner in own_nodes(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.MatchMapping(rest=str(name)):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update((alias.asname or alias.name).split(".")[0] for alias in aliases)
            case ast.Nonlocal(names=declared) | ast.Global(names=declared):
                outer.update(declared)
    return frozenset(names - outer)


def parameter_names(node: FunctionNode) -> tuple[str, ...]:
    """Names of all parameters, in the order of ``co_varnames``."""
    a = node.args
    named = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return (*named, *(p.arg for p in (a.vararg, a.kwarg) if p is not None))


@functools.lru_cache(maxsize=64)
def _functions_of(text: str) -> dict[tuple[str, int], list[FunctionNode]]:
    """Every function of a file by (name, first line, that of a decorator included)."""
    found: dict[tuple[str, int], list[FunctionNode]] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            found.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found.setdefault((node.name, first), []).append(node)
    return found


def _arguments(node: FunctionNode) -> tuple[str, ...]:
    return parameter_names(node)


def _code_arguments(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def _holds(node: FunctionNode, code: CodeType) -> bool:
    """Whether the code's last instruction lies in the lambda's body."""
    if not isinstance(node, ast.Lambda):
        return True
    line, end_line, column, end_column = list(code.co_positions())[-1]
    body = node.body
    return (line, column, end_line, end_column) == (
        body.lineno,
        body.col_offset,
        body.end_lineno,
        body.end_col_offset,
    )
