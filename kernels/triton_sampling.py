"""Temperature, top-k, top-p, min-p and the draw, fused: one program per row, no sort, no trip to the host.

The choice is that of the CPU sampler for the same key: Gumbel-max over Philox 4x32-10 noise, in fp64 where the CPU is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.random import philox_impl

SAMPLE_BLOCK = 1024
"""Tokens per step of a row's loop."""
SAMPLE_WARPS = 16


@triton.jit
def distances(
    logits: tl.tensor, token: tl.tensor, vocab_size: tl.tensor, best: tl.tensor, floor: tl.tensor
) -> tl.tensor:
    """``logits - best`` in fp32, at most 0; -inf for what is masked, past the vocabulary or below ``floor``."""
    distance = tl.load(logits + token, mask=token < vocab_size, other=float("-inf")) - best
    return tl.where(distance >= floor, distance, float("-inf"))


@triton.jit
def ordered_bits(distance: tl.tensor) -> tl.tensor:
    """int32 that orders as the distances do: 0 for 0, and the further below, the more negative."""
    return -(tl.abs(distance).to(tl.int32, bitcast=True))


@triton.jit
def count_above(
    logits: tl.tensor, vocab_size: tl.tensor, best: tl.tensor, floor: tl.tensor, bits: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """How many tokens lie strictly above the distance of ``bits``."""
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        distance = distances(logits, start + tl.arange(0, BLOCK), vocab_size, best, floor)
        count += ((ordered_bits(distance) > bits) & (distance > float("-inf"))).to(tl.int32)
    return tl.sum(count)


@triton.jit
def mass_above(
    logits: tl.tensor,
    vocab_size: tl.tensor,
    best: tl.tensor,
    floor: tl.tensor,
    bits: tl.tensor,
    temperature: tl.tensor,
    cut_bits: tl.tensor,
    cut_rank: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Sum of exp(distance / temperature), fp64, over kept tokens strictly above the distance of ``bits``. Kept are
    those above ``cut_bits`` and, of those at it, the first ``cut_rank``."""
    mass = tl.zeros([BLOCK], tl.float64)
    for start in range(0, vocab_size, BLOCK):
        distance = distances(logits, start + tl.arange(0, BLOCK), vocab_size, best, floor)
        own = ordered_bits(distance)
        weight = tl.exp(distance.to(tl.float64) / temperature)
        mass += tl.where((own > bits) & (own > cut_bits) & (distance > float("-inf")), weight, 0.0)
    total = tl.sum(mass)
    if cut_bits > bits:
        total += cut_rank * tl.exp(-tl.abs(cut_bits).to(tl.float32, bitcast=True).to(tl.float64) / temperature)
    return total


@triton.jit
def sample_kernel(
    logits: tl.tensor,
    tokens: tl.tensor,
    temperatures: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    min_ps: tl.tensor,
    keys: tl.tensor,
    vocab_size: tl.tensor,
    row_stride: tl.tensor,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The next token of a row: ``tokens[row]``, or -1 where every logit is -inf or one is NaN.

    ``logits`` ``[rows, vocabulary]`` fp32 after penalties and masks. ``temperatures``, ``top_ps``, ``min_ps`` fp64 and
    ``top_ks`` int32, ``[rows]``; 0, 1, 0 and 0 mean none. ``keys`` ``[rows, 5]`` int64: words of 32 bits of seed and
    stream, low one first, then the token's position. ``SPAN``: what lies further below the best than the widest spread
    of the noise cannot be drawn. Top-k and top-p look for their threshold by halving the interval of bit patterns, 31
    passes over the row each, which stays in the cache.
    """
    row = tl.program_id(0)
    own = logits + row.to(tl.int64) * row_stride
    lane = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        value = tl.load(own + start + lane, mask=start + lane < vocab_size, other=float("-inf"))
        broken += (value != value).to(tl.int32)  # noqa: PLR0124  # true of NaN only
        top = tl.maximum(top, value)
    best = tl.max(top)
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    min_p = tl.load(min_ps + row)
    greedy = temperature <= 0.0
    divisor = tl.where(greedy, 1.0, temperature)

    floor = float("-inf")
    if top_p >= 1.0:
        floor = (-SPAN * divisor).to(tl.float32)
    if greedy:
        floor = 0.0
    # The least bit pattern that is kept, and how many of those at it: everything, to begin with.
    cut_bits = -2139095040  # of -inf
    cut_rank = 0
    if (top_k > 0) & (temperature > 0.0):  # noqa: SIM102  # kernels have no short circuit
        if count_above(own, vocab_size, best, floor, cut_bits, BLOCK) > top_k:
            low = cut_bits  # more than k lie above it
            high = 0  # at most k - 1 lie above it
            for _ in range(31):
                middle = low + (high - low) // 2
                enough = count_above(own, vocab_size, best, floor, middle, BLOCK) < top_k
                high = tl.where(enough & (high - low > 1), middle, high)
                low = tl.where((enough == 0) & (high - low > 1), middle, low)
            cut_bits = high
            cut_rank = top_k - count_above(own, vocab_size, best, floor, high, BLOCK)
    if (top_p < 1.0) & (temperature > 0.0):
        target = top_p * mass_above(own, vocab_size, best, floor, -2147483647, divisor, cut_bits, cut_rank, BLOCK)
        low = cut_bits - 1  # the mass above it reaches the target
        high = 0
        for _ in range(32):
            middle = low + (high - low) // 2
            mass = mass_above(own, vocab_size, best, floor, middle, divisor, cut_bits, cut_rank, BLOCK)
            high = tl.where((mass < target) & (high - low > 1), middle, high)
            low = tl.where((mass >= target) & (high - low > 1), middle, low)
        above = mass_above(own, vocab_size, best, floor, high, divisor, cut_bits, cut_rank, BLOCK)
        each = tl.exp(-tl.abs(high).to(tl.float32, bitcast=True).to(tl.float64) / divisor)
        rank = tl.ceil((target - above) / each).to(tl.int32)  # before the j-th of equals stands the mass of j others
        rank = tl.maximum(rank, 1)
        cut_rank = tl.where(high == cut_bits, tl.minimum(rank, cut_rank), rank)
        cut_bits = high
    least = tl.full([], float("-inf"), tl.float64)
    if min_p > 0.0:
        least = tl.log(min_p)

    seed_low = tl.load(keys + row * 5).to(tl.uint32)
    seed_high = tl.load(keys + row * 5 + 1).to(tl.uint32)
    stream_low = tl.load(keys + row * 5 + 2).to(tl.uint32)
    stream_high = tl.load(keys + row * 5 + 3).to(tl.uint32)
    position = tl.load(keys + row * 5 + 4).to(tl.uint32)
    zeros = tl.zeros([BLOCK], tl.uint32)
    best_score = tl.full([BLOCK], float("-inf"), tl.float64)
    best_token = tl.full([BLOCK], 2147483647, tl.int32)
    ties = 0
    for start in range(0, vocab_size, BLOCK):
        token = start + lane
        distance = distances(own, token, vocab_size, best, floor)
        bits = ordered_bits(distance)
        tied = ((bits == cut_bits) & (distance > float("-inf"))).to(tl.int32)
        rank = ties + tl.cumsum(tied) - tied
        ties += tl.sum(tied)
        scaled = distance.to(tl.float64) / divisor
        kept = (bits > cut_bits) | ((tied > 0) & (rank < cut_rank))
        kept = kept & (distance > float("-inf")) & (scaled >= least)
        word0, word1, word2, word3 = philox_impl(
            (token // 4).to(tl.uint32),
            zeros + position,
            zeros + stream_low,
            zeros + stream_high,
            zeros + seed_low,
            zeros + seed_high,
            10,
        )
        pick = token % 4
        word = tl.where(pick == 0, word0, tl.where(pick == 1, word1, tl.where(pick == 2, word2, word3)))
        uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2 ** -32
        noise = -tl.log(-tl.log(uniform))
        score = tl.where(greedy, scaled, scaled + noise)
        score = tl.where(kept, score, float("-inf"))
        better = score > best_score  # on a tie the earlier token stays
        best_token = tl.where(better, token, best_token)
        best_score = tl.where(better, score, best_score)
    winner = tl.max(best_score)
    choice = tl.min(tl.where((best_score == winner) & (best_score > float("-inf")), best_token, 2147483647))
    usable = (best > float("-inf")) & (best < float("inf")) & (tl.sum(broken) == 0)
    tl.store(tokens + row, tl.where(usable, choice, -1))


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """What decides the draw of each row, as tensors on the device."""

    temperature: torch.Tensor
    """[rows] fp64, 0 = greedy."""
    top_k: torch.Tensor
    """[rows] int32, 0 = all."""
    top_p: torch.Tensor
    """[rows] fp64, 1 = all."""
    min_p: torch.Tensor
    """[rows] fp64, 0 = all."""
    keys: torch.Tensor
    """[rows, 5] int64: low and high word of the seed, of the stream, and the token's position."""


def sample_tokens(logits: torch.Tensor, rows: SamplingRows, *, span: float, block: int = SAMPLE_BLOCK) -> torch.Tensor:
    """Draw one token per row of ``logits`` ``[rows, vocabulary]`` fp32; returns ``[rows]`` int32, -1 for a row whose
    logits hold NaN or infinity or allow nothing. ``span`` is the widest spread of the Gumbel noise."""
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError(f"logits must be fp32 with adjacent ids, not {logits.dtype} of stride {logits.stride(1)}")
    tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    sample_kernel[(len(logits),)](
        *(logits, tokens, rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.keys),
        *(logits.shape[1], logits.stride(0)),
        SPAN=span,
        BLOCK=block,
        num_warps=SAMPLE_WARPS,
    )
    return tokens
