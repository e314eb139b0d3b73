"""An engine over the canary, stepped by hand, with its ledger checked after every step."""

from __future__ import annotations

from typing import Any

from canary import GREEDY, KEY, VOCABULARY, CanaryRunner, GreedySampler

from furcate.runtime.engine import Engine
from furcate.runtime.requests import Branch, GenRequest, GenResult, ScoreRequest, ScoreResult, Ticket


class Kit:
    def __init__(self, num_blocks: int = 64, *, max_context: int = 4096, **options: Any) -> None:
        self.runner = CanaryRunner(num_blocks)
        self.sampler = GreedySampler()
        options = {"threaded": False, "check_every_step": True, **options}
        self.engine = Engine(
            self.runner, VOCABULARY, self.sampler, num_blocks=num_blocks, max_context=max_context, **options
        )

    def root(self, tokens: list[int] | None = None, namespace: str = "") -> Branch:
        branch = self.engine.root(namespace)
        if tokens:
            branch.append(tokens)
        return branch

    def drain(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.engine.step():
                return
        raise AssertionError(f"still at work after {limit} steps")

    def generate(self, branch: Branch, max_tokens: int, **options: Any) -> GenResult:
        ticket = branch.generate(request(max_tokens, **options))
        self.drain()
        return ticket.result()

    def score(self, branch: Branch, sequences: list[list[int]]) -> ScoreResult:
        ticket = branch.score(ScoreRequest(tuple(tuple(s) for s in sequences)))
        self.drain()
        return ticket.result()

    def stat(self, name: str) -> int:
        return self.engine.stats()[name]


def request(max_tokens: int, **options: Any) -> GenRequest:
    return GenRequest(
        max_tokens=max_tokens,
        **{"sampling": GREEDY, "key": KEY, "end_ids": frozenset(), **options},  # type: ignore[arg-type]
    )


def results(tickets: list[Ticket[GenResult]]) -> list[GenResult]:
    return [ticket.result() for ticket in tickets]
