"""The engine against a plain model of branches, with its ledger walked after every step and small pools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from canary import END, greedy_of, scores_of
from engine_kit import Kit, request
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from furcate.runtime.errors import ContextOverflow
from furcate.runtime.requests import Branch, RequestCancelled, ScoreRequest, Ticket

TOKEN = st.integers(0, 2)
TOKENS = st.lists(TOKEN, min_size=1, max_size=22)
PICK = st.integers(0, 10**6)


@dataclass
class Known:
    """What a branch must hold, and what its pending call must give."""

    branch: Branch
    tokens: list[int]
    ticket: Ticket[Any] | None = None
    expected: Any = None
    prompt: int = 0
    cancelled: bool = False
    scored: list[list[int]] = field(default_factory=list)


class EngineMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(3, 14), step_tokens=st.sampled_from([1, 3, 8, 40, 512]), plan=st.booleans())
    def start(self, num_blocks: int, step_tokens: int, plan: bool) -> None:
        self.kit = Kit(num_blocks, max_step_tokens=step_tokens, plan=plan)
        self.known: list[Known] = []
        self.accounted = 0
        """Tokens computed, by the usage of the calls that have ended well."""

    def idle(self) -> list[Known]:
        return [known for known in self.known if known.ticket is None]

    def busy(self) -> list[Known]:
        return [known for known in self.known if known.ticket is not None]

    @rule(tokens=TOKENS, namespace=st.sampled_from(["", "other"]))
    def root(self, tokens: list[int], namespace: str) -> None:
        if len(self.known) < 12:
            self.known.append(Known(self.kit.root(tokens, namespace), list(tokens)))

    @precondition(lambda self: self.idle())
    @rule(pick=PICK, tokens=TOKENS)
    def append(self, pick: int, tokens: list[int]) -> None:
        known = self.idle()[pick % len(self.idle())]
        known.branch.append(tokens)
        known.tokens += tokens

    @precondition(lambda self: self.idle() and len(self.known) < 12)
    @rule(pick=PICK, n=st.integers(1, 3))
    def fork(self, pick: int, n: int) -> None:
        known = self.idle()[pick % len(self.idle())]
        self.known += [Known(branch, list(known.tokens)) for branch in known.branch.fork(n)]

    @precondition(lambda self: self.idle())
    @rule(pick=PICK, share=st.floats(0, 1))
    def truncate(self, pick: int, share: float) -> None:
        known = self.idle()[pick % len(self.idle())]
        length = int(share * len(known.tokens))
        known.branch.truncate(length)
        del known.tokens[length:]

    @precondition(lambda self: self.known)
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        known = self.known.pop(pick % len(self.known))
        known.branch.release()
        if known.ticket is not None:
            self.kit.engine.step()
            self.expect_cancelled(known.ticket)

    @precondition(lambda self: [k for k in self.idle() if k.tokens])
    @rule(pick=PICK, max_tokens=st.integers(0, 20), end=st.booleans())
    def generate(self, pick: int, max_tokens: int, end: bool) -> None:
        idle = [known for known in self.idle() if known.tokens]
        known = idle[pick % len(idle)]
        ends = frozenset(range(8)) | {END} if end else frozenset()
        ticket = known.branch.generate(request(max_tokens, end_ids=ends))
        if self.overflows(ticket, len(known.tokens) + max(0, max_tokens - 1)):
            return
        known.ticket, known.prompt = ticket, len(known.tokens)
        known.expected = greedy_of(known.tokens, max_tokens, ends)

    @precondition(lambda self: [k for k in self.idle() if k.tokens])
    @rule(pick=PICK, sequences=st.lists(st.lists(TOKEN, max_size=6), max_size=6))
    def score(self, pick: int, sequences: list[list[int]]) -> None:
        idle = [known for known in self.idle() if known.tokens]
        known = idle[pick % len(idle)]
        ticket = known.branch.score(ScoreRequest(tuple(tuple(s) for s in sequences)))
        longest = max((len(s) for s in sequences), default=0)
        if self.overflows(ticket, len(known.tokens) + max(0, longest - 1)):
            return
        known.ticket, known.prompt, known.scored = ticket, len(known.tokens), sequences
        known.expected = None

    def overflows(self, ticket: Ticket[Any], needed: int) -> bool:
        fits = -(-needed // 16) <= self.kit.engine.num_blocks
        if fits:
            assert not ticket.done or ticket._error is None
            return False
        with pytest.raises(ContextOverflow) as caught:
            ticket.result()
        assert caught.value.needed >= needed
        return True

    @precondition(lambda self: self.busy())
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        known = self.busy()[pick % len(self.busy())]
        assert known.ticket is not None
        known.ticket.cancel()
        known.cancelled = True
        self.kit.engine.step()
        assert known.ticket.done
        self.collect()

    @precondition(lambda self: self.kit.engine.scheduler.running)
    @rule(pick=PICK)
    def preempt(self, pick: int) -> None:
        running = self.kit.engine.scheduler.running
        self.kit.engine.scheduler.preempt(running[pick % len(running)])
        self.kit.engine.check_integrity()

    @rule(n=st.integers(1, 14))
    def evict(self, n: int) -> None:
        self.kit.engine.cache.make_room(n, self.kit.engine.scheduler._growing)
        self.kit.engine.check_integrity()

    @rule(namespace=st.sampled_from(["", "other"]))
    def flush(self, namespace: str) -> None:
        self.kit.engine.flush(namespace)
        self.kit.engine.check_integrity()

    @rule(n=st.integers(1, 4))
    def step(self, n: int) -> None:
        for _ in range(n):
            self.kit.engine.step()
        self.collect()

    @rule()
    def drain(self) -> None:
        self.kit.drain()
        self.collect()
        assert not self.busy()

    def collect(self) -> None:
        for known in self.busy():
            assert known.ticket is not None
            if not known.ticket.done:
                continue
            ticket, known.ticket = known.ticket, None
            if known.cancelled and ticket._error is not None:
                self.expect_cancelled(ticket)
            elif known.expected is not None:
                result = ticket.result()
                assert list(result.tokens) == known.expected
                known.tokens += known.expected
                self.check_usage(result.usage, known)
            else:
                result = ticket.result()
                for sequence, logprobs in zip(known.scored, result.logprobs, strict=True):
                    want = scores_of(known.tokens, sequence)
                    assert all(abs(a - b) < 1e-9 for a, b in zip(logprobs, want, strict=True))
                self.check_usage(result.usage, known)
            known.cancelled = False
            assert list(known.branch.tokens()) == known.tokens
            assert known.branch.length == len(known.tokens)

    def check_usage(self, usage: Any, known: Known) -> None:
        assert usage.prompt == known.prompt == usage.cached + usage.shared + usage.prefilled
        assert sum(usage.missed_because.values()) == usage.prefilled
        assert usage.repeated <= usage.recomputed
        self.accounted += usage.computed

    def expect_cancelled(self, ticket: Ticket[Any]) -> None:
        try:
            result = ticket.result()
        except RequestCancelled:
            return
        self.accounted += result.usage.computed  # it had ended before it was cancelled

    def teardown(self) -> None:
        if not hasattr(self, "kit"):
            return
        self.kit.drain()
        self.collect()
        assert not self.busy()
        for known in self.known:
            known.branch.release()
        stats = self.kit.engine.stats()
        assert self.accounted + stats["tokens_abandoned"] == stats["tokens_computed"]
        assert stats["blocks_referenced"] == 0
        assert stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"]
        self.kit.engine.check_integrity()


EngineMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEngine = EngineMachine.TestCase
