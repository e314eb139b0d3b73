"""The terminals of a lark grammar as one automaton, with lark's own choice among them.

Lark tries a context's terminals in a fixed order and takes the first that matches, as long as Python's ``re`` makes it;
a keyword that a regular expression matches as a whole is told from it afterwards. So a lexer here is a state of the
union automaton and the best rank that has matched; what ranks lower cannot win any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from lark.lexer import PatternStr, TerminalDef

from ..errors import InvalidRegex, UnsatisfiableConstraint, UnsupportedByBackend
from .byte_dfa import DEAD, ByteDFA
from .choices import compile_choices
from .dfa_algebra import combine
from .limited import compile_limited
from .regex_syntax import translate

REPLACED = {
    r"\".*?(?<!\\)(\\\\)*?\"": r'"(?:[^"\\\n]|\\.)*"',
    r'".*?(?<!\\)(\\\\)*?"': r'"(?:[^"\\\n]|\\.)*"',
}
"""Regular expressions of lark's common terminals that look around, and the same language without."""


class Choice(NamedTuple):
    """How one context tells its terminals apart."""

    rank: tuple[int, ...]
    """[terminals] lower wins; keywords inside a regular expression have its rank."""
    within: tuple[int, ...]
    """[ranks] bits of the terminals of a rank or of a lower one."""
    order: tuple[int, ...]
    """Terminals as they are asked: by rank, keywords before the expression that holds them."""


class Lexer:
    """The union automaton of a grammar's terminals."""

    def __init__(self, terminals: Sequence[TerminalDef]) -> None:
        """Raises UnsupportedByBackend for a terminal whose matches are not the longest, InvalidRegex for others."""
        self.terminals = list(terminals)
        self.number = {terminal.name: i for i, terminal in enumerate(terminals)}
        self.dfas = [_automaton(terminal) for terminal in terminals]
        table, parts = combine((), self.dfas)
        self.table = table.tolist()
        alive = parts != DEAD
        accepts = np.column_stack([alive[:, i] & dfa.accepting[parts[:, i]] for i, dfa in enumerate(self.dfas)])
        self.accepts = [_mask(row) for row in accepts]
        self.lives = [_mask(row) for row in alive]
        self.ahead = [_union(self.lives[q] for q in set(line) - {DEAD}) for line in self.table]
        """[states] bits of the terminals that can match after at least one more byte."""
        self.distance = [
            np.where(alive[:, i], dfa.min_bytes[parts[:, i]], -1).tolist() for i, dfa in enumerate(self.dfas)
        ]
        self.shortest = [int(dfa.min_bytes[0]) for dfa in self.dfas]
        self._choices: dict[int, Choice] = {}

    def choice(self, context: int) -> Choice:
        """How the terminals of ``context`` (bits) are told apart."""
        found = self._choices.get(context)
        if found is None:
            found = self._choices[context] = self._ranked([i for i in range(len(self.terminals)) if context >> i & 1])
        return found

    def _ranked(self, numbers: list[int]) -> Choice:
        defs = self.terminals

        def place(i: int) -> tuple[int, int, int, str]:
            one = defs[i]
            return -one.priority, -one.pattern.max_width, -len(one.pattern.value), one.name

        numbers.sort(key=place)
        inside: dict[int, int] = {}
        for i in numbers:
            if isinstance(defs[i].pattern, PatternStr):
                continue
            for j in numbers:
                word = defs[j].pattern
                if (
                    isinstance(word, PatternStr)
                    and j not in inside
                    and defs[j].priority == defs[i].priority
                    and frozenset(word.flags) <= frozenset(defs[i].pattern.flags)
                    and self.dfas[i].accepts(word.value.encode())
                ):
                    inside[j] = i
        rank = [len(numbers)] * len(defs)
        for place_of, i in enumerate(numbers):
            rank[i] = place_of
        for j, i in inside.items():
            rank[j] = rank[i]
        within = tuple(_bits(i for i in numbers if rank[i] <= r) for r in range(len(numbers)))
        return Choice(tuple(rank), within, tuple(sorted(numbers, key=lambda i: (rank[i], i not in inside))))


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << i for i in numbers)


def _mask(row: Any) -> int:
    return _bits(np.flatnonzero(row).tolist())


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


@lru_cache(maxsize=512)
def _compiled(source: str) -> ByteDFA:
    return compile_limited(translate(source))


def _automaton(terminal: TerminalDef) -> ByteDFA:
    source = terminal.pattern.to_regexp()
    if isinstance(terminal.pattern, PatternStr) and not terminal.pattern.flags:
        return compile_choices([terminal.pattern.value.encode()])
    replaced = REPLACED.get(terminal.pattern.value)
    try:
        dfa = _compiled(replaced or source)
    except UnsatisfiableConstraint as error:
        raise InvalidRegex(f"the terminal {terminal.name} matches no text") from error
    except InvalidRegex as error:
        raise InvalidRegex(f"the terminal {terminal.name}: {error}") from error
    if dfa.accepting[0]:
        raise InvalidRegex(f"the terminal {terminal.name} matches the empty text")
    _check_longest(terminal, re.compile(source), dfa)
    return dfa


def _check_longest(terminal: TerminalDef, pattern: re.Pattern[str], dfa: ByteDFA) -> None:
    """Refuse a terminal of which ``re`` takes a shorter match where a longer one is there (lazy repetition, or a
    shorter alternative before a longer one): tried with a text through every edge of the automaton."""
    reach: dict[int, bytes] = {0: b""}
    order = [0]
    for state in order:
        row = dfa.table[state]
        targets, first = np.unique(row, return_index=True)
        for target, byte in zip(targets.tolist(), first.tolist(), strict=True):
            if target == DEAD:
                continue
            text = reach[state] + bytes((byte,))
            if target not in reach:
                reach[target] = text
                order.append(target)
            whole = text + _ending(dfa, target)
            try:
                shown = whole.decode()
            except UnicodeDecodeError:
                continue
            match = pattern.match(shown)
            if match is None or match.end() != len(shown):
                raise UnsupportedByBackend(
                    f"the terminal {terminal.name}: of {shown!r} lark takes {match[0] if match else ''!r} only; write"
                    " it so that the longest match is the first"
                )


def _ending(dfa: ByteDFA, state: int) -> bytes:
    text = bytearray()
    while not dfa.accepting[state]:
        row = dfa.table[state]
        byte = int(np.flatnonzero((row != DEAD) & (dfa.min_bytes[row] == dfa.min_bytes[state] - 1))[0])
        text.append(byte)
        state = int(row[byte])
    return bytes(text)
