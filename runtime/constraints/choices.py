"""The automaton of a finite set of texts: their byte trie, without a pattern in between."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import UnsatisfiableConstraint
from .byte_dfa import ByteDFA, pruned


def compile_choices(texts: Iterable[bytes]) -> ByteDFA:
    """The automaton that accepts exactly ``texts``. Raises UnsatisfiableConstraint if there are none."""
    edges: dict[int, dict[int, int]] = {0: {}}
    accepting: set[int] = set()
    for text in texts:
        state = 0
        for byte in text:
            row = edges[state]
            if byte not in row:
                row[byte] = len(edges)
                edges[row[byte]] = {}
            state = row[byte]
        accepting.add(state)
    if not accepting:
        raise UnsatisfiableConstraint("a choice among no texts cannot be satisfied")
    return pruned(edges, accepting, 0)
