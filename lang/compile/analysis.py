"""What follows from a finished graph: token bounds, last uses, coming forks and the constant prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .builder import Draft, GraphBuilder

_OPERATIONS = frozenset({"Text", "Gen", "Select", "Fork", "Join", "Split", "Scratch", "Tool"})
MAX_PREFIX = 256
"""Segments of the constant prefix that are listed."""


def derive(builder: GraphBuilder) -> dict[str, Any]:
    """Set the derived attributes of the nodes; returns those of the graph.

    Nodes: ``bound`` (tokens that its context may still generate from this operation on, its own included, along the
    longest path; null where there is no proof), ``last_use``, ``coming_fork``, ``constant_prefix``. Graph: ``bound``,
    ``constant_prefix`` (a list of ``{"role", "text"}``; the last one with ``"open": true`` where a hole follows).
    """
    root = _set_bounds(builder)
    _set_last_use(builder)
    _set_coming_fork(builder)
    return {"bound": root, "constant_prefix": _constant_prefix(builder)}


# ---- token bounds
def own_bound(node: Draft) -> float:
    """Tokens that one operation may generate; infinite where there is no bound."""
    if node.kind == "Gen":
        given = node.attrs.get("max_tokens")
        bound = given if given is not None else node.attrs.get("longest")
        return math.inf if bound is None else bound
    if node.kind == "Select":
        choices = node.attrs.get("choices")
        return math.inf if choices is None else max((len(c.encode()) for c in choices), default=0)
    if node.attrs.get("recursive") or node.attrs.get("opaque") or (node.kind == "Py" and "op" not in node.attrs):
        return math.inf
    return 0


class _Bounds:
    """Longest paths of one lineage, from the end of the program backwards."""

    def __init__(self, nodes: Sequence[Draft], lineage: int) -> None:
        self.nodes = nodes
        self.lineage = lineage
        self.children: dict[int | None, list[int]] = {}
        for node in nodes:
            self.children.setdefault(node.parent, []).append(node.id)

    def before(self, body: Sequence[int], after: float, end: float) -> float:
        """Tokens still to come before ``body``, with ``after`` behind it and ``end`` behind a return."""
        for number in reversed(body):
            after = self._node(self.nodes[number], after, end)
        return after

    def _node(self, node: Draft, after: float, end: float) -> float:
        inner = self.children.get(node.id, ())
        if node.kind == "Return":
            return after if node.attrs.get("finally") else end
        if node.kind == "If":
            arms: dict[Any, list[int]] = {}
            for number in inner:
                arms.setdefault(self.nodes[number].attrs.get("arm"), []).append(number)
            paths = [self.before(arm, after, end) for arm in arms.values()]
            return max([*paths, after])
        if node.kind == "Loop":
            once = self.before(inner, 0, 0)
            trips = node.attrs.get("trips")
            again = math.inf if trips is None else max(trips - 1, 0)
            more = again * once if again and once else 0.0  # infinity times nothing is nothing
            return self.before(inner, after + more, end)
        if node.kind in {"Fork", "Call"}:
            after = self.before(inner, after, after)
        elif node.kind == "Scratch":
            after = self.before(inner, after, end)
        if self.lineage in node.lineages:
            after += own_bound(node)
            if node.kind in _OPERATIONS:
                known = node.attrs.get("bound", 0)
                joined = math.inf if known is None else max(known, after)
                node.attrs["bound"] = None if math.isinf(joined) else int(joined)
        return after


def _set_bounds(builder: GraphBuilder) -> int | None:
    """Set ``bound`` on every operation; returns that of the program's own context."""
    root = 0.0
    for lineage in range(builder.lineages):
        bounds = _Bounds(builder.nodes, lineage)
        total = bounds.before(bounds.children.get(None, ()), 0, 0)
        root = total if lineage == 0 else root
    return None if math.isinf(root) else int(root)


# ---- last uses and coming forks
def _set_last_use(builder: GraphBuilder) -> None:
    """Mark the operations of a branch or scratch that no other operation on it follows: its private KV dies there."""
    followed: set[tuple[int, int]] = set()
    for source, target, kind in builder.edges:
        if kind == "context":
            for lineage in builder.nodes[target].lineages:
                followed.add((source, lineage))
    ended = set(builder.ended)
    for node in builder.nodes:
        if node.kind in {"Fork", "Py", "Split"} or not node.lineages:
            continue
        dying = node.lineages <= ended
        if dying and not any((node.id, lineage) in followed for lineage in node.lineages):
            node.attrs["last_use"] = True


def _set_coming_fork(builder: GraphBuilder) -> None:
    """Mark the operation that a fork follows for certain, with the number of its branches."""
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for source, target, kind in builder.edges:
        if kind == "context":
            before.setdefault(target, []).append(source)
            after.setdefault(source, []).append(target)
    for fork in builder.nodes:
        branches = fork.attrs.get("branches")
        if fork.kind not in {"Fork", "Split"} or not branches or fork.attrs.get("parallel"):
            continue
        node = fork
        while True:
            sources = before.get(node.id, [])
            previous = builder.nodes[sources[0]] if len(sources) == 1 else None
            if previous is None or after[previous.id] != [node.id] or not _straight(builder, previous, node):
                break
            node = previous
            if node.kind != "Tool":
                if node.kind in {"Text", "Gen", "Select"}:
                    node.attrs["coming_fork"] = branches
                break


def _straight(builder: GraphBuilder, first: Draft, second: Draft) -> bool:
    """Whether ``second`` runs whenever ``first`` has run: the same region, and no path that leaves between them."""
    if (first.parent, first.attrs.get("arm")) != (second.parent, second.attrs.get("arm")) or first.id >= second.id:
        return False
    if first.in_finally and not second.in_finally:
        return False
    between = builder.nodes[first.id + 1 : second.id]
    return not any(node.kind == "Return" or node.attrs.get("leaves") or node.kind == "Loop" for node in between)


# ---- the constant prefix
def _constant_prefix(builder: GraphBuilder) -> list[dict[str, Any]]:
    """The text with which every run begins, whatever its arguments."""
    children: dict[int | None, list[Draft]] = {}
    for node in builder.nodes:
        children.setdefault(node.parent, []).append(node)
    segments: list[dict[str, Any]] = []
    for node in children.get(None, ()):
        if node.kind == "Text" and 0 in node.lineages:
            if not _add_text(node, segments):
                break
        elif node.kind == "Loop" and not node.attrs.get("unbounded"):
            if not _add_loop(node, children.get(node.id, ()), segments):
                break
        elif 0 in node.lineages or node.kind in {"If", "Return"} or children.get(node.id):
            break
    return segments[:MAX_PREFIX]


def _add_text(node: Draft, segments: list[dict[str, Any]]) -> bool:
    """Add one text; False where the constant part ends in it."""
    attrs = node.attrs
    if attrs["constant"] and "texts" not in attrs:
        attrs["constant_prefix"] = True
        segments.append({"role": attrs["role"], "text": attrs["text"]})
        return True
    head = attrs["text"].partition("{…}")[0] if "texts" not in attrs else ""
    if head:
        segments.append({"role": attrs["role"], "text": head, "open": True})
    return False


def _add_loop(loop: Draft, body: Sequence[Draft], segments: list[dict[str, Any]]) -> bool:
    """Add the texts of every pass of a loop over constants; False where the loop holds more than these."""
    trips = loop.attrs.get("trips")
    if trips is None or any(node.kind != "Text" or not node.attrs["constant"] for node in body):
        return False
    if any(len(node.attrs.get("texts", range(trips))) != trips for node in body):
        return False
    for node in body:
        node.attrs["constant_prefix"] = True
    for i in range(trips):
        for node in body:
            text = node.attrs["texts"][i] if "texts" in node.attrs else node.attrs["text"]
            segments.append({"role": node.attrs["role"], "text": text})
    return True
