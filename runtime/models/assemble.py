"""The last step of every loader: a module and a tokenizer become a LoadedModel."""

from __future__ import annotations

from typing import Any, Unpack

import torch

from ..attention import ATTENTION_NAME, register_attention
from ..errors import ModelLoadError
from ..tokenizer import Tokenizer
from .architectures import VERIFIED, check_architecture, read_geometry
from .loaded import LoadedModel, LoadOptions
from .probe import probe_attention
from .rope import fix_rope, move_module


def placement(name: str, dtype: torch.dtype | None, device: str | None) -> tuple[torch.device, torch.dtype]:
    """Where and in what a model is to run: fp32 on a CPU, bfloat16 elsewhere, unless told otherwise.

    Raises ModelLoadError where torch cannot use the device or the dtype is not a floating one.
    """
    try:
        target = torch.device(device or "cpu")
        torch.empty(1, device=target)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise ModelLoadError(
            f"{name}: the device {device!r} cannot be used: {error}. Leave device out for the CPU, or install the "
            "torch that is built for it."
        ) from error
    wanted = dtype or (torch.float32 if target.type == "cpu" else torch.bfloat16)
    if wanted not in (torch.float32, torch.bfloat16, torch.float16):
        raise ModelLoadError(f"{name}: models run in float32, bfloat16 or float16, not in {wanted}")
    return target, wanted


def assemble_model(
    name: str,
    module: Any,
    tokenizer: Tokenizer,
    *,
    weights_version: str,
    **options: Unpack[LoadOptions],
) -> LoadedModel:
    """Set the attention, dtype and device of ``module`` and read its geometry. fp32 on a CPU unless told otherwise.

    Raises ModelLoadError where the architecture cannot be right over paged KV, or the configuration is incomplete.
    """
    target, wanted = placement(name, options.get("dtype"), options.get("device"))
    check_architecture(name, module)
    config = module.config.get_text_config(decoder=True)
    geometry = read_geometry(name, config)
    max_context = _context(name, geometry.max_context, options.get("max_context"))
    register_attention()
    module.set_attn_implementation(ATTENTION_NAME)
    module.eval().requires_grad_(False)
    move_module(module, device=target, dtype=wanted)
    try:
        variant = fix_rope(module, max_context)
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelLoadError(
            f"{name}: the rotary embeddings' parameters in the configuration are incomplete: {error!r}"
        ) from error
    if config.model_type not in VERIFIED:
        probe_attention(name, module, geometry)
    return LoadedModel(
        name=name,
        module=module,
        config=config,
        tokenizer=tokenizer,
        max_context=max_context,
        weights_version=f"{weights_version}-{str(wanted).removeprefix('torch.')}{variant}",
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        dtype=wanted,
        device=target,
    )


def _context(name: str, limit: int, chosen: int | None) -> int:
    if chosen is None:
        return limit
    if not 1 <= chosen <= limit:
        raise ModelLoadError(f"{name}: max_context={chosen}, but the model holds from 1 to {limit} tokens")
    return chosen
