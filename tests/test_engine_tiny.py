"""The engine over a real, small model in fp32: sharing changes no bit of what comes out."""

from __future__ import annotations

import pytest
from engine_kit import request

from furcate.runtime.engine import Engine
from furcate.runtime.model_runner import ModelRunner
from furcate.runtime.models.loaded import LoadedModel
from furcate.runtime.models.loading import load_model
from furcate.runtime.requests import Branch, GenRequest, GenResult, SampleKey, Sampling, ScoreRequest
from furcate.runtime.sampler import Sampler

PROMPT = list(b"A prompt of more than two blocks of bytes, so that it ends inside the third or so.")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("test:tiny")


def fresh(model: LoadedModel, num_blocks: int = 64, **options: int) -> Engine:
    vocabulary = model.tokenizer.vocabulary
    return Engine(
        ModelRunner(model, num_blocks=num_blocks, deterministic=True),
        vocabulary,
        Sampler(vocabulary),
        num_blocks=num_blocks,
        max_context=1024,
        threaded=False,
        check_every_step=True,
        **options,  # type: ignore[arg-type]
    )


def drain(engine: Engine) -> None:
    while engine.step():
        pass


def sampled(i: int, max_tokens: int = 12) -> GenRequest:
    return request(max_tokens, sampling=Sampling(temperature=1.0), key=SampleKey(7, i), logprobs=0)


def alone(model: LoadedModel, tokens: list[int], call: GenRequest) -> GenResult:
    engine = fresh(model)
    branch = engine.root()
    branch.append(tokens)
    ticket = branch.generate(call)
    drain(engine)
    return ticket.result()


def forked(engine: Engine, n: int) -> list[Branch]:
    parent = engine.root()
    parent.append(PROMPT)
    children = parent.fork(n)
    for i, child in enumerate(children):
        child.append([65 + i])
    return children


@pytest.mark.parametrize("step_tokens", [512, 16])
def test_a_forked_branch_gives_bit_for_bit_what_it_gives_alone(model: LoadedModel, step_tokens: int) -> None:
    engine = fresh(model, max_step_tokens=step_tokens)
    tickets = [child.generate(sampled(i)) for i, child in enumerate(forked(engine, 5))]
    drain(engine)
    for i, ticket in enumerate(tickets):
        expected = alone(model, [*PROMPT, 65 + i], sampled(i))
        assert ticket.result().tokens == expected.tokens
        assert ticket.result().logprobs == expected.logprobs


def test_a_hit_gives_bit_for_bit_what_a_miss_gives_at_every_cut(model: LoadedModel) -> None:
    expected = alone(model, PROMPT, sampled(1, 4))
    for cut in (1, 15, 16, 17, 40, len(PROMPT) - 1, len(PROMPT)):
        engine = fresh(model)
        warm = engine.root()
        warm.append(PROMPT[:cut])
        warm.generate(request(0))
        drain(engine)
        branch = engine.root()
        branch.append(PROMPT)
        ticket = branch.generate(sampled(1, 4))
        drain(engine)
        assert ticket.result().usage.cached == cut
        assert (ticket.result().tokens, ticket.result().logprobs) == (expected.tokens, expected.logprobs)


def test_a_crowded_pool_changes_no_bit(model: LoadedModel) -> None:
    engine = fresh(model, num_blocks=9)
    tickets = [child.generate(sampled(i)) for i, child in enumerate(forked(engine, 5))]
    drain(engine)
    for i, ticket in enumerate(tickets):
        expected = alone(model, [*PROMPT, 65 + i], sampled(i))
        assert (ticket.result().tokens, ticket.result().logprobs) == (expected.tokens, expected.logprobs)


def test_scores_equal_the_log_probabilities_of_generating_the_same_tokens(model: LoadedModel) -> None:
    drawn = alone(model, PROMPT, sampled(3, 5))
    engine = fresh(model)
    branch = engine.root()
    branch.append(PROMPT)
    others = tuple((*drawn.tokens[:i], 66, 67) for i in range(5))
    ticket = branch.score(ScoreRequest((drawn.tokens, *others)))
    drain(engine)
    assert ticket.result().logprobs[0] == pytest.approx(drawn.logprobs, abs=1e-6)
