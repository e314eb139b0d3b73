"""What cannot work is refused by a typed error that says what to do, and the engine goes on."""

from __future__ import annotations

import pytest
import torch
from canary import VOCAB, CanaryRunner, greedy_of
from engine_kit import Kit, request

import furcate as fc
from furcate.kernels.layout import StepBatch
from furcate.runtime.errors import ContextOverflow, EmptyPrompt, EngineFailed, FurcateError, InvalidLogits
from furcate.runtime.requests import ScoreRequest

TEXT = [(7 * i) % 61 for i in range(200)]
SICK = 62


class SickRunner(CanaryRunner):
    """Not a number after every text that ends in the token ``sick``, or has ``sick_length`` tokens."""

    sick = SICK
    sick_length = 0

    def forward(self, batch: StepBatch) -> torch.Tensor:
        logits = super().forward(batch)
        for i, row in enumerate(batch.logit_rows):
            if batch.token_ids[row] == self.sick or batch.positions[row] + 1 == self.sick_length:
                logits[i] = torch.nan
        return logits


def sick_kit() -> Kit:
    kit = Kit(16)
    kit.runner = kit.engine._runner = SickRunner(16)
    return kit


def test_logits_that_are_not_numbers_fail_their_call_and_are_not_cached() -> None:
    kit = sick_kit()
    prompt = [*TEXT[:40], SICK]
    good, bad = kit.root(TEXT[:40]).generate(request(3)), kit.root(prompt).generate(request(3, label="judge/gen"))
    kit.drain()
    assert list(good.result().tokens) == greedy_of(TEXT[:40], 3)
    with pytest.raises(InvalidLogits, match=r"judge/gen.*dtype"):
        bad.result()
    assert kit.generate(kit.root(prompt), 0).usage.cached <= 40
    assert len(kit.generate(kit.root(TEXT[:40]), 3).tokens) == 3


def test_a_call_that_falls_sick_while_it_decodes_leaves_nothing_of_its_own() -> None:
    kit = sick_kit()
    kit.generate(kit.root(TEXT[:16]), 0)
    kit.runner.sick, kit.runner.sick_length = -1, 43  # type: ignore[attr-defined]  # a SickRunner
    branch = kit.root(TEXT[:40])
    ticket = branch.generate(request(9))
    kit.drain()
    with pytest.raises(InvalidLogits):
        ticket.result()
    assert kit.stat("tree_tokens") == 16
    assert list(branch.tokens()) == TEXT[:40]
    kit.runner.sick_length = 0  # type: ignore[attr-defined]
    assert list(kit.generate(branch, 9).tokens) == greedy_of(TEXT[:40], 9)


def test_scores_that_are_not_numbers_fail_their_call() -> None:
    kit = sick_kit()
    bad = kit.root([*TEXT[:40], SICK]).score(ScoreRequest(((1, 2), (3,))))
    good = kit.root(TEXT[:40]).score(ScoreRequest(((1, 2), (3,))))
    kit.drain()
    assert len(good.result().logprobs) == 2
    with pytest.raises(InvalidLogits):
        bad.result()
    kit.engine.check_integrity()


@pytest.mark.parametrize("error", [MemoryError("no room"), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_step_that_does_not_fit_into_memory_says_what_needs_less(error: Exception) -> None:
    kit = Kit(16)
    branch = kit.root(TEXT[:40])
    ticket = branch.generate(request(3))
    kit.runner.fail_next = error
    kit.drain()
    with pytest.raises(EngineFailed, match="lower max_step_tokens") as caught:
        ticket.result()
    assert caught.value.__cause__ is error
    assert list(kit.generate(branch, 3).tokens) == greedy_of(TEXT[:40], 3)


def test_an_empty_prompt_is_refused() -> None:
    branch = Kit(4).root()
    with pytest.raises(EmptyPrompt, match="append a token"):
        branch.generate(request(1))
    with pytest.raises(EmptyPrompt, match="append a token"):
        branch.score(ScoreRequest(((1,),)))
    assert issubclass(EmptyPrompt, FurcateError)


@pytest.mark.parametrize(
    ("num_blocks", "max_context", "what"),
    [(64, 100, "the model's context holds 100: shorten"), (4, 4096, "the KV pool holds 64: .*kv_tokens=110")],
)
def test_a_prompt_longer_than_the_model_or_the_pool_is_refused_by_name(
    num_blocks: int, max_context: int, what: str
) -> None:
    kit = Kit(num_blocks, max_context=max_context)
    ticket = kit.root(TEXT[:100]).generate(request(10, label="essay/gen"))
    assert ticket.done
    with pytest.raises(ContextOverflow, match=f"essay/gen needs 110 tokens .*{what}"):
        ticket.result()
    assert len(kit.generate(kit.root([1]), 2).tokens) == 2


def test_an_engine_without_room_or_steps_is_refused() -> None:
    for options in ({"max_step_tokens": 0}, {"num_blocks": 0}):
        with pytest.raises(ValueError, match=r"at least (1|one)"):
            Kit(**{"num_blocks": 4, **options})  # type: ignore[arg-type]


def test_logits_of_every_vocabulary_entry_are_there() -> None:
    kit = Kit(4)
    outcome = kit.generate(kit.root([1]), 1, logprobs=VOCAB)
    assert outcome.top_logprobs is not None
    assert len(outcome.top_logprobs[0]) == VOCAB


def test_a_pool_smaller_than_one_program_is_refused_where_the_program_needs_more() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        fc.load("test:tiny", kv_tokens=0)
    model = fc.load("test:tiny", kv_tokens=64)

    @fc.program
    def essay(c: fc.Context, text: str) -> str:
        c += text
        return c.gen(max_tokens=8)

    with pytest.raises(fc.ContextOverflow, match=r"the KV pool holds 64.*kv_tokens="):
        essay.using(model)("x" * 70)
    assert isinstance(essay.using(model)("x" * 40), str)
    model.close()
