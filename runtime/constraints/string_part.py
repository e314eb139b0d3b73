"""JSON strings as a part: the value in a byte automaton, with all its escapes and its length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .byte_dfa import DEAD, ByteDFA, distances
from .dfa_algebra import MANY, num_words
from .machine import FAR, Config, Part, Wide, config, need_of
from .string_escapes import SHORT, characters, decoded, escape_size
from .utf8_automata import UNIVERSAL, utf8_ranges

_DOORS = np.zeros((1, 256), dtype=np.bool_)
_DOORS[0, [0x22, 0x5C]] = True


@lru_cache(maxsize=1024)
def _raw_table(dfa: ByteDFA) -> npt.NDArray[np.int32]:
    table = dfa.table.copy()
    table[:, 0:0x20] = DEAD
    table[:, [0x22, 0x5C]] = DEAD
    table.setflags(write=False)
    return table


class String(Part):
    """JSON strings whose value is in ``dfa``. Data: None, then (state, characters, escape begun, value so far).

    Characters are counted where a length is limited; only the universal automaton may have a least one. The value is
    kept where it decides what follows (``tracked``). ``free`` strings may spell any character by ``\\u``; others only
    those that are not printable ASCII.
    """

    def __init__(
        self,
        dfa: ByteDFA,
        *,
        min_chars: int = 0,
        max_chars: int | None = None,
        free: bool = False,
        tracked: bool = False,
    ) -> None:
        self.dfa = dfa
        self.initial = None
        self.min_chars, self.max_chars = min_chars, max_chars
        self._counted = min_chars > 0 or max_chars is not None
        self._free = free
        self._tracked = tracked
        self._raw = _raw_table(dfa)
        self._accepting = dfa.accepting.tolist()
        self._alive: dict[tuple[int, bytes], int] = {}
        self._finite = tracked and min(num_words(dfa)) < MANY
        self._spelt = _spelling_costs(dfa)
        self._chars = _char_distances(dfa)
        self._chars_left: list[int] = self._chars.tolist()

    @property
    def min_bytes(self) -> int:
        """Length of the shortest text, quotes included."""
        return 2 + max(self.min_chars, int(self._spelt[0]))

    @property
    def least_chars(self) -> int:
        """Characters of the shortest value."""
        return max(self.min_chars, self._chars_left[0])

    def taken(self, cont: Config | None) -> Sequence[bytes]:
        """Values that the string must not have: those of its container's frame."""
        return ()

    def step(self, data: Any, cont: Config | None, byte: int) -> Iterable[Config | None]:
        if data is None:
            return (config(self, (0, 0, b"", b""), cont),) if byte == 0x22 else ()
        state, chars, escape, value = data
        if state < 0:
            return ()
        if escape:
            after = self._escaped(state, chars, escape, value, byte, cont)
            return () if after is None else (config(self, after, cont),)
        if byte == 0x22:
            if self._may_close(state, chars, value, cont):
                return (config(self, (-1 - state, 0, b"", value), cont),)
            return ()
        if byte == 0x5C:
            if self._escape_lives(state, chars, b"\\"):
                return (config(self, (state, chars, b"\\", value), cont),)
            return ()
        target = int(self._raw[state, byte])
        if target == DEAD:
            return ()
        if self._counted:
            if byte & 0xC0 != 0x80:
                chars = self._more(chars)
            if not self._room(chars, target):
                return ()
        if self._tracked:
            value += bytes((byte,))
            if not self._has_unused(target, value, cont):
                return ()
        return (config(self, (target, chars, b"", value), cont),)

    def closes(self, data: Any) -> bool:
        return data is not None and data[0] < 0

    def live(self, data: Any) -> bool:
        return data is None or data[0] >= 0

    def need(self, data: Any, cont: Config | None) -> int:
        if data is None:
            return self.min_bytes + need_of(cont)
        state, chars, escape, value = data
        if state < 0:
            return self.after_close(data, cont)
        return self.rest(state, chars, escape, value, cont) + need_of(cont)

    def after_close(self, data: Any, cont: Config | None) -> int:
        """Bytes of the shortest completion behind the closing quote."""
        return need_of(cont)

    def rest(self, state: int, chars: int, escape: bytes, value: bytes, cont: Config | None) -> int:
        """Bytes of the string's shortest completion, its closing quote included."""
        extra = 0
        if escape:
            extra, state = self._cheapest_escape(state, escape)
            chars += 1
        return extra + int(self._spelt[state]) + max(0, self.min_chars - chars) + 1

    def exits(self, data: Any, cont: Config | None) -> Iterable[int]:
        if data is None:
            return (0x22,)
        return super().exits(data, cont)

    def wide(self, data: Any) -> Wide | None:
        if data is None or data[0] < 0 or data[2] or (self._tracked and self._finite):
            return None
        return Wide(
            self._raw, data[0], None if self.max_chars is None else self.max_chars - data[1], self._chars, _DOORS
        )

    def leave(self, data: Any, cont: Config | None, after: int, chars: int, path: bytes) -> Config:
        count = self._more(data[1], chars) if self._counted else 0
        return config(self, (after, count, b"", data[3] + path if self._tracked else b""), cont)

    def _more(self, chars: int, by: int = 1) -> int:
        return chars + by if self.max_chars is not None else min(chars + by, self.min_chars)

    def _room(self, chars: int, state: int) -> bool:
        """Whether so many characters, and those that ``state`` needs, are not too many."""
        return self.max_chars is None or chars + self._chars_left[state] <= self.max_chars

    def _may_close(self, state: int, chars: int, value: bytes, cont: Config | None) -> bool:
        if not self._accepting[state] or chars < self.min_chars:
            return False
        return not self._tracked or value not in self.taken(cont)

    def _has_unused(self, state: int, value: bytes, cont: Config | None) -> bool:
        words = num_words(self.dfa)[state]
        if words >= MANY:
            return True
        used = 0
        for other in self.taken(cont):
            if other.startswith(value):
                end = self.dfa.step(state, other[len(value) :])
                used += end != DEAD and bool(self._accepting[end])
        return words > used

    def _escaped(
        self, state: int, chars: int, escape: bytes, value: bytes, byte: int, cont: Config | None
    ) -> tuple[int, int, bytes, bytes] | None:
        """The data after a byte of an escape, None if it cannot follow."""
        longer = escape + bytes((byte,))
        if not self._escape_lives(state, chars, longer):
            return None
        char = decoded(longer)
        if char is None:
            return state, chars, longer, value
        data = char.encode()
        target = self.dfa.step(state, data)
        if self._tracked:
            value += data
            if not self._has_unused(target, value, cont):
                return None
        return target, self._more(chars) if self._counted else 0, b"", value

    def _escape_lives(self, state: int, chars: int, escape: bytes) -> bool:
        """Whether a begun escape may come to spell a character that may follow."""
        key = (state, escape)
        left = self._alive.get(key)
        if left is None:
            left = self._alive[key] = min(
                (self._reached(state, low, high) for low, high in characters(escape, free=self._free)), default=FAR
            )
        return left < FAR if self.max_chars is None else chars + 1 + left <= self.max_chars

    def _reached(self, state: int, low: int, high: int) -> int:
        """The least number of characters that must follow one from ``low`` to ``high``; FAR if none may come."""
        best = FAR
        for ranges in utf8_ranges(low, high):
            states = {state}
            for first, last in ranges:
                states = {
                    int(q) for s in states for q in set(self.dfa.table[s, first : last + 1].tolist()) if q != DEAD
                }
            best = min(best, min((self._chars_left[q] for q in states), default=FAR))
        return best

    def _cheapest_escape(self, state: int, escape: bytes) -> tuple[int, int]:
        """Bytes that complete an escape, and a state that it then leads to: the best within a few characters."""
        best = (FAR, state)
        for low, high in characters(escape, free=self._free):
            for code in [*range(low, min(high, low + 63) + 1)] if self.dfa is not UNIVERSAL else [low]:
                if 0xD800 <= code <= 0xDFFF:
                    continue
                after = self.dfa.step(state, chr(code).encode())
                if after != DEAD:
                    size = escape_size(code, escape)
                    if size + int(self._spelt[after]) < best[0] + int(self._spelt[best[1]]) or best[0] == FAR:
                        best = (size, after)
        if best[0] == FAR:
            for low, high in characters(escape, free=self._free):
                for code in range(low, high + 1):
                    after = DEAD if 0xD800 <= code <= 0xDFFF else self.dfa.step(state, chr(code).encode())
                    if after != DEAD:
                        return escape_size(code, escape), after
        return best


@lru_cache(maxsize=1024)
def _spelling_costs(dfa: ByteDFA) -> npt.NDArray[np.int64]:
    """[states] bytes that spell the shortest rest of a value, with the escapes that it needs."""
    if dfa.num_states > 1 and not (dfa.table[:, [*range(0x20), 0x22, 0x5C]] != DEAD).any():
        return dfa.min_bytes.astype(np.int64)
    costs = distances(_raw_table(dfa), dfa.accepting).astype(np.int64)
    costs[costs < 0] = FAR
    if (costs < FAR).all():
        return costs
    escapes = [(code, 2 if chr(code) in SHORT.values() else 6) for code in [*range(0x20), 0x22, 0x5C]]
    changed = True
    while changed:
        changed = False
        for state in range(dfa.num_states):
            row = dfa.table[state]
            best = costs[state]
            for byte in np.flatnonzero(row != DEAD).tolist():
                size = next((size for code, size in escapes if code == byte), 1)
                best = min(best, size + costs[row[byte]])
            if best < costs[state]:
                costs[state] = best
                changed = True
    return costs


@lru_cache(maxsize=1024)
def _char_distances(dfa: ByteDFA) -> npt.NDArray[np.int64]:
    """[states] characters of the shortest rest of a value; one that has begun is not counted again."""
    if dfa.num_states > 1 and dfa.accepting[0] and dfa is UNIVERSAL:
        return np.zeros(dfa.num_states, dtype=np.int64)
    leads = np.flatnonzero((np.arange(256) & 0xC0) != 0x80)
    inner = np.flatnonzero((np.arange(256) & 0xC0) == 0x80)
    costs = np.where(dfa.accepting, 0, FAR).astype(np.int64)
    while True:
        padded = np.append(costs, FAR)  # DEAD indexes the last entry
        better = np.minimum(costs, padded[dfa.table[:, leads]].min(axis=1) + 1)
        better = np.minimum(better, padded[dfa.table[:, inner]].min(axis=1))
        if (better == costs).all():
            return costs
        costs = better
