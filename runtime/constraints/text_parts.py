"""Parts of plain text: a byte automaton, and a reference to another value."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from .byte_dfa import DEAD, ByteDFA
from .choices import compile_choices
from .machine import FAR, Config, Part, Wide, config, need_of

_WIDE_EXITS = 24
"""Bytes that must be able to follow for a state to be walked by arrays."""


class Text(Part):
    """The texts of a byte automaton. Data: its state."""

    def __init__(self, dfa: ByteDFA) -> None:
        self.dfa = dfa
        self.initial = 0
        self._rows = dfa.table.tolist() if dfa.num_states <= 4096 else None
        self._exits = (dfa.table != DEAD).sum(axis=1).tolist()
        self._accepting = dfa.accepting.tolist()
        self._nothing = np.zeros(dfa.num_states, dtype=np.int64)

    @property
    def min_bytes(self) -> int:
        """Length of the shortest text."""
        return int(self.dfa.min_bytes[0])

    def step(self, data: Any, cont: Config | None, byte: int) -> Iterable[Config | None]:
        after = self._rows[data][byte] if self._rows is not None else int(self.dfa.table[data, byte])
        return () if after == DEAD else (config(self, after, cont),)

    def closes(self, data: Any) -> bool:
        return bool(self._accepting[data])

    def live(self, data: Any) -> bool:
        return bool(self._exits[data])

    def need(self, data: Any, cont: Config | None) -> int:
        return int(self.dfa.min_bytes[data]) + need_of(cont)

    def exits(self, data: Any, cont: Config | None) -> Iterable[int]:
        return np.flatnonzero(self.dfa.table[data] != DEAD)[:2].tolist()  # type: ignore[no-any-return]  # numpy

    def wide(self, data: Any) -> Wide | None:
        if self._exits[data] < _WIDE_EXITS:
            return None
        return Wide(self.dfa.table, data, None, self._nothing, self.dfa.accepting[:, None])

    def leave(self, data: Hashable, cont: Config | None, after: int, chars: int, path: bytes) -> Config:
        return config(self, after, cont)


class Node(Part):
    """A value of any of several kinds, to be filled in once it is known: what rules refer to. Data: None."""

    def __init__(self) -> None:
        self.arms: list[tuple[Part, Hashable]] = []
        self.min_bytes = FAR
        """Length of the shortest text; ``FAR`` where there is none."""

    def step(self, data: Hashable, cont: Config | None, byte: int) -> Iterable[Config | None]:
        return ()

    def closes(self, data: Hashable) -> bool:
        return True

    def live(self, data: Hashable) -> bool:
        return False

    def finish(self, data: Hashable, cont: Config | None) -> Iterable[Config | None]:
        return [config(part, initial, cont) for part, initial in self.arms]

    def need(self, data: Hashable, cont: Config | None) -> int:
        return self.min_bytes + need_of(cont)


COLON = Text(compile_choices([b":"]))
