"""Deterministic automata over bytes: the one form in which text constraints reach the token masks.

outlines-core compiles them. Used directly it is unsound (its leftmost-first DFA ends ``cat|category`` at ``cat``), so
the pattern is wrapped as ``\\x01(?:R)\\x02``: no match is reported before ``\\x02``, and "the text may end here" is
"there is a ``\\x02`` transition". The vocabulary it is given is the 256 bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from outlines_core import Index  # type: ignore[import-untyped]  # the wheel has no stubs
from outlines_core import Vocabulary as OutlinesVocabulary

from ..errors import InvalidRegex, UnsatisfiableConstraint

DEAD = -1
"""Transition target of a byte that cannot follow."""

FIRST, LAST = 0x01, 0x02
"""Bytes of the wrap. A pattern given to ``compile_pattern`` must match no text that holds them."""

MAX_PATTERN_CHARS = 4_000_000
"""Longer patterns are refused: outlines-core cannot be interrupted once it compiles."""

_END_ID = 256


@dataclass(frozen=True, eq=False)
class ByteDFA:
    """A language over bytes. Every state is reachable from the initial state 0 and can reach an accepting one."""

    table: npt.NDArray[np.int32]
    """[states, 256] next state, ``DEAD`` where the byte cannot follow."""
    accepting: npt.NDArray[np.bool_]
    """[states] whether the text may end."""

    @property
    def num_states(self) -> int:
        """Number of live states; state 0 is the initial one."""
        return len(self.table)

    def step(self, state: int, data: bytes) -> int:
        """The state after ``data``, ``DEAD`` as soon as a byte cannot follow."""
        table = self.table
        for byte in data:
            state = int(table[state, byte])
            if state == DEAD:
                return DEAD
        return state

    def accepts(self, data: bytes) -> bool:
        """Whether ``data`` as a whole is in the language."""
        state = self.step(0, data)
        return state != DEAD and bool(self.accepting[state])

    @cached_property
    def min_bytes(self) -> npt.NDArray[np.int32]:
        """[states] length of the shortest completion; 0 where the state accepts."""
        return distances(self.table, self.accepting)

    @cached_property
    def max_bytes(self) -> int | None:
        """Length of the longest text, None if there is no longest."""
        return _longest(self.table)

    def shortest(self) -> bytes:
        """The least of the shortest texts, bytes compared as numbers."""
        state, text = 0, bytearray()
        while not self.accepting[state]:
            row = self.table[state]
            target = self.min_bytes[state] - 1
            byte = int(np.flatnonzero((row != DEAD) & (self.min_bytes[row] == target))[0])
            text.append(byte)
            state = int(row[byte])
        return bytes(text)


def distances(table: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """[states] bytes to the nearest accepting state, -1 where none can be reached. Breadth first, backwards."""
    source, byte = np.nonzero(table != DEAD)
    target = table[source, byte]
    order = np.argsort(target, kind="stable")
    source, target = source[order], target[order]
    starts = np.searchsorted(target, np.arange(len(table) + 1))
    found = np.full(len(table), -1, dtype=np.int32)
    frontier = np.flatnonzero(accepting)
    found[frontier] = 0
    distance = 0
    while len(frontier):
        distance += 1
        spans = [source[starts[q] : starts[q + 1]] for q in frontier]
        before = np.unique(np.concatenate(spans))
        frontier = before[found[before] == -1]
        found[frontier] = distance
    return found


def _longest(table: npt.NDArray[np.int32]) -> int | None:
    """Edges on the longest path from state 0 over live states; None where a cycle makes it endless."""
    successors = [np.unique(row[row != DEAD]).tolist() for row in table]
    indegree = np.zeros(len(table), dtype=np.int64)
    for targets in successors:
        indegree[targets] += 1
    ready = deque(np.flatnonzero(indegree == 0).tolist())
    longest = np.zeros(len(table), dtype=np.int64)
    seen = 0
    while ready:
        state = ready.popleft()
        seen += 1
        for target in successors[state]:
            longest[target] = max(longest[target], longest[state] + 1)
            indegree[target] -= 1
            if indegree[target] == 0:
                ready.append(target)
    return int(longest.max()) if seen == len(table) else None


def pruned(edges: Mapping[int, Mapping[int, int]], accepting: Iterable[int], initial: int) -> ByteDFA:
    """The automaton of ``edges`` (state -> byte -> state) without states that are unreachable or cannot accept.

    States are renumbered breadth first, bytes ascending. Raises UnsatisfiableConstraint if no text is accepted.
    """
    number = {initial: 0}
    order = [initial]
    for state in order:
        for _, target in sorted(edges.get(state, {}).items()):
            if target not in number:
                number[target] = len(order)
                order.append(target)
    table = np.full((len(order), 256), DEAD, dtype=np.int32)
    for row, state in enumerate(order):
        for byte, target in edges.get(state, {}).items():
            table[row, byte] = number[target]
    accepts = np.zeros(len(order), dtype=np.bool_)
    accepts[[number[state] for state in accepting if state in number]] = True
    return restricted(table, accepts)


def restricted(table: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]) -> ByteDFA:
    """The ByteDFA of reachable ``table`` without the states that cannot accept.

    Raises UnsatisfiableConstraint if the initial state is one of them.
    """
    live = distances(table, accepting) >= 0
    if not live[0]:
        raise UnsatisfiableConstraint("no text satisfies the constraint: its language is empty")
    renumber = np.where(live, np.cumsum(live) - 1, DEAD).astype(np.int32)
    kept = table[live]
    table = np.where(kept == DEAD, DEAD, renumber[kept]).astype(np.int32)
    accepting = accepting[live].copy()
    table.setflags(write=False)
    accepting.setflags(write=False)
    return ByteDFA(table, accepting)


@lru_cache(maxsize=1)
def _bytes_vocabulary() -> OutlinesVocabulary:
    return OutlinesVocabulary(_END_ID, {bytes([byte]): [byte] for byte in range(256)})


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> ByteDFA:
    """The automaton of ``pattern``, matched as a whole, in the dialect of Rust's regex-syntax. Memoised.

    pattern: no anchors; must match some text, and none that holds the bytes 1 and 2 (``regex_syntax.translate`` makes
        such patterns of what users write).
    Raises InvalidRegex where outlines-core refuses it.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidRegex(
            f"a constraint expands to a pattern of {len(pattern):,} characters; at most {MAX_PATTERN_CHARS:,} are"
            " compiled. Lower its repetition counts or length limits."
        )
    try:
        index = Index(rf"\x01(?:{pattern})\x02", _bytes_vocabulary())
    except ValueError as error:
        raise InvalidRegex(f"the pattern {_shown(pattern)} cannot be compiled: {error}") from error
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    initial = transitions[index.get_initial_state()][FIRST]
    accepting = [state for state, row in transitions.items() if LAST in row]
    edges = {
        state: {byte: target for byte, target in row.items() if byte not in (FIRST, LAST, _END_ID)}
        for state, row in transitions.items()
    }
    return pruned(edges, accepting, initial)


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 200 else pattern[:200] + "...")
