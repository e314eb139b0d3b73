"""JSON objects: keys in any order or the schema's, each at most once, counted and owed.

A frame is what an object remembers between its pairs: (keys that are done, number of pairs, other keys used, claims
that are still owed). A *claim* is "there is a key of some kind with a value of some kind", which one pair settles.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .byte_dfa import DEAD, ByteDFA, distances, restricted
from .dfa_algebra import MANY, num_words
from .machine import FAR, Config, Part, config, need_of
from .string_part import String
from .text_parts import COLON, Node

Frame = tuple[int, int, tuple[bytes, ...], int]
"""(bits of the named keys that are done, pairs so far, other keys so far, bits of the claims owed)"""

OPEN, FIRST, AFTER, NEXT, KEY = "{", "first", "after", "next", "key"

Options = tuple[tuple[int, Node], ...]
"""Ways to give a key a value: (bits of the claims that it settles, the value)."""


@dataclass(slots=True)
class Layout:
    """What an object may hold."""

    names: list[str] = field(default_factory=list)
    """Keys with a schema of their own, in order."""
    options: list[Options] = field(default_factory=list)
    """For each of ``names``; none where the key must be absent."""
    required: int = 0
    """Bits of the names that must be there."""
    others: ByteDFA | None = None
    """All further keys that may be there."""
    labels: npt.NDArray[np.int32] | None = None
    """[states of others] index into ``other_options`` where a key ends."""
    other_options: list[Options] = field(default_factory=list)
    low: int = 0
    high: int | None = None
    excluded: frozenset[bytes] = frozenset()
    """Keys that are none of the others: those of ``names``."""
    claims: int = 0
    """Bits of all claims."""
    ordered: bool = True
    """Whether names come in their order and others after them."""


class Object(Part):
    """Objects of a layout. Data: (phase, frame)."""

    def __init__(self, layout: Layout, spell_key: Any, spaced: Any) -> None:
        """spell_key: the spellings of a name in quotes. spaced: puts optional white space before a configuration."""
        self.layout = layout
        self.spaced = spaced
        self.initial = (OPEN, (0, 0, (), layout.claims))
        self._usable = sum(1 << i for i, options in enumerate(layout.options) if options)
        self._all = (1 << len(layout.names)) - 1
        self._keys = _Names([spell_key(name) for name in layout.names])
        self._others = _Others(layout) if layout.others is not None and any(layout.other_options) else None
        self._counts = layout.low > 0 or layout.high is not None
        self._possible: dict[Hashable, bool] = {}
        self._allowed: dict[Hashable, int] = {}
        self._costs: dict[Hashable, int] = {}

    def step(self, data: Any, cont: Config | None, byte: int) -> Iterable[Config | None]:
        phase, frame = data
        if phase == OPEN:
            return (self.spaced(config(self, (FIRST, frame), cont)),) if byte == 0x7B else ()
        if byte == 0x22 and phase in (FIRST, NEXT):
            return self._keys_of(frame, cont)
        if byte == 0x2C and phase == AFTER:
            return (self.spaced(config(self, (NEXT, frame), cont)),) if self._goes_on(frame) else ()
        if byte == 0x7D and phase in (FIRST, AFTER):
            return (cont,) if self._may_close(frame) else ()
        return ()

    def exits(self, data: Any, cont: Config | None) -> Iterable[int]:
        return [byte for byte in (0x7B, 0x22, 0x2C, 0x7D) if any(True for _ in self.step(data, cont, byte))]

    def need(self, data: Any, cont: Config | None) -> int:
        phase, frame = data
        if phase == OPEN:
            return 1 + self._first_cost(frame) + need_of(cont)
        if phase == FIRST:
            return self._first_cost(frame) + need_of(cont)
        if phase == NEXT:
            return self._pair_cost(frame) + need_of(cont)
        return self.cost(frame) + need_of(cont)

    @property
    def min_bytes(self) -> int:
        """Length of the shortest object, ``FAR`` where there is none; right once all values know theirs."""
        frame = self.initial[1]
        self._costs.clear()
        self._possible.clear()
        self._allowed.clear()
        self._usable = sum(
            1 << i for i, options in enumerate(self.layout.options) if any(node.min_bytes < FAR for _, node in options)
        )
        return min(FAR, 1 + self._first_cost(frame)) if self.feasible(frame) else FAR

    def settle(self) -> None:
        """Leave out the further keys whose values turned out to have no text."""
        layout = self.layout
        if layout.others is None or layout.labels is None:
            return
        viable = [any(node.min_bytes < FAR for _, node in options) for options in layout.other_options]
        if all(viable):
            return
        ends = np.array([kind >= 0 and viable[kind] for kind in layout.labels.tolist()], dtype=np.bool_)
        layout.others, layout.labels = (
            labelled(layout.others.table, ends, layout.labels) if ends.any() else (None, None)
        )
        self._others = _Others(layout) if layout.others is not None else None

    # -- frames --------------------------------------------------------------------------------------------------

    def named(self, frame: Frame, label: int, settled: int) -> Frame:
        """The frame once the named key ``label`` has its value."""
        done, count, used, owed = frame
        done |= (2 << label) - 1 if self.layout.ordered else 1 << label
        return done, self._counted(count), used, owed & ~settled

    def other(self, frame: Frame, key: bytes, settled: int) -> Frame:
        """The frame once a further key has its value."""
        done, count, used, owed = frame
        return (
            self._all if self.layout.ordered else done,
            self._counted(count),
            tuple(sorted((*used, key))),
            owed & ~settled,
        )

    def _counted(self, count: int) -> int:
        if not self._counts:
            return 0
        return count + 1 if self.layout.high is not None else min(count + 1, self.layout.low)

    def _left(self, frame: Frame) -> int:
        """Further keys that are not used yet."""
        if self._others is None:
            return 0
        return min(MANY, self._others.num_keys) - len(frame[2])

    def feasible(self, frame: Frame) -> bool:
        """Whether the object can still be closed."""
        key = (frame[0], frame[1], min(self._left(frame), MANY // 2), frame[3])
        known = self._possible.get(key)
        if known is None:
            known = self._possible[key] = self._feasible(frame)
        return known

    def _feasible(self, frame: Frame) -> bool:
        done, count, _, owed = frame
        pending = self.layout.required & ~done
        if pending & ~self._usable:
            return False
        free = self._usable & ~done
        left = self._left(frame)
        if self.layout.high is not None and count + pending.bit_count() > self.layout.high:
            return False
        if count + free.bit_count() + left < self.layout.low:
            return False
        if not owed:
            return True
        bit = owed & -owed
        for label in _bits(free):
            for settled, node in self.layout.options[label]:
                after = (done | 1 << label, self._counted(count), frame[2], owed & ~settled)
                if settled & bit and node.min_bytes < FAR and self._feasible(after):
                    return True
        for options in self.layout.other_options if left > 0 else ():
            for settled, node in options:
                after = (done, self._counted(count), (*frame[2], b"\xff"), owed & ~settled)
                if settled & bit and node.min_bytes < FAR and self._feasible(after):
                    return True
        return False

    def allowed(self, frame: Frame) -> int:
        """Bits of the named keys that may come next."""
        key = (frame[0], frame[1], len(frame[2]), frame[3])
        known = self._allowed.get(key)
        if known is None:
            done = frame[0]
            known = 0
            for label in _bits(self._usable & ~done):
                if self.layout.ordered and self.layout.required & ~done & ((1 << label) - 1):
                    break
                if self._values(frame, label):
                    known |= 1 << label
            self._allowed[key] = known
        return known

    def _values(self, frame: Frame, label: int) -> list[tuple[Frame, Node]]:
        return [
            (after, node)
            for settled, node in self.layout.options[label]
            if node.min_bytes < FAR
            and settled & frame[3] == settled
            and self.feasible(after := self.named(frame, label, settled))
        ]

    def _other_values(self, frame: Frame, key: bytes, kind: int) -> list[tuple[Frame, Node]]:
        return [
            (after, node)
            for settled, node in self.layout.other_options[kind]
            if node.min_bytes < FAR
            and settled & frame[3] == settled
            and self.feasible(after := self.other(frame, key, settled))
        ]

    def _others_allowed(self, frame: Frame) -> bool:
        if self._others is None or self._left(frame) <= 0:
            return False
        if self.layout.ordered and self.layout.required & ~frame[0]:
            return False
        return any(self._other_values(frame, b"\xff", kind) for kind in range(len(self.layout.other_options)))

    def other_kinds(self, frame: Frame) -> frozenset[int]:
        """Kinds of further keys that may come next."""
        if not self._others_allowed(frame):
            return frozenset()
        kinds = range(len(self.layout.other_options))
        return frozenset(kind for kind in kinds if self._other_values(frame, b"\xff", kind))

    def _goes_on(self, frame: Frame) -> bool:
        return bool(self.allowed(frame)) or self._others_allowed(frame)

    def _may_close(self, frame: Frame) -> bool:
        done, count, _, owed = frame
        return not owed and not self.layout.required & ~done and count >= self.layout.low

    def _keys_of(self, frame: Frame, cont: Config | None) -> list[Config]:
        holder = config(self, (KEY, frame), cont)
        found: list[Config] = []
        if self.allowed(frame):
            found.append(config(self._keys, 0, holder))
        if self._others is not None:
            kinds = self.other_kinds(frame)
            if kinds:
                start = self._others.opened(kinds, holder)
                if start is not None:
                    found.append(start)
        return found

    def value(self, holder: Config, frame: Frame, node: Node) -> Config:
        """What follows a key: colon, value, and the object with ``frame`` behind it."""
        behind = self.spaced(config(self, (AFTER, frame), holder.cont))
        value = self.spaced(config(node, None, behind))
        colon: Config = self.spaced(config(COLON, 0, value))
        return colon

    def named_values(self, holder: Config, label: int) -> list[Config]:
        """What may follow a named key."""
        frame = holder.data[1]  # type: ignore[index]  # a holder's data is (KEY, frame)
        return [self.value(holder, after, node) for after, node in self._values(frame, label)]

    def other_values(self, holder: Config, key: bytes, kind: int) -> list[Config]:
        """What may follow a further key."""
        frame = holder.data[1]  # type: ignore[index]  # as above
        return [self.value(holder, after, node) for after, node in self._other_values(frame, key, kind)]

    # -- shortest completions ------------------------------------------------------------------------------------

    def cost(self, frame: Frame) -> int:
        """Bytes from behind a value to behind the closing brace."""
        key = (frame[0], frame[1], frame[2] if self.layout.low else (), frame[3])
        known = self._costs.get(key)
        if known is None:
            known = self._costs[key] = min(FAR, self._cost(frame))
        return known

    def _cost(self, frame: Frame) -> int:
        done, count, used, owed = frame
        if owed:
            return min((1 + cost for cost in self._settling(frame, owed & -owed)), default=FAR)
        pending = self.layout.required & ~done
        total = 1 + sum(1 + self.named_cost(label) for label in _bits(pending))
        missing = self.layout.low - count - pending.bit_count()
        if missing > 0:
            extra = [self.named_cost(label) for label in _bits(self._usable & ~done & ~pending)]
            if self._others is not None:
                extra.extend(self._others.costs(missing, used))
            if len(extra) < missing:
                return FAR
            total += missing + sum(sorted(extra)[:missing])
        return total

    def _settling(self, frame: Frame, bit: int) -> Iterable[int]:
        """Costs (pair and all that follows it) of the ways to settle a claim next, or after the required keys."""
        for label in _bits(self._usable & ~frame[0]):
            for settled, node in self.layout.options[label]:
                if settled & bit and node.min_bytes < FAR:
                    skipped = self.layout.required & ~frame[0] & ((1 << label) - 1) if self.layout.ordered else 0
                    before = sum(1 + self.named_cost(other) for other in _bits(skipped))
                    after = self.named(frame, label, settled)
                    if self.feasible(after):
                        yield before + self._keys.size(label) + 1 + node.min_bytes + self.cost(after)
        if self._others is None or self._left(frame) <= 0:
            return
        pending = self.layout.required & ~frame[0] if self.layout.ordered else 0
        before = sum(1 + self.named_cost(other) for other in _bits(pending))
        for kind, options in enumerate(self.layout.other_options):
            for settled, node in options:
                if settled & bit and node.min_bytes < FAR:
                    rest = (
                        self.cost((self._all, *self.other(frame, b"\xff", settled)[1:]))
                        if self.layout.ordered
                        else (self.cost(self.other(frame, b"\xff", settled)))
                    )
                    yield before + self._others.key_cost(kind, frame[2]) + 1 + node.min_bytes + rest

    def named_cost(self, label: int) -> int:
        """Bytes of the shortest pair of a named key."""
        value = min((node.min_bytes for _, node in self.layout.options[label]), default=FAR)
        return self._keys.size(label) + 1 + value

    def _first_cost(self, frame: Frame) -> int:
        return 1 if self._may_close(frame) else self.cost(frame) - 1

    def _pair_cost(self, frame: Frame) -> int:
        """Bytes from where a key must come to the closing brace."""
        best = FAR
        for label in _bits(self.allowed(frame)):
            for after, node in self._values(frame, label):
                best = min(best, self._keys.size(label) + 1 + node.min_bytes + self.cost(after))
        if self._others is not None:
            for kind in self.other_kinds(frame):
                for after, node in self._other_values(frame, b"\xff", kind):
                    best = min(best, self._others.key_cost(kind, frame[2]) + 1 + node.min_bytes + self.cost(after))
        return best

    def key_need(self, holder: Config, labels: Sequence[tuple[int, int]]) -> int:
        """Bytes to the end for a named key that has begun. labels: (label, bytes of the key that are missing)."""
        frame = holder.data[1]  # type: ignore[index]  # a holder's data is (KEY, frame)
        best = FAR
        for label, missing in labels:
            for after, node in self._values(frame, label):
                best = min(best, missing + 1 + node.min_bytes + self.cost(after))
        return best + need_of(holder.cont)


def labelled(
    table: npt.NDArray[np.int32], ends: npt.NDArray[np.bool_], labels: npt.NDArray[np.int32]
) -> tuple[ByteDFA, npt.NDArray[np.int32]]:
    """An automaton without the states that reach no end, and the labels of those that are left."""
    return restricted(table, ends), np.where(ends, labels, -1)[distances(table, ends) >= 0].astype(np.int32)


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Names(Part):
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
        assert isinstance(owner, Object)
        labels = [
            (label, len(text) - self._depth[data])
            for label in _bits(self._reach[data] & owner.allowed(cont.data[1]))  # type: ignore[index]  # the frame
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


class _Others(String):
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
        assert isinstance(owner, Object)
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
            for after, node in owner._other_values(frame, b"\xff", kind):
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
