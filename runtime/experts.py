"""Mixtures of experts whose rows do not depend on how many rows an expert sees, for fp32 on a CPU.

transformers hands each expert exactly the rows that chose it, and a product's bits depend on their number
(``runtime.linear``). Here an expert's rows are padded as a step's are, its products are cut as every
linear's are, and a row's experts are added in the order in which its router names them. Routers that multiply by a
weight of their own, without an ``nn.Linear``, are sent through the same product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .linear import InvariantLinear, invariant_linear, row_unit

_BATCHED_PRODUCTS = frozenset(
    {torch.mm, torch.matmul, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, torch.Tensor.matmul, torch.Tensor.mm}
    | {torch.Tensor.__matmul__, torch.Tensor.bmm, torch.Tensor.addmm}
)


def count_experts(config: Any) -> int:
    """Experts per layer that the configuration names; 0 for a dense model."""
    fields = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return max((value for field in fields if isinstance(value := getattr(config, field, None), int)), default=0)


def replace_experts(module: nn.Module) -> int:
    """Make every block of experts and every router of ``module`` row-independent; returns the widest activation
    of an expert, 0 without experts.

    A block is known by what transformers' own interface for experts leaves on it. Call it after ``replace_linears``.
    """
    widest = 0
    for child in module.modules():
        if _is_experts(child):
            child.forward = _experts_forward(child)
            widest = max(widest, *(size for weight in child.parameters() for size in weight.shape[1:]))
        elif _is_router(child):
            child.forward = _with_invariant_products(child)
    return widest


def _is_experts(module: Any) -> bool:
    return all(
        hasattr(module, field) for field in ("has_gate", "has_bias", "is_transposed", "down_proj", "_apply_gate")
    )


def _is_router(module: nn.Module) -> bool:
    """Whether ``module`` holds a matrix of its own and is neither a linear layer nor an embedding."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 2:
        return False
    return not isinstance(module, nn.Linear | nn.Embedding | InvariantLinear)


def _experts_forward(block: Any) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    first = "gate_up_proj" if block.has_gate else "up_proj"
    inner = _products(block, first)
    outer = _products(block, "down_proj")
    unit = row_unit((inner[0].out_features, outer[0].in_features, outer[0].out_features))
    activate = block._apply_gate if block.has_gate else block.act_fn
    normalize = block.post_expert_norm if block.has_post_expert_norm else None

    def forward(states: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """``states`` ``[rows, hidden]``, ``chosen`` and ``weights`` ``[rows, experts per row]``; returns as states."""
        rows, per_row = chosen.shape
        flat = chosen.reshape(-1)
        parts = states.new_zeros(rows * per_row, states.shape[-1])
        for expert in sorted(set(flat.tolist())):
            places = (flat == expert).nonzero().view(-1)
            padded = torch.cat([places, places[-1:].expand(-len(places) % unit)])
            out = outer[expert](activate(inner[expert](states.index_select(0, padded // per_row))))
            if normalize is not None:
                out = normalize(out)
            parts.index_copy_(0, places, out[: len(places)])
        parts = parts.mul_(weights.reshape(-1, 1)).view(rows, per_row, -1)
        total = parts[:, 0]
        for i in range(1, per_row):
            total = total + parts[:, i]
        return total.contiguous()

    return forward


def _products(block: Any, name: str) -> list[InvariantLinear]:
    """One linear per expert over the block's stacked weights, which are shared and not copied."""
    weights: torch.Tensor = getattr(block, name).detach()
    biases: torch.Tensor | None = getattr(block, f"{name}_bias").detach() if block.has_bias else None
    if block.is_transposed:
        weights = weights.transpose(1, 2)
    kind = invariant_linear(weights[0])
    return [kind(weight, None if biases is None else biases[i]) for i, weight in enumerate(weights)]


def _with_invariant_products(router: nn.Module) -> Callable[..., Any]:
    forward, kind = router.forward, invariant_linear(cast("torch.Tensor", router.weight).detach())

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _InvariantProducts(kind):
            return forward(*args, **kwargs)

    return wrapped


class _InvariantProducts(TorchFunctionMode):
    """``functional.linear`` becomes the row-independent product; other products are not known to be and are refused."""

    def __init__(self, kind: type[InvariantLinear]) -> None:
        super().__init__()
        self._kind = kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            return self._linear(*args, **(kwargs or {}))
        if func in _BATCHED_PRODUCTS:
            raise NotImplementedError(f"a router multiplies by {func.__name__}")
        return func(*args, **(kwargs or {}))

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        product: torch.Tensor = self._kind(weight, bias)(x)
        return product
