"""The same bits whatever runs beside: logits of the real engine over random weights, compared with torch.equal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from engine_kit import request

import furcate as fc
from furcate.runtime.engine import Engine
from furcate.runtime.model_runner import ModelRunner
from furcate.runtime.models.loaded import LoadedModel
from furcate.runtime.models.loading import load_model
from furcate.runtime.requests import Branch, SampleKey, Sampling
from furcate.runtime.sampler import Sample, Sampler, SampleRow

TEXT = [(7 * i + i // 61) % 256 for i in range(1200)]
EDGES = [1, 15, 16, 17, 31, 33, 255, 256, 257, 271, 272, 273, 511, 512, 513]


class Listener(Sampler):
    """The sampler, keeping the logits after every context that was drawn from."""

    heard: dict[tuple[int, ...], torch.Tensor]

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sample]:
        for row, sampled in zip(logits, rows, strict=True):
            context = tuple(sampled.context)
            if context in self.heard:
                assert torch.equal(self.heard[context], row)
            self.heard[context] = row.clone()
        return super().sample(logits, rows)


class Lab:
    """An engine over ``test:tiny``, stepped by hand."""

    def __init__(self, model: LoadedModel, num_blocks: int = 256, max_step_tokens: int = 2048) -> None:
        vocabulary = model.tokenizer.vocabulary
        self.listener = Listener(vocabulary)
        self.listener.heard = {}
        self.engine = Engine(
            ModelRunner(model, num_blocks=num_blocks, deterministic=True),
            vocabulary,
            self.listener,
            num_blocks=num_blocks,
            max_context=4096,
            threaded=False,
            max_step_tokens=max_step_tokens,
        )

    @property
    def heard(self) -> dict[tuple[int, ...], torch.Tensor]:
        return self.listener.heard

    def root(self, tokens: list[int]) -> Branch:
        branch = self.engine.root()
        branch.append(tokens)
        return branch

    def start(self, branch: Branch, max_tokens: int, stream: int = 0) -> None:
        branch.generate(request(max_tokens, sampling=Sampling(temperature=1.0), key=SampleKey(7, stream)))

    def drain(self) -> None:
        while self.engine.step():
            pass

    def run(self, tokens: list[int], max_tokens: int = 3, stream: int = 0) -> Branch:
        branch = self.root(tokens)
        self.start(branch, max_tokens, stream)
        self.drain()
        return branch


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("test:tiny")


def assert_same(ours: dict[tuple[int, ...], torch.Tensor], alone: dict[tuple[int, ...], torch.Tensor]) -> None:
    for context, logits in alone.items():
        assert context in ours
        assert torch.equal(ours[context], logits), f"after {len(context)} tokens"


@pytest.mark.parametrize("cut", EDGES)
def test_a_hit_equals_a_miss(model: LoadedModel, cut: int) -> None:
    prompt = TEXT[:520]
    alone = Lab(model)
    alone.run(prompt)
    warm = Lab(model)
    warm.run(prompt[:cut], 0)
    warm.run(prompt)
    assert_same(warm.heard, alone.heard)


@pytest.mark.parametrize("length", [17, 256, 257, 300])
@pytest.mark.parametrize("num_branches", [2, 7])
def test_a_fork_equals_its_branches_alone(model: LoadedModel, length: int, num_branches: int) -> None:
    forked = Lab(model)
    children = forked.root(TEXT[:length]).fork(num_branches)
    for i, child in enumerate(children):
        child.append([65 + i])
        forked.start(child, 4, stream=i)
    forked.drain()
    for i in range(num_branches):
        alone = Lab(model)
        alone.run([*TEXT[:length], 65 + i], 4, stream=i)
        assert_same(forked.heard, alone.heard)


@pytest.mark.parametrize("step_tokens", [16, 37, 255, 256, 257])
def test_a_prefill_in_chunks_equals_a_whole_one(model: LoadedModel, step_tokens: int) -> None:
    whole, cut = Lab(model), Lab(model, max_step_tokens=step_tokens)
    for lab in (whole, cut):
        lab.run(TEXT[:600], 3)
    assert_same(cut.heard, whole.heard)


@pytest.mark.parametrize("num_rows", [7, 32])
def test_a_batch_equals_its_calls_alone(model: LoadedModel, num_rows: int) -> None:
    prompts = [[i, *TEXT[i : i + 20 + 9 * i]] for i in range(num_rows)]
    together = Lab(model)
    for i, prompt in enumerate(prompts):
        together.start(together.root(prompt), 4, stream=i)
    together.drain()
    for i in (0, 1, num_rows // 2, num_rows - 1):
        alone = Lab(model)
        alone.run(prompts[i], 4, stream=i)
        assert_same(together.heard, alone.heard)


def test_a_preempted_call_equals_an_undisturbed_one_and_so_does_a_full_pool(model: LoadedModel) -> None:
    prompts = [[i, *TEXT[50 * i : 50 * i + 40]] for i in range(4)]
    idle, busy = Lab(model), Lab(model, num_blocks=16)
    busy.run(TEXT[800:1040], 0)  # nothing is free
    for lab in (idle, busy):
        for i, prompt in enumerate(prompts):
            lab.start(lab.root(prompt), 20, stream=i)
    idle.drain()
    steps = 0
    while busy.engine.step():
        steps += 1
        running = busy.engine.scheduler.running
        if steps % 3 == 0 and running:
            busy.engine.scheduler.preempt(running[steps % len(running)])
            busy.engine.cache.evictor.evict(4)
    assert busy.engine.stats()["preemptions"] >= 4
    assert_same(busy.heard, idle.heard)


def test_kept_logits_equal_those_of_a_row(model: LoadedModel) -> None:
    kept = Lab(model)
    kept.run(TEXT[:40], 1, stream=1)
    rows = kept.engine.stats()["query_rows"]
    kept.run(TEXT[:40], 1, stream=2)
    assert kept.engine.stats()["query_rows"] == rows
    alone = Lab(model)
    alone.run(TEXT[:40], 1, stream=2)
    assert_same(kept.heard, alone.heard)


def test_a_program_gives_the_same_with_others_beside_it_from_map_threads_and_a_loop() -> None:
    model = fc.load("test:tiny")

    @fc.program
    def sample(c: fc.Context, n: int) -> list[str]:
        c += f"question {n}: "
        notes = c.fork(2, lambda b, i: b.gen(max_tokens=6, temperature=1.0))
        return [*notes, c.gen(max_tokens=6, temperature=1.0)]

    alone = sample.using(model, seed=4)(0)
    for others in (6, 31):
        assert sample.using(model, seed=4).map(range(others + 1)).ok[0] == alone
        with ThreadPoolExecutor(8) as pool:
            beside = list(pool.map(sample.using(model, seed=4), range(others + 1)))
        assert beside[0] == alone

        async def together(n: int) -> list[list[str]]:
            return await asyncio.gather(*(sample.using(model, seed=4).aio(i) for i in range(n)))

        assert asyncio.run(together(others + 1))[0] == alone
    model.check_integrity()
    assert model.stats()["blocks_referenced"] == 0
    model.close()
