"""The sampler: what each option does to a row, and that a row's draw depends on nothing else."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from furcate.runtime.constraints.protocol import Bitmask
from furcate.runtime.errors import EngineFailed
from furcate.runtime.random import gumbel, philox
from furcate.runtime.requests import SampleKey, Sampling
from furcate.runtime.sampler import Sample, Sampler, SampleRow
from furcate.runtime.vocabulary import Vocabulary

SIZE = 41
EOS, SPECIAL = 39, 40
VOCABULARY = Vocabulary((*(bytes([97 + i]) for i in range(SIZE - 2)), None, None), frozenset({EOS}))
GREEDY = Sampling()


def pack(ids: Sequence[int], size: int = SIZE) -> Bitmask:
    words = np.zeros((size + 31) // 32, dtype=np.uint32)
    for i in ids:
        words[i // 32] |= np.uint32(1 << (i % 32))
    return words


def row(sampling: Sampling = GREEDY, **changes: object) -> SampleRow:
    fields: dict[str, object] = {
        "sampling": sampling, "key": SampleKey(1, 2), "position": 0, "context": [], "generated": [], "mask": None,
        "allow": frozenset(), "forbid": frozenset(), "logprobs": None,
    }  # fmt: skip
    return SampleRow(**{**fields, **changes})  # type: ignore[arg-type]  # fields are as declared


def draw(logits: torch.Tensor, sample_row: SampleRow) -> Sample:
    return Sampler(VOCABULARY).sample(logits[None], [sample_row])[0]


def some_logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * 2


# Vectors of Random123's kat_vectors: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    words = philox((torch.tensor([counter[0]]), *counter[1:]), key)
    assert tuple(int(word) for word in words) == expected


def test_noise_is_a_function_of_the_id_alone() -> None:
    everything = gumbel(torch.arange(100), seed=2**63 + 5, stream=2**64 - 1, position=7)
    some = torch.tensor([3, 4, 7, 50, 99])
    assert torch.equal(gumbel(some, seed=2**63 + 5, stream=2**64 - 1, position=7), everything[some])
    for seed, stream, position in ((2**63 + 6, 2**64 - 1, 7), (2**63 + 5, 2**32 - 1, 7), (2**63 + 5, 2**64 - 1, 8)):
        assert not (gumbel(torch.arange(100), seed=seed, stream=stream, position=position) == everything).any()
    assert torch.isfinite(everything).all()


def test_noise_words_are_laid_out_as_documented() -> None:
    words = philox((torch.tensor([5]), 7, 11, 13), (17, 19))
    noise = gumbel(torch.tensor([20, 21, 22, 23]), seed=(19 << 32) | 17, stream=(13 << 32) | 11, position=7)
    assert noise.tolist() == [-math.log(-math.log((int(word) + 0.5) / 2**32)) for word in words]


def test_greedy_takes_the_likeliest_and_of_equals_the_lowest_id() -> None:
    logits = torch.zeros(SIZE)
    logits[[7, 5, 30]] = 3.0
    assert draw(logits, row()).token == 5


def test_specials_are_never_drawn_and_end_ids_only_when_allowed() -> None:
    logits = torch.zeros(SIZE)
    logits[SPECIAL], logits[EOS], logits[3] = 9.0, 8.0, 7.0
    assert draw(logits, row()).token == EOS
    assert draw(logits, row(forbid=frozenset({EOS}))).token == 3
    assert draw(logits, row(mask=pack([2, 3]))).token == 3
    assert draw(logits, row(mask=pack([2, 3]), allow=frozenset({EOS}))).token == EOS
    assert draw(logits, row(mask=pack([2, 3]), allow=frozenset({EOS}), forbid=frozenset({EOS, 3}))).token == 2


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.integers(0, SIZE - 1), min_size=1),
    st.floats(0, 3),
    st.floats(0.05, 1),
    st.integers(0, 5),
    st.floats(0, 1),
    st.integers(0, 1000),
)
def test_draw_is_always_allowed(
    allowed: set[int], temperature: float, top_p: float, top_k: int, min_p: float, seed: int
) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    sample = draw(some_logits(seed), row(sampling, mask=pack(sorted(allowed)), key=SampleKey(seed, 0)))
    assert sample.token in allowed


def test_draw_does_not_depend_on_the_batch() -> None:
    samplings = [
        Sampling(),
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_p=0.8, repetition_penalty=1.3),
        Sampling(temperature=1.5, top_k=5, min_p=0.1),
    ]
    rows = [row(s, key=SampleKey(3, i), position=i, context=[1, 2, 3], logprobs=3) for i, s in enumerate(samplings * 3)]
    logits = torch.stack([some_logits(i) for i in range(len(rows))])
    sampler = Sampler(VOCABULARY)
    together = sampler.sample(logits, rows)
    assert together == [sampler.sample(logits[i : i + 1], [r])[0] for i, r in enumerate(rows)]
    assert together == sampler.sample(logits.flip(0), rows[::-1])[::-1]


def test_logits_are_left_as_they_were() -> None:
    logits = some_logits()[None]
    before = logits.clone()
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=1.0, logit_bias={3: 5.0}, temperature=1.0)
    Sampler(VOCABULARY).sample(logits, [row(sampling, context=[1, 2], generated=[2])])
    assert torch.equal(logits, before)


def frequencies(sampling: Sampling, logits: torch.Tensor, draws: int, **changes: object) -> Counter[int]:
    sampler = Sampler(VOCABULARY)
    rows = [row(sampling, key=SampleKey(42, 7), position=i, **changes) for i in range(draws)]
    return Counter(s.token for s in sampler.sample(logits.expand(draws, SIZE), rows))


def test_draws_follow_the_tempered_distribution() -> None:
    logits, draws, temperature = some_logits(5), 2000, 0.8
    counts = frequencies(Sampling(temperature=temperature), logits, draws, forbid=frozenset({EOS}))
    expected = torch.softmax(logits[: SIZE - 2].double() / temperature, dim=-1) * draws
    likely = expected >= 5
    observed = torch.tensor([counts[i] for i in range(SIZE - 2)], dtype=torch.float64)
    bins = [(observed[likely], expected[likely]), (observed[~likely].sum()[None], expected[~likely].sum()[None])]
    chi_square = sum(float(((o - e) ** 2 / e).sum()) for o, e in bins)
    freedom = int(likely.sum())
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # four standard deviations


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0, top_k=2), {0, 1}),
        (Sampling(temperature=1.0, top_p=0.75), {0, 1}),
        (Sampling(temperature=1.0, top_p=0.5), {0}),
        (Sampling(temperature=1.0, top_p=0.01), {0}),
        (Sampling(temperature=1.0, min_p=0.4), {0, 1}),
        (Sampling(temperature=1.0, top_k=3, top_p=0.99), {0, 1, 2}),
        (Sampling(temperature=1e-5), {0}),
    ],
)
def test_filters_keep_exactly(sampling: Sampling, kept: set[int]) -> None:
    logits = torch.full((SIZE,), -50.0)
    logits[:4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(frequencies(sampling, logits, 300)) == kept


def test_top_k_takes_of_equals_the_lowest_ids() -> None:
    assert set(frequencies(Sampling(temperature=1.0, top_k=3), torch.zeros(SIZE), 200)) == {0, 1, 2}


def test_top_p_of_a_large_vocabulary_is_that_of_a_full_sort() -> None:
    size, p = 5000, 0.6
    vocabulary = Vocabulary(tuple(b"x" for _ in range(size)), frozenset())
    logits = torch.randn(size, generator=torch.Generator().manual_seed(1)) * 4
    ordered, order = torch.sort(torch.softmax(logits.double(), -1), descending=True)
    nucleus = set(order[: int((ordered.cumsum(-1) < p).sum()) + 1].tolist())
    rows = [row(Sampling(temperature=1.0, top_p=p), position=i) for i in range(300)]
    drawn = {s.token for s in Sampler(vocabulary).sample(logits.expand(300, size), rows)}
    assert drawn <= nucleus
    assert len(nucleus) < 1024


def test_penalties_and_bias_reach_the_greedy_choice() -> None:
    logits = torch.zeros(SIZE)
    logits[1], logits[2], logits[3] = 4.0, 3.0, -1.0
    assert draw(logits, row(Sampling(repetition_penalty=2.0), context=[1])).token == 2
    negative = torch.full((SIZE,), -2.0)
    negative[1], negative[2] = -1.0, -1.5
    assert draw(negative, row(Sampling(repetition_penalty=2.0), context=[1, 1])).token == 2
    assert draw(logits, row(Sampling(presence_penalty=1.5), context=[1], generated=[])).token == 1
    assert draw(logits, row(Sampling(presence_penalty=1.5), generated=[1, 1])).token == 2
    assert draw(logits, row(Sampling(frequency_penalty=0.6), generated=[1])).token == 1
    assert draw(logits, row(Sampling(frequency_penalty=0.6), generated=[1, 1])).token == 2
    assert draw(logits, row(Sampling(logit_bias={3: 6.0}))).token == 3
    assert draw(logits, row(Sampling(logit_bias={1: -math.inf}))).token == 2


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = some_logits(2)
    expected = torch.log_softmax(logits, dim=-1)
    sampling = Sampling(logit_bias={5: 50.0}, temperature=0.3)
    sample = draw(logits, row(sampling, mask=pack([4, 5]), logprobs=3))
    assert sample.token == 5
    assert sample.logprob == pytest.approx(float(expected[5]), abs=1e-5)
    assert sample.top is not None
    best = torch.sort(expected, descending=True)
    assert list(sample.top) == best.indices[:3].tolist()
    assert list(sample.top.values()) == pytest.approx(best.values[:3].tolist(), abs=1e-5)
    assert draw(logits, row(logprobs=0)).top == {}
    assert draw(logits, row()).top is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_fail(value: float) -> None:
    logits = some_logits()
    logits[3] = value
    with pytest.raises(EngineFailed, match="not finite"):
        draw(logits, row())


def test_no_allowed_token_fails() -> None:
    with pytest.raises(EngineFailed, match="no token is allowed"):
        draw(some_logits(), row(mask=pack([])))
    with pytest.raises(EngineFailed, match="no token is allowed"):
        draw(some_logits(), row(Sampling(logit_bias={1: -math.inf}), mask=pack([1])))


def test_bias_beyond_the_vocabulary_fails() -> None:
    with pytest.raises(EngineFailed, match="logit_bias"):
        draw(some_logits(), row(Sampling(logit_bias={SIZE: 1.0})))
