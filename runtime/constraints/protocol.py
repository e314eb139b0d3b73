"""The constraint protocol: what the engine, the sampler and the tests ask of any constraint."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import numpy as np
import numpy.typing as npt

State = Hashable
"""A small immutable value. Forking a branch inside a constrained value copies a reference."""

Bitmask = npt.NDArray[np.uint32]
"""[ceil(vocabulary size / 32)] packed: bit ``i % 32`` of word ``i // 32`` is token ``i``."""


class Constraint(Protocol):
    """A language over bytes, seen through one vocabulary. Immutable but for memoisation; safe across threads."""

    def initial(self) -> State:
        """The state before any text."""

    def mask(self, state: State) -> Bitmask:
        """Tokens after which the text is still a prefix of the language. End-of-sequence ids are never set: whether
        the text may end is ``may_end``. The array is read-only and memoised: do not write to it."""

    def advance(self, state: State, token: int) -> State:
        """The state after ``token``. Raises ValueError if the mask does not allow it."""

    def forced(self, state: State) -> bytes:
        """The longest run of bytes that must follow, b"" where there is a choice or the text may end."""

    def may_end(self, state: State) -> bool:
        """Whether the text so far is in the language."""

    def min_bytes(self, state: State) -> int:
        """Length in bytes of the shortest completion; 0 where ``may_end``."""
