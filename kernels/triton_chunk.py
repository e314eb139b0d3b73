"""Device functions of tree attention: one tile of query rows against one chunk of KV, and the fold over chunks.

Both ways of attending (work items with a merge, and rows that walk their chunks themselves) call the same two
functions, so a row's result has the same bits whichever way it came. Log-sum-exps are in base 2 throughout.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fold_partial(
    out: tl.tensor, lse: tl.tensor, chunk_out: tl.tensor, chunk_lse: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Fold one chunk's normalised ``(out [rows, dim], lse [rows])`` into the running pair.

    An empty pair (lse -inf) weighs nothing on either side, and two empty ones stay empty: 0 and -inf, never NaN
    (flashinfer #4051 is what happens without the guard). The weights are computed first and then multiplied, and the
    fused multiply-add is written out, so that no compiler's choice can tell two callers apart.
    """
    top = tl.maximum(lse, chunk_lse)
    top = tl.where(top == float("-inf"), 0.0, top)
    old = tl.exp2(lse - top)
    new = tl.exp2(chunk_lse - top)
    total = old + new
    divisor = tl.where(total > 0.0, total, 1.0)
    old = old / divisor
    new = new / divisor
    out = tl.fma(tl.broadcast_to(new[:, None], out.shape), chunk_out, out * old[:, None])
    return out, tl.where(total > 0.0, top + tl.log2(divisor), float("-inf"))


@triton.jit
def product(a: tl.tensor, b: tl.tensor, acc: tl.tensor, UPCAST: tl.constexpr, PRECISION: tl.constexpr) -> tl.tensor:
    """``acc + a @ b`` in fp32. ``UPCAST`` widens the operands first: the interpreter multiplies the bit patterns of
    bf16 (triton #11585), and has no products of fp8."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def attend_chunk(
    query: tl.tensor,
    query_rope: tl.tensor,
    query_position: tl.tensor,
    k_pool: tl.tensor,
    v_pool: tl.tensor,
    chunk_blocks: tl.tensor,
    chunk_start: tl.tensor,
    num_slots: tl.tensor,
    first_slot: tl.tensor,
    kv_head: tl.tensor,
    slot_stride: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    window: tl.tensor,
    v_scale: tl.tensor,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    LATENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    ROW_DOT: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Normalised output ``[BLOCK_M, DIM_PAD]`` fp32 and base-2 log-sum-exp ``[BLOCK_M]`` over one chunk's slots.

    ``query`` is ``[BLOCK_M, DIM_PAD]``, ``query_position`` its rows' absolute positions (-1 = no row). The chunk holds
    positions ``chunk_start .. chunk_start + num_slots - 1``, its physical blocks are listed at ``chunk_blocks``; slots
    below ``first_slot`` (a multiple of BLOCK_N) are seen by no row. ``scale`` holds the softmax scale (times log2 e
    without a soft cap) and the scale of fp8 keys. With ``LATENT`` the values are the keys' first ``DIM`` numbers, and
    ``query_rope`` ``[BLOCK_M, ROPE_DIM]`` meets the ``ROPE_DIM`` numbers after them (DeepSeek-V2, arXiv 2405.04434).
    Rows that see no slot come back as 0 and -inf.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    dims = tl.arange(0, DIM_PAD)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
    for start in range(first_slot, num_slots, BLOCK_N):
        slot = start + tl.arange(0, BLOCK_N)
        written = slot < num_slots
        block = tl.load(chunk_blocks + slot // BLOCK_SIZE, mask=written, other=0).to(tl.int64)
        base = (block * BLOCK_SIZE + slot % BLOCK_SIZE) * slot_stride + kv_head * (DIM + ROPE_DIM)
        # Slots that were never written may hold NaN: they are not loaded, since 0 * NaN is NaN.
        loaded = written[:, None] & (dims < DIM)[None, :]
        key = tl.load(k_pool + base[:, None] + dims[None, :], mask=loaded, other=0.0).to(query.dtype)
        if LATENT:
            value = key
        else:
            value = tl.load(v_pool + base[:, None] + dims[None, :], mask=loaded, other=0.0).to(query.dtype)

        if ROW_DOT:
            wide = key.to(tl.float32)
            scores = tl.sum(query.to(tl.float32)[:, None, :] * wide[None, :, :], axis=2)
        else:
            scores = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            scores = product(query, tl.trans(key), scores, UPCAST, PRECISION)
        if ROPE_DIM > 0:
            rope = tl.arange(0, ROPE_DIM)
            key_rope = tl.load(k_pool + base[:, None] + DIM + rope[None, :], mask=written[:, None], other=0.0)
            key_rope = key_rope.to(query.dtype)
            if ROW_DOT:
                wide = key_rope.to(tl.float32)
                scores += tl.sum(query_rope.to(tl.float32)[:, None, :] * wide[None, :, :], axis=2)
            else:
                scores = product(query_rope, tl.trans(key_rope), scores, UPCAST, PRECISION)
        scores = scores * scale
        if HAS_SOFTCAP:
            # tanh(x) = 1 - 2 / (exp(2x) + 1): the exponential may overflow, the quotient cannot.
            scores = softcap * (1.0 - 2.0 / (tl.exp2(scores / softcap * (2.0 * LOG2_E)) + 1.0)) * LOG2_E

        position = chunk_start + slot
        seen = written[None, :] & (position[None, :] <= query_position[:, None])
        if HAS_WINDOW:
            seen = seen & (position[None, :] > query_position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen nothing yet
        weights = tl.exp2(scores - shift[:, None])
        old = tl.exp2(top - shift)
        total = total * old + tl.sum(weights, axis=1)
        acc = acc * old[:, None]
        weights = weights.to(value.dtype)
        if ROW_DOT:
            acc += tl.sum(weights.to(tl.float32)[:, :, None] * value.to(tl.float32)[None, :, :], axis=1)
        else:
            acc = product(weights, value, acc, UPCAST, PRECISION)
        top = new_top
    divisor = tl.where(total > 0.0, total, 1.0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    lse = tl.where(total > 0.0, shift + tl.log2(divisor), float("-inf"))
    return acc / divisor[:, None] * v_scale, lse
