"""The keys of a JSON object as parts: those with names, and the further ones, each used at most once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .byte_dfa import DEAD, ByteDFA, distances
from .dfa_algebra import MANY, num_words
from .machine import FAR, Config, Part, config, need_of
from .object_layout import Frame, Layout, bits
from .string_part import String
from .text_parts import Node


class KeyOwner(Part):
    """The object that keys belong to, as its keys see it. A key's container holds it with data (phase, frame)."""

    @abstractmethod
    def allowed(self, frame: Frame) -> int:
        """Bits of the named keys that may come next."""

    @abstractmethod
    def other_kinds(self, frame: Frame) -> frozenset[int]:
        """Kinds of further keys that may come next."""

    @abstractmethod
    def named_values(self, holder: Config, label: int) -> list[Config]:
        """What may follow a named key."""

    @abstractmethod
    def other_values(self, holder: Config, key: bytes, kind: int) -> list[Config]:
        """What may follow a further key."""

    @abstractmethod
    def key_need(self, holder: Config, labels: Sequence[tuple[int, int]]) -> int:
        """Bytes to the end for a named key that has begun. labels: (label, bytes of the key that are missing)."""

    @abstractmethod
    def other_outcomes(self, frame: Frame, key: bytes, kind: int) -> list[tuple[Frame, Node]]:
        """The frames that a further key may lead to, each with the value that comes first."""

    @abstractmethod
    def cost(self, frame: Frame) -> int:
        """Bytes from behind a value to behind the closing brace."""


class Names(Part):
    """The named keys behind their opening quote: a trie whose states know which names they lead to. Data: a state."""

    def __init__(self, spellings: Sequence[Sequence[bytes]]) -> None:
        self._edges: list[dict[int, int]] = [{}]
        self._reach = [0]
        self._label: dict[int, int] = {}
        self._depth = [0]
        self._sizes: list[int] = []
        self._texts: list[list[bytes]] = []
        for label, texts in enumerate(spellings):
            self._sizes.append(min(len(text) for text in texts))
            self._texts.append([text[1:] for text in texts])
            for text in texts:
                state = 0
                self._reach[0] |= 1 << label
                for byte in text[1:]:
                    if byte not in self._edges[state]:
                        self._edges[state][byte] = len(self._edges)
                        self._edges.append({})
                        self._reach.append(0)
                        self._depth.append(self._depth[state] + 1)
                    state = self._edges[state][byte]
                    self._reach[state] |= 1 << label
                self._label[state] = label

    def size(self, label: int) -> int:
        """Bytes of a name's shortest spelling, quotes included."""
        return self._sizes[label]

    def step(self, data: Any, cont: Config | None, byte: int) -> Iterable[Config | None]:
        after = self._edges[data].get(byte)
        if after is None or cont is None:
            return ()
        allowed = cont.part.allowed(cont.data[1])  # type: ignore[attr-defined, index]  # the object and its frame
        return (config(self, after, cont),) if self._reach[after] & allowed else ()

    def closes(self, data: Any) -> bool:
        return data in self._label

    def live(self, data: Any) -> bool:
        return bool(self._edges[data])

    def finish(self, data: Any, cont: Config | None) -> Iterable[Config | None]:
        assert cont is not None
        return cont.part.named_values(cont, self._label[data])  # type: ignore[attr-defined, no-any-return]  # as above

    def exits(self, data: Any, cont: Config | None) -> Iterable[int]:
        return [byte for byte in self._edges[data] if self.step(data, cont, byte)]

    def need(self, data: Any, cont: Config | None) -> int:
        assert cont is not None
        owner = cont.part
        assert isinstance(owner, KeyOwner)
        labels = [
            (label, len(text) - self._depth[data])
            for label in bits(self._reach[data] & owner.allowed(cont.data[1]))  # type: ignore[index]  # the frame
            for text in self._texts[label]
            if self._leads(data, text)
        ]
        return owner.key_need(cont, labels)

    def _leads(self, data: int, text: bytes) -> bool:
        state = 0
        for byte in text[: self._depth[data]]:
            state = self._edges[state].get(byte, -1)
            if state < 0:
                return False
        return state == data


class Others(String):
    """Further keys: strings whose last state says what kind of value follows, and which are used at most once."""

    def __init__(self, layout: Layout) -> None:
        assert layout.others is not None
        assert layout.labels is not None
        super().__init__(layout.others, tracked=True)
        self._layout = layout
        self._kinds = layout.labels.tolist()
        self.num_keys = int(num_words(layout.others)[0])
        if self.num_keys < MANY:
            self.num_keys -= sum(layout.others.accepts(key) for key in layout.excluded)
        self._excluded = tuple(layout.excluded)
        self._distance = [
            distances(self._raw, layout.labels == kind).tolist() for kind in range(len(layout.other_options))
        ]

    def taken(self, cont: Config | None) -> Sequence[bytes]:
        used: tuple[bytes, ...] = cont.data[1][2] if cont is not None else ()  # type: ignore[index]  # the frame
        return self._excluded + used

    def opened(self, kinds: frozenset[int], holder: Config) -> Config | None:
        """The key behind its opening quote, None if no key of ``kinds`` is left."""
        if not self._has_unused(0, b"", holder):
            return None
        return config(self, (0, 0, b"", b""), holder)

    def _may_close(self, state: int, chars: int, value: bytes, cont: Config | None) -> bool:
        if cont is None or not super()._may_close(state, chars, value, cont):
            return False
        kinds = cont.part.other_kinds(cont.data[1])  # type: ignore[attr-defined, index]  # the object and its frame
        return self._kinds[state] in kinds

    def finish(self, data: Any, cont: Config | None) -> Iterable[Config | None]:
        assert cont is not None
        kind = self._kinds[-1 - data[0]]
        return cont.part.other_values(cont, data[3], kind)  # type: ignore[attr-defined, no-any-return]  # as above

    def after_close(self, data: Any, cont: Config | None) -> int:
        return min((one.need for one in self.finish(data, cont) if one is not None), default=FAR)

    def need(self, data: Any, cont: Config | None) -> int:
        assert cont is not None
        owner = cont.part
        assert isinstance(owner, KeyOwner)
        state, _, escape, value = data
        if state < 0:
            return self.after_close(data, cont)
        extra = 0
        if escape:
            extra, state = self._cheapest_escape(state, escape)
        frame = cont.data[1]  # type: ignore[index]  # the frame
        best = FAR
        for kind in owner.other_kinds(frame):
            missing = self._distance[kind][state]
            if missing < 0:
                continue
            if not escape:
                missing = self._unused_distance(state, value, kind, frame[2])
            for after, node in owner.other_outcomes(frame, b"\xff", kind):
                best = min(best, extra + missing + 2 + node.min_bytes + owner.cost(after))
        return best + need_of(cont.cont)

    def _unused_distance(self, state: int, value: bytes, kind: int, used: Sequence[bytes]) -> int:
        """Bytes from ``state`` to the end of a key of ``kind`` that is not used yet."""
        gone = {key for key in (*used, *self._excluded) if key.startswith(value)}
        if not gone:
            missing: int = self._distance[kind][state]
            return FAR if missing < 0 else missing
        ends = [(state, value)]
        for size in range(256):
            following: list[tuple[int, bytes]] = []
            seen: dict[int, int] = {}
            for at, text in ends:
                if self._kinds[at] == kind and text not in gone:
                    return size
                row = self._raw[at]
                for byte in np.flatnonzero(row != DEAD).tolist():
                    target = int(row[byte])
                    if seen.get(target, 0) <= len(gone):  # so many texts to one state that one of them is unused
                        seen[target] = seen.get(target, 0) + 1
                        following.append((target, text + bytes((byte,))))
            ends = following
        return FAR

    def key_cost(self, kind: int, used: Sequence[bytes]) -> int:
        """Bytes of the shortest unused key of a kind, quotes included."""
        return 2 + self._unused_distance(0, b"", kind, used)

    def costs(self, number: int, used: Sequence[bytes]) -> list[int]:
        """Bytes of the cheapest pairs of ``number`` unused further keys."""
        found: list[int] = []
        for kind, options in enumerate(self._layout.other_options):
            value = min((node.min_bytes for _, node in options), default=FAR)
            if value < FAR:
                sizes = _sizes(self.dfa, self._layout, kind, number + len(used) + len(self._excluded))
                gone = sorted(
                    len(key) for key in (*used, *self._excluded) if key != b"\xff" and self._kind_of(key) == kind
                )
                left = list(sizes)
                for size in gone:
                    if size in left:
                        left.remove(size)
                left = left[used.count(b"\xff") :]  # a key that is not known yet: the cheapest, at worst
                found.extend(2 + size + 1 + value for size in left[:number])
        return sorted(found)[:number]

    def _kind_of(self, key: bytes) -> int:
        state = self.dfa.step(0, key)
        return -1 if state == DEAD else int(self._kinds[state])


@lru_cache(maxsize=1024)
def _sizes_cached(dfa: ByteDFA, accepting: bytes, number: int) -> tuple[int, ...]:
    ends = np.frombuffer(accepting, dtype=np.bool_)
    table = dfa.table.copy()
    table[:, [*range(0x20), 0x22, 0x5C]] = DEAD
    ways = {0: 1}
    sizes: list[int] = []
    for size in range(512):
        sizes.extend([size] * min(number, sum(count for state, count in ways.items() if ends[state])))
        if len(sizes) >= number or not ways:
            break
        following: dict[int, int] = {}
        for state, count in ways.items():
            row = table[state]
            for target, times in zip(*np.unique(row[row != DEAD], return_counts=True), strict=True):
                following[int(target)] = min(number, following.get(int(target), 0) + count * int(times))
        ways = following
    return tuple(sizes[:number])


def _sizes(dfa: ByteDFA, layout: Layout, kind: int, number: int) -> tuple[int, ...]:
    """Lengths of the shortest ``number`` further keys of a kind, ascending."""
    assert layout.labels is not None
    return _sizes_cached(dfa, (layout.labels == kind).tobytes(), number)
