"""Budgets: what a run, with all its branches and nested programs, may spend; checked before each operation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from numbers import Real

from ..runtime.metrics import Usage
from .errors import BudgetExceeded, UnsupportedByBackend


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits of a run, or of all rows of a ``map`` together."""

    tokens: int | None = None
    """Tokens that go through the model: prompt tokens computed and tokens decoded. Cached tokens are free."""
    seconds: float | None = None
    """Seconds since the run, or the map, began."""
    cost: float | None = None
    """In the currency of the model's price list; only models with a price list."""

    def __post_init__(self) -> None:
        """Raises TypeError for a limit that is no number, ValueError for one below 0."""
        for kind in ("tokens", "seconds", "cost"):
            limit = getattr(self, kind)
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Real)):
                raise TypeError(f"Budget: {kind} is a number, not {limit!r}")
            if limit is not None and not float(limit) >= 0:
                raise ValueError(f"Budget: {kind}={limit} must be at least 0")


class Ledger:
    """What has been spent under a budget. Shared by every run it covers; interpreter's thread only."""

    def __init__(self, budget: Budget | None) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget= takes a Budget, as in Budget(tokens=100); it got {type(budget).__name__}")
        self.budget = budget
        self.tokens = 0
        self.began = time.monotonic()
        if budget is not None and budget.cost is not None:
            raise UnsupportedByBackend(
                "Budget(cost=...) needs a model with a price list, and models that run in this process have none. "
                "Use tokens= or seconds=."
            )

    def charge(self, usage: Usage) -> None:
        """Add what an operation used."""
        self.tokens += usage.computed

    def check(self) -> None:
        """Raise BudgetExceeded if nothing is left for another operation."""
        budget = self.budget
        if budget is None:
            return
        if budget.tokens is not None and self.tokens >= budget.tokens:
            raise BudgetExceeded(
                f"the token budget is used up: {self.tokens} of {budget.tokens} tokens were computed",
                kind="tokens",
                used=self.tokens,
                limit=budget.tokens,
            )
        if budget.seconds is not None and (spent := time.monotonic() - self.began) >= budget.seconds:
            raise BudgetExceeded(
                f"the time budget is used up: {spent:.1f} of {budget.seconds} seconds have passed",
                kind="seconds",
                used=spent,
                limit=budget.seconds,
            )
