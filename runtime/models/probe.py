"""A model of an architecture that no test knows is tried at load: our attention against transformers' own."""

from __future__ import annotations

from typing import Any

import torch

from ...kernels.interface import KVShape
from ...kernels.layout import StepBatch
from ...kernels.torch_backend import TorchBackend
from ..attention import ATTENTION_NAME, StepContext
from ..errors import ModelLoadError
from .architectures import Geometry

_NUM_TOKENS = 24
_CUTS = ((0, 7), (7, 8), (8, _NUM_TOKENS))


@torch.inference_mode()
def probe_attention(name: str, module: Any, geometry: Geometry) -> None:
    """Run two dozen tokens through ``module`` in one piece with its own attention and in three with ours; logits must
    agree. Leaves ours set. Raises ModelLoadError where they do not, or where ours fails.

    State that is kept beside KV (convolutions, recurrences), biases and arguments that do not reach our attention come
    out here. What shows only in long contexts does not.
    """
    weight = module.get_output_embeddings().weight
    ids = torch.randint(0, len(weight), (_NUM_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    try:
        module.set_attn_implementation("eager")
        want = module(torch.tensor([ids], device=weight.device), use_cache=False).logits[0].float()
        module.set_attn_implementation(ATTENTION_NAME)
        got = _paged_logits(module, geometry, ids, weight)
    except Exception as error:  # foreign modelling code may fail in any way
        raise _refused(name, module, f"fails under it ({type(error).__name__}: {error})") from error
    difference, spread = float((got - want).abs().max()), float(want.abs().max())
    tolerance = 1e-3 if weight.dtype == torch.float32 else 0.1
    if not difference <= tolerance * max(spread, 1e-6):
        raise _refused(name, module, f"gives other logits under it (off by {difference:.2g} of {spread:.2g})")


def _paged_logits(module: Any, geometry: Geometry, ids: list[int], weight: torch.Tensor) -> torch.Tensor:
    shape = KVShape(
        len(geometry.kv_heads), 2, geometry.kv_heads, geometry.head_dim, dtype=weight.dtype, device=weight.device
    )
    backend = TorchBackend(shape)
    parts = []
    for start, stop in _CUTS:
        rows = range(stop - start)
        positions = range(start, stop)
        batch = StepBatch(ids[start:stop], positions, [0] * len(rows), [[0, 1]], rows, positions, rows)
        inputs = {
            "input_ids": torch.tensor([ids[start:stop]], device=weight.device),
            "position_ids": torch.tensor([list(positions)], device=weight.device),
            "use_cache": False,
            "furcate_step": StepContext(backend, backend.plan(batch), len(rows)),
        }
        parts.append(module(**inputs).logits[0].float())
    return torch.cat(parts)


def _refused(name: str, module: Any, why: str) -> ModelLoadError:
    return ModelLoadError(
        f"{name}: {type(module).__name__} is not among the architectures that are known to run over paged attention, "
        f"and it {why}. Choose a model of another architecture, such as Llama, Qwen, Mistral, Gemma, Phi or OLMo."
    )
