"""Tree attention, first pass: work items of (KV chunk x query rows) to partial outputs and log-sum-exps."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .triton_chunk import attend_chunk


@triton.jit(do_not_specialize=["window"])
def tree_attention_kernel(
    query: tl.tensor,
    k_pool: tl.tensor,
    v_pool: tl.tensor,
    items: tl.tensor,
    num_items: tl.tensor,
    blocks: tl.tensor,
    item_rows: tl.tensor,
    positions: tl.tensor,
    partial_out: tl.tensor,
    partial_lse: tl.tensor,
    query_row_stride: tl.tensor,
    query_head_stride: tl.tensor,
    slot_stride: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    window: tl.tensor,
    v_scale: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_HEADS: tl.constexpr,
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
) -> None:
    """One program per (work item, KV head, tile of its query heads); programs stride over the items.

    ``items`` ``[n, 4]`` int32: absolute start of the chunk, slots read, offset into ``blocks``, offset into
    ``item_rows``; the rows end where the next item's begin, so there is one closing entry. Tile row m is query row
    m // TILE_HEADS of the item and head m % TILE_HEADS of the tile. The partial of entry r of ``item_rows`` is row r of
    ``partial_out`` ``[entries, heads, dim]`` fp32 and ``partial_lse`` ``[entries, heads]`` fp32 (base 2).
    ``num_items`` is read on the device, so a captured graph's grid may be larger or smaller than the items.
    """
    HEAD_TILES: tl.constexpr = (GROUP + TILE_HEADS - 1) // TILE_HEADS
    kv_head = tl.program_id(1) // HEAD_TILES
    first_head = (tl.program_id(1) % HEAD_TILES) * TILE_HEADS
    tile_row = tl.arange(0, BLOCK_M)
    own_row = tile_row // TILE_HEADS
    group_head = first_head + tile_row % TILE_HEADS
    head = kv_head * GROUP + group_head
    dims = tl.arange(0, DIM_PAD)
    for item in range(tl.program_id(0), tl.load(num_items), tl.num_programs(0)):
        chunk_start = tl.load(items + item * 4)
        num_slots = tl.load(items + item * 4 + 1)
        block_offset = tl.load(items + item * 4 + 2)
        row_offset = tl.load(items + item * 4 + 3)
        num_rows = tl.load(items + item * 4 + 7) - row_offset
        valid = (own_row < num_rows) & (group_head < GROUP)
        row = tl.load(item_rows + row_offset + own_row, mask=valid, other=0)
        position = tl.load(positions + row, mask=valid, other=-1)
        at = row.to(tl.int64) * query_row_stride + head * query_head_stride
        q = tl.load(query + at[:, None] + dims[None, :], mask=valid[:, None] & (dims < DIM)[None, :], other=0.0)
        q_rope = q
        if ROPE_DIM > 0:
            rope = tl.arange(0, ROPE_DIM)
            q_rope = tl.load(query + at[:, None] + DIM + rope[None, :], mask=valid[:, None], other=0.0)
        first_slot = 0
        if HAS_WINDOW:
            lowest = tl.min(tl.where(valid, position, 2147483647)) - window + 1 - chunk_start
            first_slot = tl.maximum(lowest, 0) // BLOCK_N * BLOCK_N
        out, lse = attend_chunk(
            q,
            q_rope,
            position,
            k_pool,
            v_pool,
            blocks + block_offset,
            chunk_start,
            num_slots,
            first_slot,
            kv_head,
            slot_stride,
            scale,
            softcap,
            window,
            v_scale,
            DIM,
            DIM_PAD,
            ROPE_DIM,
            LATENT,
            BLOCK_M,
            BLOCK_N,
            BLOCK_SIZE,
            HAS_SOFTCAP,
            HAS_WINDOW,
            ROW_DOT,
            UPCAST,
            PRECISION,
        )
        target = (row_offset + own_row).to(tl.int64) * HEADS + head
        tl.store(partial_out + target[:, None] * DIM + dims[None, :], out, mask=valid[:, None] & (dims < DIM)[None, :])
        tl.store(partial_lse + target, lse, mask=valid)


def reference_tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_position: torch.Tensor,
    key_position: torch.Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One item in plain torch and fp64: ``query`` ``[rows, heads, dim]`` against ``key`` ``[slots, kv_heads, dim]`` and
    ``value`` ``[slots, kv_heads, value dim]`` at absolute positions ``[rows]`` and ``[slots]``.

    Returns the output ``[rows, heads, value dim]`` and the base-2 log-sum-exp ``[rows, heads]``; 0 and -inf for rows
    that see no slot.
    """
    group = query.shape[1] // key.shape[1]
    wide_key = key.double().repeat_interleave(group, 1)
    wide_value = value.double().repeat_interleave(group, 1)
    scores = torch.einsum("rhd,shd->rhs", query.double(), wide_key) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    seen = key_position[None, :] <= query_position[:, None]
    if window is not None:
        seen &= key_position[None, :] > query_position[:, None] - window
    scores = scores.masked_fill(~seen[:, None, :], -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    out = torch.einsum("rhs,shd->rhd", weights, wide_value)
    return out, torch.logsumexp(scores, -1) / torch.log(torch.tensor(2.0, dtype=torch.float64))
