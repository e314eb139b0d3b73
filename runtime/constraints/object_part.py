"""JSON objects: keys in any order or the schema's, each at most once, counted and owed.

A frame is what an object remembers between its pairs: (keys that are done, number of pairs, other keys used, claims
that are still owed). A *claim* is "there is a key of some kind with a value of some kind", which one pair settles.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from .dfa_algebra import MANY
from .machine import FAR, Config, config, need_of
from .object_keys import KeyOwner, Names, Others
from .object_layout import Frame, Layout, bits, labelled
from .text_parts import COLON, Node

OPEN, FIRST, AFTER, NEXT, KEY = "{", "first", "after", "next", "key"


class Object(KeyOwner):
    """Objects of a layout. Data: (phase, frame)."""

    def __init__(self, layout: Layout, spell_key: Any, spaced: Any) -> None:
        """spell_key: the spellings of a name in quotes. spaced: puts optional white space before a configuration."""
        self.layout = layout
        self.spaced = spaced
        self.initial = (OPEN, (0, 0, (), layout.claims))
        self._usable = sum(1 << i for i, options in enumerate(layout.options) if options)
        self._all = (1 << len(layout.names)) - 1
        self._keys = Names([spell_key(name) for name in layout.names])
        self._others = Others(layout) if layout.others is not None and any(layout.other_options) else None
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
        self._others = Others(layout) if layout.others is not None else None

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
        for label in bits(free):
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
            for label in bits(self._usable & ~done):
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

    def other_outcomes(self, frame: Frame, key: bytes, kind: int) -> list[tuple[Frame, Node]]:
        """The frames that a further key may lead to, each with the value that comes first."""
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
        return any(self.other_outcomes(frame, b"\xff", kind) for kind in range(len(self.layout.other_options)))

    def other_kinds(self, frame: Frame) -> frozenset[int]:
        """Kinds of further keys that may come next."""
        if not self._others_allowed(frame):
            return frozenset()
        kinds = range(len(self.layout.other_options))
        return frozenset(kind for kind in kinds if self.other_outcomes(frame, b"\xff", kind))

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
        return [self.value(holder, after, node) for after, node in self.other_outcomes(frame, key, kind)]

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
        total = 1 + sum(1 + self.named_cost(label) for label in bits(pending))
        missing = self.layout.low - count - pending.bit_count()
        if missing > 0:
            extra = [self.named_cost(label) for label in bits(self._usable & ~done & ~pending)]
            if self._others is not None:
                extra.extend(self._others.costs(missing, used))
            if len(extra) < missing:
                return FAR
            total += missing + sum(sorted(extra)[:missing])
        return total

    def _settling(self, frame: Frame, bit: int) -> Iterable[int]:
        """Costs (pair and all that follows it) of the ways to settle a claim next, or after the required keys."""
        for label in bits(self._usable & ~frame[0]):
            for settled, node in self.layout.options[label]:
                if settled & bit and node.min_bytes < FAR:
                    skipped = self.layout.required & ~frame[0] & ((1 << label) - 1) if self.layout.ordered else 0
                    before = sum(1 + self.named_cost(other) for other in bits(skipped))
                    after = self.named(frame, label, settled)
                    if self.feasible(after):
                        yield before + self._keys.size(label) + 1 + node.min_bytes + self.cost(after)
        if self._others is None or self._left(frame) <= 0:
            return
        pending = self.layout.required & ~frame[0] if self.layout.ordered else 0
        before = sum(1 + self.named_cost(other) for other in bits(pending))
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
        for label in bits(self.allowed(frame)):
            for after, node in self._values(frame, label):
                best = min(best, self._keys.size(label) + 1 + node.min_bytes + self.cost(after))
        if self._others is not None:
            for kind in self.other_kinds(frame):
                for after, node in self.other_outcomes(frame, b"\xff", kind):
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
