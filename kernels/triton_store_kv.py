"""Scatter a step's K and V rows to their slots in the pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def store_kv_kernel(
    key: tl.tensor,
    value: tl.tensor,
    k_pool: tl.tensor,
    v_pool: tl.tensor,
    write_rows: tl.tensor,
    write_slots: tl.tensor,
    key_row_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_row_stride: tl.tensor,
    value_head_stride: tl.tensor,
    k_inverse_scale: tl.tensor,
    v_inverse_scale: tl.tensor,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    FP8_MAX: tl.constexpr,
) -> None:
    """One program per write: row ``write_rows[i]`` of ``key`` and ``value`` ``[rows, heads, dim]`` goes to physical
    slot ``write_slots[i]``; slot -1 is skipped, which is how a captured graph is padded.

    ``FP8_MAX`` above 0 says that the pool is fp8: numbers are multiplied by the inverse scales and clamped to it, since
    e4m3 has no infinity and would turn an overflow into NaN.
    """
    slot = tl.load(write_slots + tl.program_id(0)).to(tl.int64)
    if slot >= 0:
        row = tl.load(write_rows + tl.program_id(0)).to(tl.int64)
        heads = tl.arange(0, HEADS_PAD)
        dims = tl.arange(0, DIM_PAD)
        mask = (heads < HEADS)[:, None] & (dims < DIM)[None, :]
        target = slot * (HEADS * DIM) + heads[:, None] * DIM + dims[None, :]
        k = tl.load(key + row * key_row_stride + heads[:, None] * key_head_stride + dims[None, :], mask=mask, other=0.0)
        v = tl.load(
            value + row * value_row_stride + heads[:, None] * value_head_stride + dims[None, :], mask=mask, other=0.0
        )
        if FP8_MAX > 0:
            k = tl.minimum(tl.maximum(k.to(tl.float32) * k_inverse_scale, -FP8_MAX), FP8_MAX)
            v = tl.minimum(tl.maximum(v.to(tl.float32) * v_inverse_scale, -FP8_MAX), FP8_MAX)
        tl.store(k_pool + target, k.to(k_pool.dtype.element_ty), mask=mask)
        tl.store(v_pool + target, v.to(v_pool.dtype.element_ty), mask=mask)


def reference_store(
    pool: torch.Tensor, rows: torch.Tensor, write_rows: torch.Tensor, write_slots: torch.Tensor, scale: float = 1.0
) -> None:
    """Write ``rows`` ``[rows, heads, dim]`` to ``pool`` ``[blocks, 16, heads, dim]`` in place, in plain torch."""
    kept = write_slots >= 0
    data = rows[write_rows[kept].long()]
    if pool.dtype.itemsize == 1:
        limit = torch.finfo(pool.dtype).max
        data = (data.float() / scale).clamp(-limit, limit)
    pool.view(-1, *pool.shape[2:])[write_slots[kept].long()] = data.to(pool.dtype)
