"""Linear layers for fp32 on a CPU: fast at few rows, and with rows that do not depend on their neighbours.

``torch.mm(weight, x.T)`` costs the same from 2 to 16 rows (SmolLM2-135M, all linears and the head, 2 threads: 51-58 ms)
where ``F.linear`` costs 2 to 3 times as much. A product's bits depend on the number of rows in two ways, both seen with
MKL 2024.2: one row is a matrix-vector product, and an inner dimension above about 700 is cut into parts whose size
depends on the rows. So rows are padded to a multiple of ``ROW_UNIT`` and the inner dimension is cut here, in parts of
at most ``MAX_INNER``, added in order. Then a row's bits were equal at every batch of 2 to 512 rows, at any offset, with
1, 2 and 4 threads, on twenty shapes; the cut costs 0-5 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

ROW_UNIT = 4
"""Rows of a step are padded to a multiple of this at least: 2 would do for the products, 4 for most vector loops."""
_MIN_OUTPUTS = 32
_VECTOR = 32
"""Floats that an elementwise loop takes at once: two registers of AVX-512. What is left over is done in scalar code."""
MAX_ROW_UNIT = _VECTOR
"""Rows to which the activations of an odd width are padded."""
MAX_INNER = 640
"""Longest inner dimension of one product."""


class InvariantLinear(nn.Module):
    """``x @ weight.T + bias``, each row's bits a function of that row alone from 2 rows on."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.out_features, self.in_features = weight.shape
        self._cuts = _cuts(self.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` ``[..., in]`` to ``[..., out]``, contiguous."""
        columns = x.reshape(-1, self.in_features).t()
        start, stop = self._cuts[0]
        out = torch.mm(self.weight[:, start:stop], columns[start:stop])
        for start, stop in self._cuts[1:]:
            out.addmm_(self.weight[:, start:stop], columns[start:stop])
        rows = out.t().contiguous().view(*x.shape[:-1], self.out_features)
        return rows if self.bias is None else rows.add_(self.bias)


class TiledLinear(InvariantLinear):
    """The same 16 rows at a time, for BLAS libraries whose products depend on the number of rows all the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        padded = functional.pad(rows, (0, 0, 0, -len(rows) % 16))
        tiles = [padded[start : start + 16] for start in range(0, len(padded), 16)]
        out = torch.cat([super(TiledLinear, self).forward(tile) for tile in tiles])
        return out[: len(rows)].view(*x.shape[:-1], self.out_features)


class FastLinear(InvariantLinear):
    """The fastest order of operands at each number of rows, without the promise: one row takes half the time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        if len(rows) == 1:
            return functional.linear(x, self.weight, self.bias)
        out = torch.mm(self.weight, rows.t()).t().contiguous().view(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out.add_(self.bias)


def row_unit(widths: Iterable[int]) -> int:
    """Rows to pad to so that tensors of these widths have no leftovers, whose exp differs in the last bit: 4 to 32."""
    return max([ROW_UNIT, *(_VECTOR // math.gcd(_VECTOR, width) for width in widths)])


def activation_widths(module: nn.Module, head: nn.Module | None) -> Iterator[int]:
    """Widths of the activations that ``module`` computes: outputs of linears but ``head``, and rotary angles."""
    for child in module.modules():
        if isinstance(child, nn.Linear | InvariantLinear) and child is not head:
            yield child.out_features
        for name, buffer in child.named_buffers(recurse=False):
            if name.endswith("inv_freq"):
                yield len(buffer)


def replace_linears(module: nn.Module, *, deterministic: bool) -> None:
    """Put our linears in the place of every ``nn.Linear`` and ``Conv1D``; parameters are shared, not copied.

    Under ``deterministic`` each shape is tried once, and where rows turn out to depend on their number
    ``TiledLinear`` stands in.
    """
    classes: dict[tuple[int, int], type[InvariantLinear]] = {}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is Conv1D:  # GPT-2's linear keeps its weight transposed
                weight, bias = cast("nn.Linear", child).weight.t(), cast("nn.Linear", child).bias
            elif type(child) is nn.Linear or isinstance(child, InvariantLinear):
                weight, bias = cast("nn.Linear", child).weight, cast("nn.Linear", child).bias
            else:
                continue
            if not deterministic:
                chosen: type[InvariantLinear] = FastLinear
            else:
                shape = (weight.shape[0], weight.shape[1])
                if shape not in classes:
                    classes[shape] = invariant_linear(weight)
                chosen = classes[shape]
            setattr(parent, name, chosen(weight, bias))


def invariant_linear(weight: torch.Tensor) -> type[InvariantLinear]:
    """The cheapest kind of linear that keeps rows independent at the shape and strides of ``weight``.

    With a few outputs BLAS shares the rows out among the threads, in parts that depend on their number (seen from 90
    rows on at 1, 4 and 8 outputs and 2 threads): such linears are tiled without a trial.
    """
    return InvariantLinear if len(weight) >= _MIN_OUTPUTS and is_row_invariant(weight) else TiledLinear


@torch.inference_mode()
def is_row_invariant(weight: torch.Tensor) -> bool:
    """Try ``InvariantLinear`` with ``weight``: whether 4, 16 and 64 rows give the same bits to the rows they share."""
    linear = InvariantLinear(weight, None)
    rows = torch.randn(64, weight.shape[1], generator=torch.Generator().manual_seed(0))
    whole = linear(rows)
    return all(torch.equal(linear(rows[a:b]), whole[a:b]) for a, b in ((0, 4), (60, 64), (3, 19)))


def _cuts(in_features: int) -> tuple[tuple[int, int], ...]:
    """Even parts of at most MAX_INNER, each but the last a multiple of 16."""
    parts = -(-in_features // MAX_INNER)
    size = -(-in_features // parts // 16) * 16
    return tuple((start, min(start + size, in_features)) for start in range(0, in_features, size))
