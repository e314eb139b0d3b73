"""What the engine may know of the plan, as plain data on each request. A hint costs speed when wrong, never truth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hints:
    token_bound: int | None = None
    """Upper bound of tokens that the branch will still add, over all its remaining operations."""
    last_use: bool = False
    """The branch's private KV is dead once this request is done."""
    next_use: int | None = None
    """Operations until the branch's tip is used again; None = unknown."""
    coming_fork: int = 0
    """Number of branches that will certainly fork from the tip after this request."""


NO_HINTS = Hints()
