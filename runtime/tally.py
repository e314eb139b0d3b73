"""Counting one call's tokens while it runs: every prompt position falls under exactly one heading."""

from __future__ import annotations

from collections import Counter

from .metrics import Usage


class Tally:
    """Grows with the call's progress; ``usage`` freezes it. Positions are reached in ascending order, once each: what
    is reached again after a preemption counts as recomputed only."""

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.reached = 0
        """Leading positions that were accounted for."""
        self.first_computed = prompt
        """Lowest position that a row of the call's own has computed."""
        self.looked = False
        """Whether the call has looked for resident tokens yet."""
        self.generated = 0
        self.forced = 0
        self.copied_blocks = 0
        self.forward_passes = 0
        self._cached = 0
        self._shared = 0
        self._prefilled = 0
        self._decoded = 0
        self._recomputed = 0
        self._repeated = 0
        self._reasons: Counter[str] = Counter()

    def found(self, end: int, *, shared: bool) -> None:
        """The KV of positions below ``end`` is there: by fork or a sibling's rows (``shared``), or cached."""
        gained = max(0, min(end, self.prompt) - self.reached)
        if shared:
            self._shared += gained
        else:
            self._cached += gained
        self.reached = max(self.reached, end)

    def computed(self, position: int, reason: str, *, lost: bool) -> None:
        """The call's own row computed ``position``; ``reason`` is ``new``, ``evicted``, ``flushed`` or
        ``preempted``; ``lost``
        tells that the branch itself had the token's KV before."""
        self.first_computed = min(self.first_computed, position)
        again = position < self.reached
        if again or lost:
            self._recomputed += 1
        if again:
            self._repeated += 1
            return
        self.reached = position + 1
        if position < self.prompt:
            self._prefilled += 1
            self._reasons[reason] += 1
        else:
            self._decoded += 1

    def decoded(self, position: int) -> None:
        """The call's own row computed its generated token at ``position``, for the first time."""
        self.reached = position + 1
        self._decoded += 1

    def side_rows(self, count: int) -> None:
        """``count`` rows were computed beyond the prompt that are no part of the branch (scored tokens)."""
        self._decoded += count

    def usage(self) -> Usage:
        """The counts so far. Prompt tokens that the call never needed (no forward pass) count as cached."""
        idle = self.prompt - min(self.reached, self.prompt)
        return Usage(
            prompt=self.prompt,
            cached=self._cached + idle,
            shared=self._shared,
            prefilled=self._prefilled,
            decoded=self._decoded,
            generated=self.generated,
            forced=self.forced,
            recomputed=self._recomputed,
            repeated=self._repeated,
            copied_blocks=self.copied_blocks,
            forward_passes=self.forward_passes,
            missed_because=dict(self._reasons),
        )
