"""A linear layer whose rows cannot see each other: one tile for every batch size, and no split of the inner sum.

What varies with the number of rows in a vendor's library is the tile and the split of the inner dimension; with both
fixed, a row of the product is one sequence of operations (batch_invariant_ops does the same for PyTorch's products).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .triton_chunk import product

LINEAR_TILE = (64, 128, 64)
"""Rows, output features and inner step of the tile."""
LINEAR_WARPS = 4
LINEAR_STAGES = 3


@triton.jit
def linear_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    out_features: tl.tensor,
    x_row_stride: tl.tensor,
    weight_row_stride: tl.tensor,
    out_row_stride: tl.tensor,
    IN_FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROW_DOT: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """One program per tile of ``out`` ``[rows, out_features]`` = ``x`` ``[rows, in]`` @ ``weight`` ``[out, in]``.T."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_at = row.to(tl.int64) * x_row_stride
    weight_at = column.to(tl.int64) * weight_row_stride
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, IN_FEATURES, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        inside = inner < IN_FEATURES
        a = tl.load(x + x_at[:, None] + inner[None, :], mask=(row < num_rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(
            weight + weight_at[:, None] + inner[None, :],
            mask=(column < out_features)[:, None] & inside[None, :],
            other=0.0,
        )
        if ROW_DOT:
            acc += tl.sum(a.to(tl.float32)[:, None, :] * b.to(tl.float32)[None, :, :], axis=2)
        else:
            acc = product(a, tl.trans(b), acc, UPCAST, "ieee")
    if HAS_BIAS:
        acc += tl.load(bias + column, mask=column < out_features, other=0.0).to(tl.float32)[None, :]
    target = row.to(tl.int64)[:, None] * out_row_stride + column[None, :]
    tl.store(
        out + target, acc.to(out.dtype.element_ty), mask=(row < num_rows)[:, None] & (column < out_features)[None, :]
    )


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, row_dot: bool = False
) -> torch.Tensor:
    """``x`` ``[rows, in]`` @ ``weight`` ``[out, in]``.T + ``bias`` ``[out]``; a row's bits depend on the row alone.

    ``row_dot`` is for Triton's interpreter, whose BLAS rounds a row by its place in the matrix.
    """
    rows, inner = x.shape
    out = torch.empty((rows, len(weight)), dtype=x.dtype, device=x.device)
    block_m, block_n, block_k = LINEAR_TILE
    if row_dot:
        block_m, block_n, block_k = 16, 16, 64  # the sums of one step stay small
    linear_kernel[(-(-rows // block_m), -(-len(weight) // block_n))](
        *(x, weight, weight if bias is None else bias, out, rows, len(weight)),
        *(x.stride(0), weight.stride(0), out.stride(0)),
        IN_FEATURES=inner,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        HAS_BIAS=bias is not None,
        ROW_DOT=row_dot,
        UPCAST=bool(triton.knobs.runtime.interpret),
        num_warps=LINEAR_WARPS,
        num_stages=LINEAR_STAGES,
        enable_fp_fusion=False,
    )
    return out


def reference_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The same in fp64 and plain torch."""
    out = x.double() @ weight.double().T
    return out if bias is None else out + bias.double()
