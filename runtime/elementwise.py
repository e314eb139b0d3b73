"""Elementwise functions whose results do not depend on where a tensor is cut for the threads.

torch cuts a tensor of more than ``GRAIN`` elements evenly over as many threads as it has parts of that size for, and
handles what a part has beyond whole vectors in scalar code, whose exp differs in the last bit. Where the parts end
depends on the number of rows, so a row's bits would too. In steps that large such functions run on one thread: at
SmolLM2-135M's shape 3 % of a prefill of 512 tokens. Steps of decoding are smaller than that and pay nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

GRAIN = 32768
"""Elements up to which torch never cuts (``at::internal::GRAIN_SIZE``)."""

_NAMES = (
    "celu",
    "cos",
    "elu",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "gelu",
    "hardswish",
    "log",
    "log1p",
    "logsigmoid",
    "mish",
    "selu",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "softsign",
    "tanh",
    "tanhshrink",
)
_FUNCTIONS = frozenset(
    found
    for holder in (torch, torch.Tensor, torch.special, functional)
    for name in _NAMES
    for spelling in (name, f"{name}_")
    if (found := getattr(holder, spelling, None)) is not None
)


class SerialElementwise(TorchFunctionMode):
    """Within it, elementwise functions with a scalar code of their own run on one thread; everything else as before."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _FUNCTIONS:
            return func(*args, **(kwargs or {}))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch.set_num_threads(threads)
