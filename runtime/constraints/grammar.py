"""Lark grammars as machines: LALR tables over the union automaton of the terminals, byte by byte.

The data of a grammar's one part is (lexer state, best rank, parser stack, what else the text may be): where a longer
match was begun after a shorter one, the shorter one goes on beside it, and counts only if the longer one fails, as in
lark, whose ``re`` then steps back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

from lark import Lark
from lark.exceptions import GrammarError, LarkError

from ..errors import InvalidRegex, UnsatisfiableConstraint, UnsupportedByBackend
from .byte_dfa import DEAD
from .grammar_lexer import Lexer
from .machine import FAR, Config, Machine, Part, config, need_of

Stack = tuple[int, ...]
Data = tuple[int, int, Stack, Any]
"""The last is again such data, or None."""

_END = "$END"
_NO_RANK = 1 << 20
_MOST_SEARCHED = 3_000
"""Parser stacks that are looked at for the shortest completion of one."""


class Grammar(Part):
    """The texts that lark parses."""

    def __init__(self, parser: Lark) -> None:
        table = parser.parser.parser._parse_table
        self._rows: dict[int, dict[str, tuple[Any, Any]]] = table.states
        self._start: int = next(iter(table.start_states.values()))
        self._end: int = next(iter(table.end_states.values()))
        self.lexer = Lexer(list(parser.terminals))
        self._ignored = sum(1 << self.lexer.number[name] for name in set(parser.ignore_tokens))
        self._contexts: dict[int, int] = {}
        self._fed: dict[tuple[Stack, str], Stack | None] = {}
        self._accepted: dict[Stack, int] = {}
        self._costs: dict[Stack, int] = {}
        self.initial: Data = (0, _NO_RANK, (self._start,), None)

    # -- the parser ------------------------------------------------------------------------------------------------

    def _feed(self, stack: Stack, name: str) -> Stack | None:
        """The stack after a terminal, None if it cannot follow."""
        key = (stack, name)
        if key in self._fed:
            return self._fed[key]
        states = list(stack)
        after: Stack | None = None
        while True:
            action = self._rows[states[-1]].get(name)
            if action is None:
                break
            kind, argument = action
            if kind.name == "Shift":
                after = (*states, argument)
                break
            size = len(argument.expansion)
            if size:
                del states[-size:]
            states.append(self._rows[states[-1]][argument.origin.name][1])
            if name == _END and states[-1] == self._end:
                after = tuple(states)
                break
        if len(self._fed) > 200_000:
            self._fed.clear()
        self._fed[key] = after
        return after

    def _context(self, state: int) -> int:
        """Bits of the terminals that lark's contextual lexer looks for in a parser state."""
        found = self._contexts.get(state)
        if found is None:
            number = self.lexer.number
            found = self._ignored
            for name in self._rows[state]:
                if name in number:
                    found |= 1 << number[name]
            self._contexts[state] = found
        return found

    def _accepts(self, stack: Stack) -> int:
        """Bits of the terminals that the parser takes, and of those that are ignored."""
        found = self._accepted.get(stack)
        if found is None:
            found = self._ignored
            for name in self._rows[stack[-1]]:
                if name in self.lexer.number and self._feed(stack, name) is not None:
                    found |= 1 << self.lexer.number[name]
            if len(self._accepted) > 100_000:
                self._accepted.clear()
            self._accepted[stack] = found
        return found

    # -- the lexer -------------------------------------------------------------------------------------------------

    def _winner(self, data: Data) -> int:
        """The terminal that has matched up to here, -1 if none has."""
        state, best, stack, _ = data
        matched = self.lexer.accepts[state] & self._context(stack[-1])
        if not matched:
            return -1
        choice = self.lexer.choice(self._context(stack[-1]))
        return next((i for i in choice.order if matched >> i & 1 and choice.rank[i] <= best), -1)

    def _ended(self, data: Data) -> Data | None:
        """The data at the start of the next lexeme, None if the one that has matched cannot stand here."""
        winner = self._winner(data)
        if winner < 0:
            return None
        if self._ignored >> winner & 1:
            return (0, _NO_RANK, data[2], None)
        stack = self._feed(data[2], self.lexer.terminals[winner].name)
        return None if stack is None else (0, _NO_RANK, stack, None)

    def _after(self, data: Data, byte: int) -> Data | None:
        """The data after a byte, None if it cannot follow."""
        state, best, stack, other = data
        context = self._context(stack[-1])
        choice = self.lexer.choice(context)
        within = context if best == _NO_RANK else choice.within[best]
        target = self.lexer.table[state][byte]
        matched = self._winner(data) if state else -1
        if target == DEAD or not self.lexer.lives[target] & within:
            if matched >= 0:
                ended = self._ended(data)
                return None if ended is None else self._after(ended, byte)
            return None if other is None else self._after(other, byte)
        now = next((i for i in choice.order if self.lexer.accepts[target] & within & (1 << i)), -1)
        accepts = self._accepts(stack)
        if now >= 0:
            rank = choice.rank[now]
            ahead = self.lexer.ahead[target] & choice.within[rank] & accepts
            return (target, rank, stack, None) if accepts >> now & 1 or ahead else None
        if matched >= 0:
            ended = self._ended(data)
            other = None if ended is None else self._after(ended, byte)
        elif other is not None:
            other = self._after(other, byte)
        if other is None and not self.lexer.ahead[target] & within & accepts:
            return None
        return (target, best, stack, other)

    def _may_end(self, data: Data) -> bool:
        state, _, stack, other = data
        if state == 0:
            return self._feed(stack, _END) is not None
        if self._winner(data) >= 0:
            ended = self._ended(data)
            return ended is not None and self._feed(ended[2], _END) is not None
        return other is not None and self._may_end(other)

    # -- the part --------------------------------------------------------------------------------------------------

    def step(self, data: Any, cont: Config | None, byte: int) -> Iterable[Config | None]:
        after = self._after(data, byte)
        return () if after is None else (config(self, after, cont),)

    def closes(self, data: Any) -> bool:
        return self._may_end(data)

    def need(self, data: Any, cont: Config | None) -> int:
        return self._need(data) + need_of(cont)

    def _need(self, data: Data) -> int:
        state, best, stack, other = data
        if self._may_end(data):
            return 0
        if state == 0:
            return self._cost(stack)
        context = self._context(stack[-1])
        within = context if best == _NO_RANK else self.lexer.choice(context).within[best]
        found = self._accepts(stack) & self.lexer.lives[state] & within
        least = FAR if other is None else self._need(other)
        for i, distance in enumerate(self.lexer.distance):
            if found >> i & 1:
                ignored = self._ignored >> i & 1
                after = stack if ignored else self._feed(stack, self.lexer.terminals[i].name)
                if after is not None:
                    least = min(least, distance[state] + self._cost(after))
        return least

    def _cost(self, stack: Stack) -> int:
        """Bytes of the cheapest terminals that complete a stack: uniform-cost search."""
        known = self._costs.get(stack)
        if known is not None:
            return known
        waiting: list[tuple[int, int, Stack]] = [(0, len(stack), stack)]
        best = {stack: 0}
        looked = 0
        found = FAR
        while waiting and looked < _MOST_SEARCHED:
            cost, _, at = heapq.heappop(waiting)
            if cost > best[at]:
                continue
            looked += 1
            if self._feed(at, _END) is not None:
                found = cost
                break
            for name in self._rows[at[-1]]:
                if name in self.lexer.number:
                    after = self._feed(at, name)
                    if after is not None:
                        total = cost + self.lexer.shortest[self.lexer.number[name]]
                        if total < best.get(after, FAR):
                            best[after] = total
                            heapq.heappush(waiting, (total, len(after), after))
        if len(self._costs) > 100_000:
            self._costs.clear()
        self._costs[stack] = found
        return found


def load_grammar(text: str, start: str) -> Lark:
    """Lark's parser of a grammar. Raises UnsupportedByBackend for what lark refuses, with its own words."""
    try:
        return Lark(text, start=start, parser="lalr", lexer="contextual", propagate_positions=False)
    except GrammarError as error:
        raise UnsupportedByBackend(f"the grammar is not LALR(1), or malformed: {error}") from error
    except LarkError as error:
        raise UnsupportedByBackend(f"the grammar is malformed: {error}") from error


def compile_grammar(parser: Lark) -> Machine:
    """The machine of the texts that ``parser`` parses.

    Raises UnsupportedByBackend for a terminal whose match is not the longest one, InvalidRegex for one that is not
    regular, UnsatisfiableConstraint if no text can be parsed.
    """
    declared = [name for name in parser.terminals if name.pattern is None]
    if declared:
        raise InvalidRegex(f"the grammar declares {declared[0].name} without a pattern; a constraint needs one")
    part = Grammar(parser)
    machine = Machine([config(part, part.initial, None)])
    if machine.need(machine.start) >= FAR:
        raise UnsatisfiableConstraint("no text satisfies the grammar")
    return machine
