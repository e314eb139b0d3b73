"""Stop strings over the bytes of generated tokens, across token boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Where generation ends: the first ``kept`` tokens stay, ``leftover`` is the text between them and the stop."""

    kept: int
    leftover: bytes
    stop: bytes


class StopMatcher:
    """Feeds on the bytes of one token at a time.

    The match that is complete first wins; of several that complete at the same byte, the longest. So the outcome does
    not depend on how the text is cut into tokens.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would match everywhere")
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._text = bytearray()
        self._ends: list[int] = []

    def feed(self, token: bytes) -> StopMatch | None:
        """Add one token's bytes; returns the match that they complete, if any. Feed nothing after a match."""
        before = len(self._text)
        self._text += token
        self._ends.append(len(self._text))
        best: tuple[int, int, bytes] | None = None
        for stop in self._stops:
            start = self._text.find(stop, max(0, before - len(stop) + 1))
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                best = candidate if best is None else min(best, candidate)
        if best is None:
            return None
        _, start, stop = best
        kept = self._tokens_within(start)
        base = self._ends[kept - 1] if kept else 0
        return StopMatch(kept, bytes(self._text[base:start]), stop)

    def settled(self) -> int:
        """Tokens that no later match can take back: they end before every stop string that may have begun."""
        if not self._stops:
            return len(self._ends)
        size = len(self._text)
        for begin in range(max(0, size - self._longest + 1), size):
            tail = bytes(self._text[begin:])
            if any(stop.startswith(tail) for stop in self._stops):
                return self._tokens_within(begin)
        return self._tokens_within(size)

    def _tokens_within(self, limit: int) -> int:
        """Most tokens that end at or before byte ``limit``, at a UTF-8 boundary of the text."""
        kept = len(self._ends)
        while kept and (self._ends[kept - 1] > limit or not self._at_boundary(self._ends[kept - 1])):
            kept -= 1
        return kept

    def _at_boundary(self, offset: int) -> bool:
        """Whether no character of the text is cut at ``offset``."""
        back = offset - 1
        while back >= 0 and offset - back < 4 and self._text[back] & 0xC0 == 0x80:
            back -= 1
        if back < 0:
            return True
        lead = self._text[back]
        length = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
        return back + length <= offset
