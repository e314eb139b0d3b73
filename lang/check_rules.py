"""The rules behind the static checks: each reads a planned graph and yields its findings."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .compile.operations import GEN_OPTIONS
from .errors import FurcateError
from .finding import Finding, Level
from .graph import Graph, Node, Site
from .types import regex

LONG_CONSTANT = 200
"""Characters of constant text after which varying text ahead of it costs more than it is worth."""
_SPECIAL = re.compile(r"<\|[A-Za-z_][\w .-]{0,40}\|>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]|<(?:bos|eos|pad|unk)>")


@dataclass(frozen=True)
class CheckInput:
    """A graph to check, and what is known of the model."""

    graph: Graph
    max_context: int | None = None
    count_tokens: Callable[[str], int] | None = None

    @cached_property
    def following(self) -> dict[int, list[int]]:
        """Operations that come next on the same context, forward only."""
        found: dict[int, list[int]] = {}
        for edge in self.graph.edges:
            if edge.kind == "context" and edge.source < edge.target:
                found.setdefault(edge.source, []).append(edge.target)
        return found

    @cached_property
    def preceding(self) -> dict[int, list[int]]:
        """Operations that came last on the same context, forward only."""
        found: dict[int, list[int]] = {}
        for source, targets in self.following.items():
            for target in targets:
                found.setdefault(target, []).append(source)
        return found

    @cached_property
    def children(self) -> dict[int | None, list[Node]]:
        """Nodes by their region."""
        found: dict[int | None, list[Node]] = {}
        for node in self.graph.nodes:
            found.setdefault(node.parent, []).append(node)
        return found

    def inside(self, node: Node) -> Iterator[Node]:
        """Every node in a node's body, at any depth."""
        for child in self.children.get(node.id, ()):
            yield child
            yield from self.inside(child)


def _finding(code: str, level: Level, site: Site | None, message: str, mend: str) -> Iterator[Finding]:
    if site is not None:
        yield Finding(code, level, message, mend, site.file, site.line, site.column)


def unbounded_gen(given: CheckInput) -> Iterator[Finding]:
    """F001."""
    for node in given.graph.nodes:
        if node.kind == "Gen" and not node.attrs["bounded"] and "refused" not in node.attrs:
            yield from _finding(
                "F001", "error", node.site,
                f"gen({node.attrs['type']}) has no max_tokens, and the type has no finite length: at run time this is "
                "UnboundedGeneration",
                "give max_tokens=..., or a type of finite length (Literal, Enum, bool, a bounded pattern)",
            )  # fmt: skip


def prefix_choices(given: CheckInput) -> Iterator[Finding]:
    """F002."""
    for node in given.graph.nodes:
        choices = node.attrs.get("choices") if node.kind == "Select" else None
        pair = _prefix_pair(choices or [])
        if pair is None:
            continue
        if _in_chat(given, node):
            yield from _finding(
                "F002", "note", node.site,
                f"the choice {pair[0]!r} is the prefix of {pair[1]!r}; in a chat the end of the turn tells them apart",
                "nothing, if that is meant; otherwise give choices of which none begins with another",
            )  # fmt: skip
        elif not node.attrs.get("end"):
            yield from _finding(
                "F002", "warning", node.site,
                f"the choice {pair[0]!r} is the prefix of {pair[1]!r}: in raw text nothing says where a choice ends, "
                "so the shorter one always scores at least as high",
                'give end="\\n" (the text that would follow), or choices of which none begins with another',
            )  # fmt: skip


def _prefix_pair(choices: list[str]) -> tuple[str, str] | None:
    ordered = sorted(choices)
    return next(((a, b) for a, b in itertools.pairwise(ordered) if a != b and b.startswith(a)), None)


def _in_chat(given: CheckInput, node: Node) -> bool:
    """Whether the context of an operation has turns."""
    seen, waiting = set[int](), [node.id]
    while waiting:
        number = waiting.pop()
        if number not in seen:
            seen.add(number)
            if given.graph.nodes[number].attrs.get("role") in {"system", "user", "assistant"}:
                return True
            waiting += given.preceding.get(number, [])
    return False


def unbounded_loop(given: CheckInput) -> Iterator[Finding]:
    """F003."""
    for node in given.graph.nodes:
        if node.kind != "Loop" or not node.attrs.get("unbounded"):
            continue
        call = next((inner for inner in given.inside(node) if inner.kind in {"Gen", "Select", "Call", "Fork"}), None)
        if call is not None:
            yield from _finding(
                "F003", "warning", node.site,
                f"this loop calls the model ({call.label}) and nothing says that it ends",
                "loop over c.steps(n) and break out of it",
            )  # fmt: skip


def volatile_text(given: CheckInput) -> Iterator[Finding]:
    """F004."""
    for node in given.graph.nodes:
        calls = node.attrs.get("volatile") if node.kind == "Text" else None
        if not calls:
            continue
        behind = node.attrs.get("volatile_tail", 0) + _constant_behind(given, node)
        if behind >= LONG_CONSTANT:
            yield from _finding(
                "F004", "warning", node.site,
                f"{', '.join(calls)} is different on every run, so the {behind} characters of constant text behind it "
                "are never found in the cache",
                "put what varies after the constant text, at best into the last turn",
            )  # fmt: skip


def _constant_behind(given: CheckInput, node: Node) -> int:
    """Characters of constant text that follow on the same context before anything else varies."""
    total = 0
    seen = {node.id}
    waiting = list(given.following.get(node.id, []))
    while waiting:
        number = waiting.pop()
        inner = given.graph.nodes[number]
        if number in seen or inner.kind in {"Join", "Py"}:
            continue
        seen.add(number)
        if inner.kind == "Text":
            total += inner.attrs["chars"]
        if inner.kind != "Text" or inner.attrs["constant"]:
            waiting += given.following.get(number, [])
    return total


def special_text(given: CheckInput) -> Iterator[Finding]:
    """F005."""
    for node in given.graph.nodes:
        if node.kind != "Text":
            continue
        for text in [node.attrs["text"], *node.attrs.get("texts", ())]:
            found = _SPECIAL.search(text)
            if found is not None:
                yield from _finding(
                    "F005", "warning", node.site,
                    f"{found.group()} is written as text: special tokens in text are plain characters, so the model "
                    "does not see the token",
                    "leave turns to c.system, c.user and c.assistant, and ends to gen",
                )  # fmt: skip
                break


def busy_parent(given: CheckInput) -> Iterator[Finding]:
    """F006."""
    for node in given.graph.nodes:
        fork = node.attrs.get("busy")
        if fork is not None and node.site is not None:
            at = given.graph.nodes[fork].site
            where = f" (line {at.line})" if at is not None else ""
            yield from _finding(
                "F006", "error", node.site,
                f"this is the parent of the fork{where} whose branch runs here: at run time this is ContextBusy",
                "use the branch's own context, the first argument of its function",
            )  # fmt: skip


def impossible_pattern(given: CheckInput) -> Iterator[Finding]:
    """F007."""
    for node in given.graph.nodes:
        reason = _refusal(node.attrs["regex"]) if node.kind == "Gen" and "regex" in node.attrs else None
        if reason is not None:
            yield from _finding(
                "F007", "error", node.site,
                f"the pattern {node.attrs['regex']!r} cannot be generated: {reason}",
                "change the pattern, so that some text matches it as a whole",
            )  # fmt: skip


def refused_type(given: CheckInput) -> Iterator[Finding]:
    """F007, of a type."""
    for node in given.graph.nodes:
        if node.kind == "Gen" and "refused" in node.attrs:
            yield from _finding(
                "F007", "error", node.site,
                f"{node.attrs['type']} cannot be generated: {node.attrs['refused']}",
                "use a type that can be enforced, or generate text and parse it",
            )  # fmt: skip


def misfit_arguments(given: CheckInput) -> Iterator[Finding]:
    """F012."""
    for node in given.graph.nodes:
        if "misfit" in node.attrs:
            yield from _finding(
                "F012", "error", node.site,
                f"{node.attrs['misfit']} does not take these arguments: at run time this is TypeError",
                "a branch function takes (branch, item); a program is called without its context",
            )  # fmt: skip


def unknown_option(given: CheckInput) -> Iterator[Finding]:
    """F013."""
    for node in given.graph.nodes:
        for name in node.attrs.get("unknown_options", ()):
            near = difflib.get_close_matches(name, GEN_OPTIONS, n=1)
            yield from _finding(
                "F013", "error", node.site,
                f"gen has no option {name}: at run time this is TypeError",
                f"did you mean {near[0]}=?" if near else f"there are {', '.join(sorted(GEN_OPTIONS))}",
            )  # fmt: skip


def _refusal(pattern: str) -> str | None:
    try:
        dfa = regex(pattern).dfa
    except FurcateError as error:
        return str(error)
    return "no text matches it" if dfa is not None and not dfa.accepting.any() else None


def overflow(given: CheckInput) -> Iterator[Finding]:
    """F008."""
    limit = given.max_context
    if limit is None:
        return
    floors = _floors(given)
    certain = False
    for node in given.graph.nodes:
        asked = node.attrs.get("max_tokens") if node.kind == "Gen" else None
        needed = floors.get(node.id, 0) + (asked or 0)
        if needed > limit and node.kind in {"Gen", "Select", "Text"}:
            certain = True
            parts = (
                f"{floors.get(node.id, 0)} of constant text and {asked} to generate" if asked else "of constant text"
            )
            yield from _finding(
                "F008", "error", node.site,
                f"this needs at least {needed} tokens ({parts}), and the model's context holds {limit}: at run time "
                "this is ContextOverflow",
                "lower max_tokens, shorten the text, or take a model with a longer context",
            )  # fmt: skip
    if certain:
        return
    for node in given.graph.nodes:
        bound = node.attrs.get("bound")
        starts = not given.preceding.get(node.id) or node.kind == "Text"
        if bound and starts and node.kind in {"Text", "Gen"} and floors.get(node.id, 0) + bound > limit:
            yield from _finding(
                "F008", "warning", node.site,
                f"from here on the longest path may generate {bound} tokens, and the model's context holds {limit}",
                "lower the bounds of the gens or the trips of the loops, or drop what is done with scratch or rewind",
            )  # fmt: skip
            return


def _floors(given: CheckInput) -> dict[int, int]:
    """Tokens of constant text that are there for certain before each operation."""
    floors: dict[int, int] = {}
    for node in given.graph.nodes:
        before = [
            floors.get(n, 0) + _text_tokens(given, given.graph.nodes[n]) for n in given.preceding.get(node.id, ())
        ]
        floors[node.id] = min(before, default=0)
    return floors


def _text_tokens(given: CheckInput, node: Node) -> int:
    if node.kind != "Text" or given.count_tokens is None:
        return 0
    variants = node.attrs.get("texts")
    if variants:
        return min(map(given.count_tokens, variants))
    parts = [part for part in node.attrs["text"].split("{…}") if part]
    counts = [given.count_tokens(part) for part in parts]
    # around a hole a token may take in what stands next to it: count one less for each part that touches one
    return max(0, sum(counts) - (0 if node.attrs["constant"] else 2 * len(parts)))


def unread_result(given: CheckInput) -> Iterator[Finding]:
    """F009."""
    for node in given.graph.nodes:
        name = node.attrs.get("unread")
        if name is not None:
            yield from _finding(
                "F009", "warning", node.site,
                f"{name} is assigned the model's result and never read",
                "read it, or call without assigning; _ or a name that begins with _ says that it is meant",
            )  # fmt: skip


def captured_append(given: CheckInput) -> Iterator[Finding]:
    """F010."""
    traps: dict[Site, Any] = {trap["at"]: trap["name"] for trap in given.graph.attrs.get("traps", ())}
    traps |= {node.site: node.attrs["name"] for node in given.graph.nodes if node.attrs.get("trap") and node.site}
    for at, name in traps.items():
        yield from _finding(
            "F010", "error", at,
            f"{name} is a context of the enclosing function, but += makes {name} a local name here: at run time this "
            "is UnboundLocalError",
            f"write {name}.text(...), pass the context as an argument, or declare nonlocal {name}",
        )  # fmt: skip


def same_branches(given: CheckInput) -> Iterator[Finding]:
    """F011."""
    for node in given.graph.nodes:
        branches = node.attrs.get("branches")
        if node.kind != "Fork" or not node.attrs.get("counted") or not branches or branches < 2:
            continue
        inner = list(given.inside(node))
        varies = node.attrs.get("item_used") or any(
            n.kind in {"Tool", "Py", "Call", "Fork"}
            or n.attrs.get("volatile")
            or "texts" in n.attrs
            or n.attrs.get("temperature", 0) != 0
            for n in inner
        )
        if not varies and any(n.kind == "Gen" for n in inner):
            yield from _finding(
                "F011", "warning", node.site,
                f"the {branches} branches are the same: nothing in them depends on the branch, and temperature is 0",
                "give temperature=..., fork over items that the branch function uses, or generate once",
            )  # fmt: skip


RULES: tuple[Callable[[CheckInput], Iterator[Finding]], ...] = (
    unbounded_gen,
    prefix_choices,
    unbounded_loop,
    volatile_text,
    special_text,
    busy_parent,
    impossible_pattern,
    refused_type,
    overflow,
    unread_result,
    captured_append,
    same_branches,
    misfit_arguments,
    unknown_option,
)
"""Every rule, in the order of its code."""
