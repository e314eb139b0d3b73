"""Pushdown automata made of parts: the states of a constraint on structured text, and their transitions.

A state is a set of configurations, since what was read may still be one of several things. A configuration is a part
(what is being read), the part's data (how far it is), and the configuration that follows once the part has ended: the
stack, as a list that shares its tail. Configurations and states are interned, so equal ones are one object, comparing
and hashing them costs nothing, and a fork copies a reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

MOST_STEPS = 100_000
"""Transitions that one machine remembers."""

FAR = 1 << 40
"""Bytes to an end that cannot be reached."""


class Wide(NamedTuple):
    """Text in a part that so many bytes may go on with that the vocabulary's trie is walked by arrays."""

    table: npt.NDArray[np.int32]
    """[states, 256] next state; ``DEAD`` for a byte that ends the part or cannot follow."""
    state: int
    room: int | None
    """Characters that may still follow, None = any number."""
    extra: npt.NDArray[np.int64]
    """[states] characters that must still follow after a state."""
    doors: npt.NDArray[np.bool_]
    """[states, 256] or [1, 256] whether a byte on which ``table`` dies may be read behind, or by other means in, the
    text."""


class Part(ABC):
    """A kind of text. Immutable once it is built; its data are small hashable values."""

    @abstractmethod
    def step(self, data: Hashable, cont: Config | None, byte: int) -> Iterable[Config | None]:
        """The configurations after ``byte``; None = the whole text has ended. Empty if it cannot follow."""

    def closes(self, data: Hashable) -> bool:
        """Whether the part may end here."""
        return False

    def finish(self, data: Hashable, cont: Config | None) -> Iterable[Config | None]:
        """What follows once it has ended."""
        return (cont,)

    def live(self, data: Hashable) -> bool:
        """Whether the part itself can go on."""
        return True

    @abstractmethod
    def need(self, data: Hashable, cont: Config | None) -> int:
        """Bytes of the shortest completion of the whole text."""

    def exits(self, data: Hashable, cont: Config | None) -> Iterable[int]:
        """The bytes that may follow; only the first two are looked at."""
        return (byte for byte in range(256) if any(True for _ in self.step(data, cont, byte)))

    def wide(self, data: Hashable) -> Wide | None:
        """How to walk the trie by arrays, None where few bytes may follow."""
        return None

    def leave(self, data: Hashable, cont: Config | None, after: int, chars: int, path: bytes) -> Config:
        """The configuration inside a wide text once ``path`` was read: ``chars`` characters, up to state ``after``."""
        raise NotImplementedError


class Config:
    """One way to read the text so far. Made by ``config``; compared by identity."""

    __slots__ = ("__weakref__", "_need", "cont", "data", "part")

    def __init__(self, part: Part, data: Hashable, cont: Config | None) -> None:
        self.part = part
        self.data = data
        self.cont = cont
        self._need = -1

    @property
    def need(self) -> int:
        """Bytes of the shortest completion."""
        if self._need < 0:
            waiting = [self]
            while waiting[-1].cont is not None and waiting[-1].cont._need < 0:
                waiting.append(waiting[-1].cont)
            for pending in reversed(waiting):
                pending._need = min(FAR, pending.part.need(pending.data, pending.cont))
        return self._need


_CONFIGS: WeakValueDictionary[tuple[Part, Hashable, Config | None], Config] = WeakValueDictionary()
_CONFIGS_LOCK = Lock()


def config(part: Part, data: Hashable, cont: Config | None) -> Config:
    """The one configuration of these three."""
    key = (part, data, cont)
    found = _CONFIGS.get(key)
    if found is None:
        with _CONFIGS_LOCK:
            found = _CONFIGS.get(key)
            if found is None:
                found = _CONFIGS[key] = Config(part, data, cont)
    return found


def need_of(cont: Config | None) -> int:
    """Bytes of the shortest completion after a part has ended."""
    return 0 if cont is None else cont.need


class Reading:
    """A state: the configurations of a text so far, and whether it may end. Interned: compared by identity."""

    __slots__ = ("__weakref__", "configs", "ends")

    def __init__(self, configs: frozenset[Config], ends: bool) -> None:
        self.configs = configs
        self.ends = ends

    @property
    def alive(self) -> bool:
        """Whether the text so far is a prefix of the language."""
        return self.ends or bool(self.configs)


_READINGS: WeakValueDictionary[tuple[frozenset[Config], bool], Reading] = WeakValueDictionary()


def _reading(configs: frozenset[Config], ends: bool) -> Reading:
    key = (configs, ends)
    found = _READINGS.get(key)
    if found is None:
        with _CONFIGS_LOCK:
            found = _READINGS.get(key)
            if found is None:
                found = _READINGS[key] = Reading(configs, ends)
    return found


def closed(found: Iterable[Config | None]) -> Reading:
    """The state of some configurations and of all that follow from them without reading."""
    configs: set[Config] = set()
    seen: set[Config] = set()
    ends = False
    waiting = list(found)
    while waiting:
        one = waiting.pop()
        if one is None:
            ends = True
            continue
        if one in seen:
            continue
        seen.add(one)
        part, data = one.part, one.data
        if part.closes(data):
            waiting.extend(part.finish(data, one.cont))
            if not part.live(data):
                continue
        configs.add(one)
    return _reading(frozenset(configs), ends)


class Machine:
    """The transitions from one start, remembered. Safe across threads."""

    def __init__(self, start: Iterable[Config | None]) -> None:
        self.start = closed(start)
        self._steps: dict[tuple[Reading, int], Reading] = {}

    def step(self, state: Reading, byte: int) -> Reading:
        """The state after ``byte``; not ``alive`` if it cannot follow."""
        key = (state, byte)
        after = self._steps.get(key)
        if after is None:
            found: list[Config | None] = []
            for one in state.configs:
                found.extend(one.part.step(one.data, one.cont, byte))
            after = closed(found)
            if len(self._steps) >= MOST_STEPS:
                self._steps.clear()
            self._steps[key] = after
        return after

    def read(self, text: bytes) -> Reading:
        """The state after a whole text."""
        state = self.start
        for byte in text:
            state = self.step(state, byte)
            if not state.alive:
                break
        return state

    def need(self, state: Reading) -> int:
        """Bytes of the shortest completion."""
        if state.ends:
            return 0
        return min((one.need for one in state.configs), default=FAR)

    def forced(self, state: Reading, most: int = 4096) -> bytes:
        """The bytes that must follow, at most ``most``."""
        run = bytearray()
        while not state.ends and len(run) < most:
            exits: set[int] = set()
            for one in state.configs:
                for byte in one.part.exits(one.data, one.cont):
                    exits.add(byte)
                    if len(exits) > 1:
                        return bytes(run)
            if not exits:
                break
            byte = exits.pop()
            run.append(byte)
            state = self.step(state, byte)
        return bytes(run)
