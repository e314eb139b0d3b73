"""RMSNorm whose rows cannot see each other: one row per program, one fixed block."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    row_stride: tl.tensor,
    epsilon: tl.tensor,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
) -> None:
    """``out[row] = weight * x[row] / sqrt(mean(x[row] ** 2) + epsilon)``; the mean and the quotient in fp32, rounded to
    the type of ``x`` before the weight, as transformers' Llama does."""
    at = tl.arange(0, SIZE_PAD)
    inside = at < SIZE
    row = tl.program_id(0).to(tl.int64)
    data = tl.load(x + row * row_stride + at, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(data * data) / SIZE + epsilon)
    scale = tl.load(weight + at, mask=inside, other=0.0)
    # Rounded before the weight; the product of two rounded numbers is exact in fp32, so it may be taken there.
    normed = (data * inverse).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * SIZE + at, (normed * scale.to(tl.float32)).to(out.dtype.element_ty), mask=inside)


def reference_rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The same in fp64 and plain torch."""
    wide = x.double()
    return weight.double() * wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Normalise ``x`` ``[rows, size]``; a row's bits depend on nothing but the row."""
    rows, size = x.shape
    out = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    rms_norm_kernel[(rows,)](
        *(x, weight, out, x.stride(0), epsilon),
        SIZE=size,
        SIZE_PAD=1 << (size - 1).bit_length(),
        num_warps=8,
        enable_fp_fusion=False,
    )
    return out
