"""What a JSON object may hold: its keys with their values, its bounds, and the frame that counts them off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .byte_dfa import ByteDFA, distances, restricted
from .text_parts import Node

Frame = tuple[int, int, tuple[bytes, ...], int]
"""(bits of the named keys that are done, pairs so far, other keys so far, bits of the claims owed)"""

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


def labelled(
    table: npt.NDArray[np.int32], ends: npt.NDArray[np.bool_], labels: npt.NDArray[np.int32]
) -> tuple[ByteDFA, npt.NDArray[np.int32]]:
    """An automaton without the states that reach no end, and the labels of those that are left."""
    return restricted(table, ends), np.where(ends, labels, -1)[distances(table, ends) >= 0].astype(np.int32)


def bits(mask: int) -> Iterable[int]:
    """The places of the bits that are set, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
