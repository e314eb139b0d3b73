"""What is known at one point of a program: every frame's names, and the last operation of every context."""

from __future__ import annotations

from dataclasses import dataclass, field

from .values import Value, join

Tips = frozenset[int]
"""Ids of the operations that may have been the last on a lineage."""


@dataclass(slots=True)
class State:
    """Names and lineages at a point. Copied where paths part, joined where they meet."""

    frames: dict[int, dict[str, Value]] = field(default_factory=dict)
    tips: dict[int, Tips] = field(default_factory=dict)
    alive: bool = True
    """False after a return, raise, break or continue: nothing follows on this path."""

    def copy(self) -> State:
        """An independent state; values are immutable and shared."""
        return State({frame: dict(names) for frame, names in self.frames.items()}, dict(self.tips), self.alive)

    def replace_value(self, old: Value, new: Value) -> None:
        """Every name that holds ``old`` (the same object) holds ``new``: it was changed in place."""
        for names in self.frames.values():
            for name, value in names.items():
                if value is old:
                    names[name] = new


def merge(states: list[State]) -> State:
    """The state where several paths meet; paths that have ended do not count. Dead if all have."""
    alive = [state for state in states if state.alive]
    if not alive:
        return State(states[0].frames, states[0].tips, False) if states else State(alive=False)
    merged = alive[0].copy()
    for other in alive[1:]:
        for frame, names in other.frames.items():
            mine = merged.frames.setdefault(frame, {})
            for name, value in names.items():
                mine[name] = join(mine[name], value) if name in mine else value
        for lineage, tips in other.tips.items():
            merged.tips[lineage] = merged.tips.get(lineage, frozenset()) | tips
    return merged
