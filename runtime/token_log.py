"""A branch's token ids on the caller's side: forks share what they have in common instead of copying it."""

from __future__ import annotations

from collections.abc import Iterable

MAX_DEPTH = 32
"""Segments below which a log is flattened, so that reading stays linear in its length."""


class _Segment:
    """``ids`` stand after the first ``offset`` tokens of ``base``."""

    __slots__ = ("base", "depth", "ids", "offset")

    def __init__(self, base: _Segment | None, offset: int) -> None:
        while base is not None and offset <= base.offset:
            base = base.base  # nothing of it is read
        self.base: _Segment | None = base
        self.offset: int = offset
        self.ids: list[int] = []
        self.depth: int = 0 if base is None else base.depth + 1

    def read(self, length: int) -> list[int]:
        """The first ``length`` tokens."""
        parts: list[list[int]] = []
        segment: _Segment | None = self
        while segment is not None and length > 0:
            if length > segment.offset:
                parts.append(segment.ids[: length - segment.offset])
                length = segment.offset
            segment = segment.base
        return [token for part in reversed(parts) for token in part]


class TokenLog:
    """An append-only list with cheap ``fork`` and ``truncate``. One thread at a time; forks are independent."""

    __slots__ = ("_exclusive", "_length", "_segment")

    def __init__(self) -> None:
        self._segment = _Segment(None, 0)
        self._length = 0
        self._exclusive = True

    def __len__(self) -> int:
        return self._length

    def read(self) -> list[int]:
        """All tokens, as a new list."""
        return self._segment.read(self._length)

    def append(self, ids: Iterable[int]) -> None:
        """Add ``ids``; the tokens that other logs see do not change."""
        segment = self._segment
        if not self._exclusive or self._length != segment.offset + len(segment.ids):
            segment = self._fresh_segment()
        segment.ids.extend(ids)
        self._length = segment.offset + len(segment.ids)

    def truncate(self, length: int) -> None:
        """Drop the tokens from ``length`` on. Raises ValueError beyond the end."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate {self._length} tokens to {length}")
        self._length = length

    def fork(self) -> TokenLog:
        """A log with the same tokens. This log goes on in its own segment: the fork reads only what is there now."""
        child = TokenLog.__new__(TokenLog)
        child._segment = self._segment
        child._length = self._length
        child._exclusive = False
        return child

    def _fresh_segment(self) -> _Segment:
        segment = _Segment(self._segment, self._length)
        if segment.depth > MAX_DEPTH:
            flat = _Segment(None, 0)
            flat.ids = self._segment.read(self._length)
            segment = flat
        self._segment = segment
        self._exclusive = True
        return segment
