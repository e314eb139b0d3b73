"""What the engine asks of a model: one forward pass over a packed batch."""

from __future__ import annotations

from typing import Protocol

import torch

from ..kernels.layout import StepBatch


class Runner(Protocol):
    """A model with a KV pool of ``num_blocks`` blocks."""

    @property
    def vocab_size(self) -> int:
        """Length of a logits row."""

    @property
    def num_blocks(self) -> int:
        """Blocks of 16 tokens in the KV pool."""

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Run the copies, then all rows; returns logits ``[len(batch.logit_rows), vocab]`` in fp32."""
