"""Tree attention, second pass: each row's partials merged in chunk order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .triton_chunk import fold_partial


@triton.jit
def merge_partials_kernel(
    partial_out: tl.tensor,
    partial_lse: tl.tensor,
    merge_rows: tl.tensor,
    merge_starts: tl.tensor,
    merge_entries: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    out_row_stride: tl.tensor,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_H: tl.constexpr,
    HAS_SINKS: tl.constexpr,
) -> None:
    """One program per (row to merge, tile of heads).

    Merges ``merge_entries[merge_starts[i] : merge_starts[i + 1]]``, rows of ``partial_out`` ``[entries, heads, dim]``
    and ``partial_lse`` ``[entries, heads]``, in that order, into row ``merge_rows[i]`` of ``out``; -1 there writes
    nothing. A row without entries gets 0. ``sinks`` ``[heads]`` take weight and give no value.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    row = tl.load(merge_rows + tl.program_id(0))
    if row >= 0:
        head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
        valid = head < HEADS
        dims = tl.arange(0, DIM_PAD)
        stored = valid[:, None] & (dims < DIM)[None, :]
        acc = tl.zeros([BLOCK_H, DIM_PAD], tl.float32)
        lse = tl.full([BLOCK_H], float("-inf"), tl.float32)
        start = tl.load(merge_starts + tl.program_id(0))
        stop = tl.load(merge_starts + tl.program_id(0) + 1)
        for i in range(start, stop):
            source = tl.load(merge_entries + i).to(tl.int64) * HEADS + head
            chunk_out = tl.load(partial_out + source[:, None] * DIM + dims[None, :], mask=stored, other=0.0)
            chunk_lse = tl.load(partial_lse + source, mask=valid, other=float("-inf"))
            acc, lse = fold_partial(acc, lse, chunk_out, chunk_lse)
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=valid, other=float("-inf")).to(tl.float32) * LOG2_E
            acc, lse = fold_partial(acc, lse, tl.zeros([BLOCK_H, DIM_PAD], tl.float32), sink)
        target = row.to(tl.int64) * out_row_stride + head * DIM
        tl.store(out + target[:, None] + dims[None, :], acc.to(out.dtype.element_ty), mask=stored)


def reference_merge(
    partial_out: torch.Tensor, partial_lse: torch.Tensor, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """Merge ``partial_out`` ``[chunks, heads, dim]`` by base-2 ``partial_lse`` ``[chunks, heads]`` in fp64: returns
    ``[heads, dim]``, 0 where every chunk is empty. ``sinks`` ``[heads]`` are natural logits."""
    lse = partial_lse.double()
    if sinks is not None:
        lse = torch.cat([lse, sinks.double()[None] / torch.log(torch.tensor(2.0, dtype=torch.float64))])
    top = lse.amax(0).nan_to_num(neginf=0.0)
    weights = torch.exp2(lse - top)
    weights = weights / weights.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.einsum("ch,chd->hd", weights[: len(partial_out)], partial_out.double())
