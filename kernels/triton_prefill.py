"""Prefill: query rows that walk their own chunks, so that they need no partial rows and no merge."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_chunk import attend_chunk, fold_partial


@triton.jit(do_not_specialize=["window"])
def prefill_attention_kernel(
    query: tl.tensor,
    k_pool: tl.tensor,
    v_pool: tl.tensor,
    tiles: tl.tensor,
    num_tiles: tl.tensor,
    blocks: tl.tensor,
    positions: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    query_row_stride: tl.tensor,
    query_head_stride: tl.tensor,
    out_row_stride: tl.tensor,
    slot_stride: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    window: tl.tensor,
    v_scale: tl.tensor,
    GROUP: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    LATENT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CHUNK_SIZE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    ROW_DOT: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One program per (tile of consecutive query rows, KV head, tile of its query heads).

    ``tiles`` ``[n, 4]`` int32: first query row, number of rows, offset of their sequence's block table in ``blocks``,
    first chunk that any of them sees. A tile's rows belong to one sequence. Each chunk's partial result is folded into
    the running pair in the order and by the formula of the merge kernel; a chunk that a row does not see folds in with
    weight zero and moves no bit. The result goes to ``out`` at once.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    HEAD_TILES: tl.constexpr = (GROUP + TILE_HEADS - 1) // TILE_HEADS
    kv_head = tl.program_id(1) // HEAD_TILES
    first_head = (tl.program_id(1) % HEAD_TILES) * TILE_HEADS
    tile_row = tl.arange(0, BLOCK_M)
    own_row = tile_row // TILE_HEADS
    group_head = first_head + tile_row % TILE_HEADS
    head = kv_head * GROUP + group_head
    dims = tl.arange(0, DIM_PAD)
    for tile in range(tl.program_id(0), tl.load(num_tiles), tl.num_programs(0)):
        first_row = tl.load(tiles + tile * 4)
        num_rows = tl.load(tiles + tile * 4 + 1)
        table = blocks + tl.load(tiles + tile * 4 + 2)
        first_chunk = tl.load(tiles + tile * 4 + 3)
        valid = (own_row < num_rows) & (group_head < GROUP)
        row = first_row + own_row
        position = tl.load(positions + row, mask=valid, other=-1)
        at = row.to(tl.int64) * query_row_stride + head * query_head_stride
        stored = valid[:, None] & (dims < DIM)[None, :]
        q = tl.load(query + at[:, None] + dims[None, :], mask=stored, other=0.0)
        q_rope = q
        if ROPE_DIM > 0:
            rope = tl.arange(0, ROPE_DIM)
            q_rope = tl.load(query + at[:, None] + DIM + rope[None, :], mask=valid[:, None], other=0.0)
        acc = tl.zeros([BLOCK_M, DIM_PAD], tl.float32)
        lse = tl.full([BLOCK_M], float("-inf"), tl.float32)
        end = tl.max(position) + 1
        lowest = 0
        if HAS_WINDOW:
            lowest = tl.min(tl.where(valid, position, 2147483647)) - window + 1
        for chunk_start in range(first_chunk * CHUNK_SIZE, end, CHUNK_SIZE):
            first_slot = tl.maximum(lowest - chunk_start, 0) // BLOCK_N * BLOCK_N
            chunk_out, chunk_lse = attend_chunk(
                q,
                q_rope,
                position,
                k_pool,
                v_pool,
                table + chunk_start // BLOCK_SIZE,
                chunk_start,
                tl.minimum(end - chunk_start, CHUNK_SIZE),
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
            acc, lse = fold_partial(acc, lse, chunk_out, chunk_lse)
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=valid, other=float("-inf")).to(tl.float32) * LOG2_E
            acc, lse = fold_partial(acc, lse, tl.zeros([BLOCK_M, DIM_PAD], tl.float32), sink)
        target = row.to(tl.int64) * out_row_stride + head * DIM
        tl.store(out + target[:, None] + dims[None, :], acc.to(out.dtype.element_ty), mask=stored)
