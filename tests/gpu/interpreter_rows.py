"""Per-row kernels in Triton's interpreter: masks, the draw, RMSNorm and the fixed-tile linear."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from furcate.kernels.triton_linear import linear, reference_linear
from furcate.kernels.triton_rms_norm import reference_rms_norm, rms_norm
from furcate.kernels.triton_sampling import SamplingRows, sample_tokens
from furcate.kernels.triton_token_mask import apply_token_mask, reference_token_mask
from furcate.runtime.requests import SampleKey, Sampling
from furcate.runtime.sampler import GUMBEL_SPAN, Sampler, SampleRow
from furcate.runtime.vocabulary import Vocabulary

WORD = 0xFFFFFFFF


def vocabulary(size: int) -> Vocabulary:
    return Vocabulary(token_bytes=tuple(b"%d" % i for i in range(size)), eos_ids=frozenset())


def rows_of(samplings: list[Sampling], keys: list[SampleKey], positions: list[int]) -> SamplingRows:
    words = [
        (key.seed & WORD, key.seed >> 32, key.stream & WORD, key.stream >> 32, position)
        for key, position in zip(keys, positions, strict=True)
    ]
    return SamplingRows(
        temperature=torch.tensor([s.temperature for s in samplings], dtype=torch.float64),
        top_k=torch.tensor([s.top_k for s in samplings], dtype=torch.int32),
        top_p=torch.tensor([s.top_p for s in samplings], dtype=torch.float64),
        min_p=torch.tensor([s.min_p for s in samplings], dtype=torch.float64),
        keys=torch.tensor(words, dtype=torch.int64),
    )


def cpu_choice(
    logits: torch.Tensor, samplings: list[Sampling], keys: list[SampleKey], positions: list[int]
) -> list[int]:
    rows = [
        SampleRow(s, key, position, (), (), None, frozenset(), frozenset(), None)
        for s, key, position in zip(samplings, keys, positions, strict=True)
    ]
    return [sample.token for sample in Sampler(vocabulary(logits.shape[1])).sample(logits, rows)]


@pytest.mark.parametrize("seed", range(12))
def test_the_draw_is_the_cpu_samplers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, size = 3, (5, 130, 300)[seed % 3]
    samplings = [
        Sampling(
            temperature=float(rng.choice([0.0, 0.05, 0.7, 1.0, 3.0])),
            top_k=int(rng.choice([0, 0, 1, 2, 7, 40, 1000])),
            top_p=float(rng.choice([0.05, 0.3, 0.9, 0.999, 1.0])),
            min_p=float(rng.choice([0.0, 0.02, 0.3])),
        )
        for _ in range(count)
    ]
    keys = [SampleKey(int(rng.integers(2**63)) * 2 + 1, int(rng.integers(2**63)) * 2) for _ in range(count)]
    positions = [int(position) for position in rng.integers(0, 2**20, count)]
    logits = torch.from_numpy(rng.standard_normal((count, size)).astype(np.float32)) * 4
    if seed % 2:  # many equal logits, so that ranks among ties decide
        logits = (logits / 2).round() * 2
    got = sample_tokens(logits, rows_of(samplings, keys, positions), span=GUMBEL_SPAN, block=256)
    assert got.tolist() == cpu_choice(logits, samplings, keys, positions)


@pytest.mark.parametrize(("top_k", "top_p", "kept"), [(0, 0.35, 4), (4, 0.6, 3), (6, 1.0, 6)])
def test_of_equal_logits_the_first_are_kept(top_k: int, top_p: float, kept: int) -> None:
    count = 8
    samplings, keys = [Sampling(temperature=1.0, top_k=top_k, top_p=top_p)] * count, [SampleKey(3, 4)] * count
    rows = rows_of(samplings, keys, list(range(count)))
    got = sample_tokens(torch.zeros(count, 10), rows, span=GUMBEL_SPAN, block=16)
    assert max(got.tolist()) < kept
    assert got.tolist() == cpu_choice(torch.zeros(count, 10), samplings, keys, list(range(count)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_cannot_be_drawn_from_says_so(value: float) -> None:
    logits = torch.zeros(3, 20)
    logits[0, 7] = value
    logits[1] = -torch.inf
    for temperature in (0.0, 1.0):
        rows = rows_of([Sampling(temperature=temperature)] * 3, [SampleKey(5, 6)] * 3, [0, 0, 0])
        tokens = sample_tokens(logits, rows, span=GUMBEL_SPAN, block=32).tolist()
        assert tokens[:2] == [-1, -1]
        assert 0 <= tokens[2] < 20


def test_masked_ids_are_never_drawn() -> None:
    generator = torch.Generator().manual_seed(8)
    masks = torch.randint(-(2**31), 2**31, (2, 41), generator=generator, dtype=torch.int64).to(torch.int32)
    mask_rows = torch.tensor([1, -1, 0, 1], dtype=torch.int32)
    logits = torch.randn(4, 1300, generator=generator)
    want = reference_token_mask(logits, masks, mask_rows)
    apply_token_mask(logits, masks, mask_rows)
    assert torch.equal(logits, want)
    assert 0 < int((logits == -torch.inf).sum()) < logits.numel()
    rows = rows_of([Sampling(temperature=2.0)] * 4, [SampleKey(5, 6)] * 4, [0, 1, 2, 3])
    tokens = sample_tokens(logits, rows, span=GUMBEL_SPAN).long()
    assert torch.isfinite(logits[torch.arange(4), tokens]).all()


def test_a_mask_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="cover fewer"):
        apply_token_mask(torch.zeros(1, 33), torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 6e-2)])
def test_rms_norm_agrees_and_a_row_keeps_its_bits(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(5, 700, generator=generator).to(dtype)
    x, weight = wide[:, :576], torch.randn(576, generator=generator).to(dtype)
    got = rms_norm(x, weight, 1e-5)
    assert (got.double() - reference_rms_norm(x, weight, 1e-5)).abs().max() < tolerance
    assert torch.equal(rms_norm(x[3:4], weight, 1e-5)[0], got[3])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-5), (torch.float16, 3e-2), (torch.bfloat16, 3e-1)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_agrees(dtype: torch.dtype, tolerance: float, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(70, 200, generator=generator).to(dtype)
    weight, bias = torch.randn(150, 200, generator=generator).to(dtype), torch.randn(150, generator=generator).to(dtype)
    got = linear(x, weight, bias if with_bias else None)
    assert (got.double() - reference_linear(x, weight, bias if with_bias else None)).abs().max() < tolerance


def test_a_row_of_a_linear_keeps_its_bits_in_any_company() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(40, 96, generator=generator), torch.randn(24, 96, generator=generator)
    together = linear(x, weight, row_dot=True)
    for row in (0, 17, 39):
        assert torch.equal(linear(x[row : row + 1], weight, row_dot=True)[0], together[row])
