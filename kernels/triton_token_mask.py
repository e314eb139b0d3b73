"""A grammar's packed bitmask laid over the logits of the whole batch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def apply_token_mask_kernel(
    logits: tl.tensor,
    masks: tl.tensor,
    mask_rows: tl.tensor,
    vocab_size: tl.tensor,
    logits_row_stride: tl.tensor,
    mask_row_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (row, stretch of the vocabulary): logits whose bit is 0 become -inf, in place.

    Row i of ``logits`` takes row ``mask_rows[i]`` of ``masks`` ``[masks, words]`` int32, token t its bit t % 32 of word
    t // 32; -1 there leaves the row as it is. Rows under one constraint state share a mask.
    """
    row = tl.load(mask_rows + tl.program_id(0))
    if row >= 0:
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = token < vocab_size
        word = tl.load(masks + row.to(tl.int64) * mask_row_stride + token // 32, mask=inside, other=0)
        forbidden = ((word >> (token % 32)) & 1) == 0
        at = logits + tl.program_id(0).to(tl.int64) * logits_row_stride + token
        tl.store(at, tl.full([BLOCK], float("-inf"), logits.dtype.element_ty), mask=inside & forbidden)


def reference_token_mask(logits: torch.Tensor, masks: torch.Tensor, mask_rows: torch.Tensor) -> torch.Tensor:
    """The masked copy of ``logits`` ``[rows, vocabulary]`` in plain torch."""
    token = torch.arange(logits.shape[1])
    allowed = ((masks[mask_rows.clamp_min(0).long()][:, token // 32] >> (token % 32)) & 1).bool()
    return torch.where(allowed | (mask_rows < 0)[:, None], logits, -torch.inf)


def apply_token_mask(logits: torch.Tensor, masks: torch.Tensor, mask_rows: torch.Tensor) -> None:
    """Set what ``masks`` ``[masks, words]`` int32 forbids to -inf in ``logits`` ``[rows, vocabulary]``, in place and in
    one launch. ``mask_rows`` ``[rows]`` int32 names each row's mask, -1 for none."""
    rows, vocabulary = logits.shape
    if masks.shape[1] * 32 < vocabulary:
        raise ValueError(f"masks of {masks.shape[1]} words cover fewer than the {vocabulary} ids of the logits")
    block = 1024
    apply_token_mask_kernel[(rows, -(-vocabulary // block))](
        *(logits, masks, mask_rows, vocabulary, logits.stride(0), masks.stride(0)), BLOCK=block
    )
