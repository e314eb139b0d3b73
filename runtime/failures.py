"""What a call that fails in the engine is told."""

from __future__ import annotations

import torch

from ..kernels.layout import BLOCK_SIZE
from .block_pool import blocks_for
from .errors import ContextOverflow, EngineFailed, InvalidLogits


def overflow(
    length: int, added: int, computed: int, *, max_context: int, num_blocks: int, label: str
) -> ContextOverflow | None:
    """The error of a call that can never fit: ``added`` tokens on top of ``length``, ``computed`` of them with KV of
    their own."""
    needed = length + added
    limit = min(max_context, num_blocks * BLOCK_SIZE)
    if needed > max_context:
        what, advice = "the model's context", "shorten the context or lower max_tokens"
    elif blocks_for(length + computed) > num_blocks:
        what, advice = "the KV pool", f"shorten the context, lower max_tokens, or load with kv_tokens={needed} or more"
    else:
        return None
    return ContextOverflow(
        f"{label or 'the call'} needs {needed} tokens ({length} of context and {added} more), but {what} holds "
        f"{limit}: {advice}",
        needed=needed,
        limit=limit,
        where=label,
    )


def call_failed(label: str, cause: BaseException) -> EngineFailed:
    """The call at ``label`` failed because of ``cause``."""
    error = EngineFailed(f"{label or 'the call'} failed in the engine: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


def pass_failed(label: str, cause: Exception, max_step_tokens: int) -> EngineFailed:
    """The forward pass with a row of the call at ``label`` failed; where memory ran out, says what needs less."""
    if not isinstance(cause, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(cause):
        return call_failed(label, cause)
    error = EngineFailed(
        f"{label or 'the call'}: a step of up to {max_step_tokens} tokens did not fit into memory ({cause}): lower "
        "max_step_tokens or kv_tokens"
    )
    error.__cause__ = cause
    return error


def poisoned(label: str, cause: InvalidLogits) -> InvalidLogits:
    """The logits for the call at ``label`` are not numbers."""
    return InvalidLogits(
        f"{label or 'the call'}: {cause}. The weights, or the dtype they run in, do not hold this prompt: try "
        "dtype='float32', or another copy of the weights"
    )
