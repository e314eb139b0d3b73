"""JSON arrays: items by position, counted, with items of a kind counted too, and without repetition on request."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .machine import FAR, Config, Part, config, need_of
from .string_part import String
from .text_parts import Node

Frame = tuple[int, tuple[int, ...], tuple[bytes, ...]]
"""(items so far, how many of each counted kind, values so far where they must differ)"""

OPEN, FIRST, ITEM, AFTER = "[", "first", "item", "after"

Options = tuple[tuple[tuple[int, ...], Node], ...]
"""Ways to read an item: (what it adds to each count, the value)."""

MOST_FRAMES = 20_000
"""Frames of one array that are searched for a way to its end."""


@dataclass(slots=True)
class Layout:
    """What an array may hold."""

    prefix: list[Options] = field(default_factory=list)
    """Of the first items."""
    rest: Options = ()
    """Of all further items; none where there may be no more."""
    low: int = 0
    high: int | None = None
    counts: list[tuple[int, int | None]] = field(default_factory=list)
    """Least and greatest number of items of each counted kind."""
    distinct: String | None = None
    """The strings that items are where they must all differ."""


class Array(Part):
    """Arrays of a layout. Data: (phase, frame)."""

    def __init__(self, layout: Layout, spaced: Callable[[Config], Config]) -> None:
        """spaced: puts optional white space before a configuration."""
        self.layout = layout
        self.spaced = spaced
        self.initial = (OPEN, (0, (0,) * len(layout.counts), ()))
        self._cap = layout.high if layout.high is not None else max(layout.low, len(layout.prefix))
        self._costs: dict[Frame, int] = {}

    def step(self, data: Any, cont: Config | None, byte: int) -> Iterable[Config | None]:
        phase, frame = data
        if phase == OPEN:
            return (self.spaced(config(self, (FIRST, frame), cont)),) if byte == 0x5B else ()
        if byte == 0x2C and phase == AFTER:
            return (self.spaced(config(self, (ITEM, frame), cont)),) if self._ways(frame) else ()
        if byte == 0x5D and phase in (FIRST, AFTER):
            return (cont,) if self._may_close(frame) else ()
        return ()

    def closes(self, data: Any) -> bool:
        return data[0] in (FIRST, ITEM)

    def finish(self, data: Any, cont: Config | None) -> Iterable[Config | None]:
        frame = data[1]
        found: list[Config] = []
        for after, node in self._ways(frame):
            behind = self.spaced(config(self, (AFTER, after), cont))
            if self.layout.distinct is None:
                found.append(config(node, None, behind))
            else:
                found.append(config(self.layout.distinct, None, behind))
        return found

    def live(self, data: Any) -> bool:
        return bool(data[0] != ITEM)

    def exits(self, data: Any, cont: Config | None) -> Iterable[int]:
        return [byte for byte in (0x5B, 0x2C, 0x5D) if any(True for _ in self.step(data, cont, byte))]

    def need(self, data: Any, cont: Config | None) -> int:
        phase, frame = data
        behind = need_of(cont)
        if phase == OPEN:
            return 1 + self._first_cost(frame) + behind
        if phase == FIRST:
            return self._first_cost(frame) + behind
        if phase == ITEM:
            return self._item_cost(frame) + behind
        return self.cost(frame) + behind

    @property
    def min_bytes(self) -> int:
        """Length of the shortest array, ``FAR`` where there is none; right once all values know theirs."""
        self._costs.clear()
        return min(FAR, 1 + self._first_cost(self.initial[1]))

    def _options(self, index: int) -> Options:
        return self.layout.prefix[index] if index < len(self.layout.prefix) else self.layout.rest

    def _after(self, frame: Frame, adds: Sequence[int]) -> Frame | None:
        index, counts, values = frame
        new: list[int] = []
        for count, add, (low, high) in zip(counts, adds, self.layout.counts, strict=True):
            if high is not None and count + add > high:
                return None
            new.append(min(count + add, low if high is None else high))
        return min(index + 1, self._cap), tuple(new), values

    def _ways(self, frame: Frame) -> list[tuple[Frame, Node]]:
        """The items that may come next, each with the frame behind it."""
        if self.layout.high is not None and frame[0] >= self.layout.high:
            return []
        found = []
        for adds, node in self._options(frame[0]):
            after = self._after(frame, adds)
            if node.min_bytes < FAR and after is not None and self.cost(after) < FAR:
                found.append((after, node))
        return found

    def _may_close(self, frame: Frame) -> bool:
        index, counts, _ = frame
        return index >= self.layout.low and all(
            count >= low for count, (low, _) in zip(counts, self.layout.counts, strict=True)
        )

    def _first_cost(self, frame: Frame) -> int:
        return 1 if self._may_close(frame) else self._item_cost(frame)

    def _item_cost(self, frame: Frame) -> int:
        best = FAR
        if self.layout.high is not None and frame[0] >= self.layout.high:
            return FAR
        for adds, node in self._options(frame[0]):
            after = self._after(frame, adds)
            if node.min_bytes < FAR and after is not None:
                best = min(best, node.min_bytes + self.cost(after))
        return best

    def cost(self, frame: Frame) -> int:
        """Bytes from behind an item to behind the closing bracket, ``FAR`` where it cannot be closed."""
        key = (frame[0], frame[1], ())
        known = self._costs.get(key)
        if known is None:
            known = self._plain_cost(frame) if not self.layout.counts else self._search(key)
            self._costs[key] = known
        return known

    def _plain_cost(self, frame: Frame) -> int:
        """The cost where only the number of items counts."""
        missing = range(frame[0], self.layout.low)
        total = 1
        for index in missing[: max(0, len(self.layout.prefix) - frame[0])]:
            total += 1 + min((node.min_bytes for _, node in self._options(index)), default=FAR)
        beyond = len(missing) - max(0, min(len(missing), len(self.layout.prefix) - frame[0]))
        if beyond:
            total += beyond * (1 + min((node.min_bytes for _, node in self.layout.rest), default=FAR))
        return min(FAR, total)

    def _search(self, start: Frame) -> int:
        """The cheapest way from ``start`` to a frame that may close: Dijkstra's algorithm over frames."""
        best: dict[Frame, int] = {start: 0}
        waiting = [start]
        settled: set[Frame] = set()
        while waiting:
            waiting.sort(key=lambda frame: -best[frame])
            frame = waiting.pop()
            if frame in settled:
                continue
            settled.add(frame)
            if self._may_close(frame):
                return best[frame] + 1
            if len(settled) > MOST_FRAMES:
                break
            if self.layout.high is not None and frame[0] >= self.layout.high:
                continue
            for adds, node in self._options(frame[0]):
                after = self._after(frame, adds)
                if after is None or node.min_bytes >= FAR:
                    continue
                cost = best[frame] + 1 + node.min_bytes
                if cost < best.get(after, FAR):
                    best[after] = cost
                    waiting.append(after)
        return FAR


class Distinct(String):
    """Strings, as items of an array, that differ from all items before them."""

    def taken(self, cont: Config | None) -> Sequence[bytes]:
        return _frame_behind(cont)[2]

    def finish(self, data: Any, cont: Config | None) -> Iterable[Config | None]:
        array, phase, frame, outer = _place(cont)
        after = (frame[0], frame[1], tuple(sorted((*frame[2], data[3]))))
        return (array.spaced(config(array, (phase, after), outer)),)


def _place(cont: Config | None) -> tuple[Array, Hashable, Frame, Config | None]:
    """The array that an item stands in: itself, its phase and frame, and what follows it."""
    while cont is not None and not isinstance(cont.part, Array):
        cont = cont.cont  # white space
    assert cont is not None
    array = cont.part
    assert isinstance(array, Array)
    data: Any = cont.data
    return array, data[0], data[1], cont.cont


def _frame_behind(cont: Config | None) -> Frame:
    return _place(cont)[2]
