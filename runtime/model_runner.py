"""One forward pass over a packed step: the model's own modules, our attention, logits where they are wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any, cast

import torch

from ..kernels.interface import AttentionBackend, KVShape
from ..kernels.layout import BLOCK_SIZE, StepBatch
from ..kernels.torch_backend import TorchBackend
from ..kernels.triton_tiles import UnsupportedByKernel
from .attention import StepContext
from .elementwise import GRAIN, SerialElementwise
from .errors import ModelLoadError, UnsupportedByBackend
from .experts import count_experts, replace_experts
from .linear import MAX_ROW_UNIT, activation_widths, replace_linears, row_unit
from .models.architectures import VERIFIED
from .models.loaded import LoadedModel

_ADVICE = "Load it with deterministic=False."
_NUM_TRIED = 20
"""Tokens of the trial that a model of an unknown architecture has to pass."""


def bytes_per_block(loaded: LoadedModel) -> int:
    """Bytes that one KV block of 16 tokens takes over all layers, K and V."""
    slots = sum(heads * dim for heads, dim in zip(loaded.kv_heads, loaded.head_dim, strict=True))
    return 2 * BLOCK_SIZE * slots * loaded.dtype.itemsize


class ModelRunner:
    """A loaded model with a KV pool of ``num_blocks`` blocks. One thread at a time.

    With ``deterministic`` (fp32 on a CPU only) a row's logits are the same bits whatever else is in the step. Raises
    UnsupportedByBackend where the model or the dtype cannot keep that promise, or ``backend``, which makes the
    attention over a pool of the given shape, lacks a kernel for it.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        num_blocks: int,
        deterministic: bool = True,
        backend: Callable[[KVShape], AttentionBackend] = TorchBackend,
    ) -> None:
        self.loaded = loaded
        self.deterministic = deterministic
        fast_cpu = loaded.device.type == "cpu" and loaded.dtype == torch.float32
        if deterministic and not fast_cpu:
            raise UnsupportedByBackend(
                f"{loaded.name}: deterministic=True needs fp32 on a CPU, not {loaded.dtype} on {loaded.device}. "
                f"{_ADVICE}"
            )
        self.kv_shape = KVShape(
            num_layers=len(loaded.kv_heads),
            num_blocks=num_blocks,
            kv_heads=loaded.kv_heads,
            head_dim=loaded.head_dim,
            dtype=loaded.dtype,
            device=loaded.device,
        )
        self.backend: AttentionBackend = self._allocate(backend)
        self._module: Any = loaded.module
        self._row_unit, self._widest, self._fewest_rows = 1, 0, 0
        with self._even_threads():
            if fast_cpu:
                replace_linears(loaded.module, deterministic=deterministic)
        if deterministic:
            capped = getattr(loaded.config, "final_logit_softcapping", None)
            plain_head = None if capped else cast("Any", loaded.module).get_output_embeddings()
            widths = list(activation_widths(loaded.module, plain_head))
            self._row_unit, self._widest = row_unit(widths), max(widths)
            self._make_experts_independent()
            if loaded.config.model_type not in VERIFIED:
                self._try_rows()

    @property
    def vocab_size(self) -> int:
        """Length of a logits row."""
        return int(self._module.get_output_embeddings().weight.shape[0])

    @property
    def num_blocks(self) -> int:
        """Blocks of 16 tokens in the KV pool."""
        return self.kv_shape.num_blocks

    @torch.inference_mode()
    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Run the copies, then all rows; returns logits ``[len(batch.logit_rows), vocab]`` in fp32.

        Rows are padded with token 0 at position 0; padding rows write no K/V, attend to nothing and are dropped.
        """
        self.backend.copy_blocks(batch.copies)
        if not batch.num_rows:
            return torch.empty(0, self.vocab_size)
        padding = -batch.num_rows % self._row_unit
        device = self.kv_shape.device
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([[*batch.token_ids, *[0] * padding]], device=device),
            "position_ids": torch.tensor([[*batch.positions, *[0] * padding]], device=device),
            "use_cache": False,
            "furcate_step": StepContext(self.backend, self.backend.plan(batch), batch.num_rows),
        }
        with self._even_threads(), self._serial_elementwise(batch.num_rows + padding):
            num_logits = len(batch.logit_rows)
            if not num_logits:
                self._module.base_model(**inputs)
                return torch.empty(0, self.vocab_size)
            # The head is a product as well: as many rows, the last one repeated.
            repeated = [batch.logit_rows[-1]] * (-num_logits % self._row_unit)
            keep = torch.tensor([*batch.logit_rows, *repeated], device=device)
            logits: torch.Tensor = self._module(**inputs, logits_to_keep=keep).logits
            return logits[0, :num_logits].float()

    def _allocate(self, backend: Callable[[KVShape], AttentionBackend]) -> AttentionBackend:
        """Raise ModelLoadError where the pool is larger than memory. The system hands out more than it has and takes
        the process's life when it is used, so a CPU's pool is held against the machine's memory here."""
        needed = self.num_blocks * bytes_per_block(self.loaded)
        message = (
            f"{self.loaded.name}: a KV pool of {self.num_blocks * BLOCK_SIZE} tokens takes {needed / 1e9:.1f} GB, "
            f"which {self.loaded.device} does not have. Load it with a smaller kv_tokens."
        )
        if self.loaded.device.type == "cpu" and needed > _memory_bytes():
            raise ModelLoadError(message)
        try:
            return backend(self.kv_shape)
        except UnsupportedByKernel as error:
            raise UnsupportedByBackend(f"{self.loaded.name}: {error}") from error
        except (MemoryError, RuntimeError) as error:  # numpy's and torch's ways of saying so
            raise ModelLoadError(f"{message} ({error})") from error

    def _make_experts_independent(self) -> None:
        """Raise UnsupportedByBackend where the model's experts are not built the way we know."""
        widest = replace_experts(self._module)
        if count_experts(self.loaded.config) > 1 and not widest:
            raise UnsupportedByBackend(
                f"{self.loaded.name}: the experts of {type(self._module).__name__} are not built on transformers' "
                f"interface for experts, and how many rows one sees depends on the batch. {_ADVICE}"
            )
        self._widest = max(self._widest, widest)
        self._fewest_rows = MAX_ROW_UNIT if widest else 0

    def _try_rows(self) -> None:
        """Raise UnsupportedByBackend where a few rows come out otherwise in pieces than at once."""
        count = min(_NUM_TRIED, self.num_blocks * BLOCK_SIZE)
        ids = [(7 * i + 3) % self.vocab_size for i in range(count)]
        table = range(-(-count // BLOCK_SIZE))

        def logits(start: int, stop: int) -> torch.Tensor:
            rows, positions = range(stop - start), range(start, stop)
            return self.forward(StepBatch(ids[start:stop], positions, [0] * len(rows), [table], rows, positions, rows))

        cuts = [0, 1, 6, count] if count > 6 else [0, count]
        pieces = torch.cat([logits(start, stop) for start, stop in pairwise(cuts)])
        if not torch.equal(pieces, logits(0, count)):
            raise UnsupportedByBackend(
                f"{self.loaded.name}: in {type(self._module).__name__} a row's result depends on the rows beside it, "
                f"so deterministic=True cannot be kept. {_ADVICE}"
            )

    def _serial_elementwise(self, num_rows: int) -> AbstractContextManager[object]:
        """Needed where torch would cut an activation of this many rows for its threads."""
        num_elements = max(num_rows, self._fewest_rows) * self._widest
        if not self.deterministic or torch.get_num_threads() == 1 or num_elements <= GRAIN:
            return nullcontext()
        return SerialElementwise()

    @contextmanager
    def _even_threads(self) -> Iterator[None]:
        """A power of two of threads in deterministic mode: what the products were tried with."""
        threads = torch.get_num_threads()
        even = 1 << (threads.bit_length() - 1)
        if not self.deterministic or even == threads:
            yield
            return
        torch.set_num_threads(even)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _memory_bytes() -> int:
    """The machine's memory, used or not."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
