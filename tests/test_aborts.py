"""Programs that end in any phase leave nothing behind, and what disturbs the others changes none of their tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from canary import greedy_of, scores_of
from engine_kit import Kit, request

from furcate.runtime.requests import Branch, ScoreRequest, Ticket


@dataclass
class Call:
    branch: Branch
    prompt: list[int]
    ticket: Ticket[Any]
    expected: list[int] = field(default_factory=list)
    scored: list[tuple[int, ...]] = field(default_factory=list)

    def check(self) -> None:
        result = self.ticket.result()
        if self.scored:
            for sequence, logprobs in zip(self.scored, result.logprobs, strict=True):
                assert logprobs == pytest.approx(scores_of(self.prompt, sequence))
        else:
            assert list(result.tokens) == self.expected


class Program:
    """A random fork tree of calls over a prompt that it may have in common with others."""

    def __init__(self, kit: Kit, rng: random.Random, number: int) -> None:
        self.rng = rng
        self.number = number
        self.branches: list[Branch] = []
        self.calls: list[Call] = []
        prompt = [rng.randrange(2)] * rng.randrange(1, 60)
        self.grow(kit.root(prompt), prompt, depth=2)

    def grow(self, branch: Branch, tokens: list[int], depth: int) -> None:
        self.branches.append(branch)
        if depth and self.rng.random() < 0.7:
            for child in branch.fork(self.rng.randrange(1, 4)):
                own = [self.rng.randrange(3) for _ in range(self.rng.randrange(1, 20))]
                child.append(own)
                self.grow(child, tokens + own, depth - 1)
        if self.rng.random() < 0.3:
            scored = [tuple(self.rng.randrange(3) for _ in range(self.rng.randrange(1, 4))) for _ in range(3)]
            ticket: Ticket[Any] = branch.score(ScoreRequest(tuple(scored), program=self.number))
            self.calls.append(Call(branch, tokens, ticket, scored=scored))
        else:
            n = self.rng.randrange(0, 12)
            ticket = branch.generate(request(n, program=self.number))
            self.calls.append(Call(branch, tokens, ticket, greedy_of(tokens, n)))

    def abort(self) -> None:
        for branch in self.branches:
            branch.release()
        if self.rng.random() < 0.2:
            for call in self.calls:
                call.ticket.cancel()  # after the end: nothing

    def cancel_some(self) -> list[Call]:
        cancelled = [call for call in self.calls if self.rng.random() < 0.5]
        for call in cancelled:
            call.ticket.cancel()
        return cancelled


@pytest.mark.parametrize("seed", range(4))
def test_s20_fifty_random_programs_aborted_in_every_phase_leave_the_ledger_at_zero(seed: int) -> None:
    """Four times fifty: queued, between the chunks of a prefill, with copies queued, decoding, ended, twice."""
    rng = random.Random(seed)
    kit = Kit(24, max_step_tokens=rng.choice([8, 24, 64]))
    alive: list[Program] = []
    for number in range(1, 51):
        alive.append(Program(kit, rng, number))
        for _ in range(rng.randrange(0, 6)):
            kit.engine.step()
        if rng.random() < 0.6:
            program = alive.pop(rng.randrange(len(alive)))
            program.abort()
            kit.engine.step()
            assert all(call.ticket.done for call in program.calls)
    for program in alive[::2]:
        cancelled = program.cancel_some()
        kit.engine.step()
        assert all(call.ticket.done for call in cancelled)
        for call in program.calls:
            if call not in cancelled:
                while not call.ticket.done:
                    kit.engine.step()
                call.check()
    kit.drain()
    for program in alive[1::2]:
        for call in program.calls:
            call.check()
    for program in alive:
        program.abort()
    stats = kit.engine.stats()
    assert stats["blocks_referenced"] == 0
    assert stats["blocks_free"] + stats["blocks_cached"] == 24
    assert not kit.engine.cache.residency.holders
    assert not kit.engine.scheduler.is_busy
    kit.engine.check_integrity()
    kit.engine.flush()
    assert kit.stat("blocks_free") == 24


@pytest.mark.parametrize("num_blocks", [24, 200])
def test_preempting_every_third_step_in_a_full_pool_changes_no_token(num_blocks: int) -> None:
    rng = random.Random(5)
    kit = Kit(num_blocks, max_step_tokens=48)
    kit.generate(kit.root([50] * (16 * num_blocks)), 0)  # nothing is free
    programs = [Program(kit, rng, number) for number in range(1, 15)]
    steps = 0
    while kit.engine.step():
        steps += 1
        running = kit.engine.scheduler.running
        if steps % 3 == 0 and running:
            kit.engine.scheduler.preempt(running[rng.randrange(len(running))])
        assert steps < 5000
    assert kit.stat("preemptions") >= steps // 4
    for program in programs:
        for call in program.calls:
            call.check()
