"""A model that runs in this process: weights, runner and engine behind the language's Model."""

from __future__ import annotations

import difflib
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from ...kernels.layout import BLOCK_SIZE
from ...runtime.constraints.token_masks import trie_of
from ...runtime.engine import Engine
from ...runtime.errors import FurcateError
from ...runtime.model_runner import ModelRunner, bytes_per_block
from ...runtime.models.loaded import LoadedModel
from ...runtime.models.loading import load_model
from ...runtime.namespaces import Namespace
from ...runtime.requests import Branch
from ...runtime.sampler import Sampler
from .base import Model

MAX_POOL_BYTES = 4 << 30
"""Default ceiling of the KV pool on a CPU; below it, a quarter of the free memory."""

MAX_POOL_CONTEXTS = 64
"""Default ceiling of the KV pool in full contexts: a tiny model needs no more."""

_OPTIONS = ("kv_tokens", "max_step_tokens", "max_context", "plan", "deterministic", "dtype", "device")


class EngineModel(Model):
    """A loaded model with an engine of its own. The engine stops when the model is closed or collected."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        kv_tokens: int | None = None,
        max_step_tokens: int = 512,
        plan: bool = True,
        deterministic: bool = True,
    ) -> None:
        self.name = loaded.name
        self.tokenizer = loaded.tokenizer
        self.max_context = loaded.max_context
        self.plan = plan
        """Whether runs use the compiled graph; values are the same without."""
        if kv_tokens is not None and kv_tokens < 1:
            raise ValueError(f"kv_tokens={kv_tokens}: the KV pool must hold at least one token, and one program's")
        num_blocks = -(-kv_tokens // BLOCK_SIZE) if kv_tokens is not None else default_blocks(loaded)
        self._weights_version = loaded.weights_version
        self._engine = Engine(
            ModelRunner(loaded, num_blocks=num_blocks, deterministic=deterministic),
            loaded.tokenizer.vocabulary,
            Sampler(loaded.tokenizer.vocabulary),
            num_blocks=num_blocks,
            max_context=loaded.max_context,
            encode=loaded.tokenizer.encode,
            max_step_tokens=max_step_tokens,
            plan=plan,
        )
        self._process = os.getpid()
        # 0.3 s for 49,000 tokens: done before the first constrained call asks, while the prompt is computed
        threading.Thread(target=trie_of, args=(loaded.tokenizer.vocabulary,), daemon=True).start()
        # at exit as well: a thread that is stopped inside torch aborts the process
        self._finalizer = weakref.finalize(self, _close, self._engine, self._process)

    @classmethod
    def load(cls, name: str, **options: Any) -> EngineModel:
        """Load ``name`` with the options of ``furcate.load``; an unknown option is a TypeError."""
        for option in options:
            if option not in _OPTIONS:
                near = difflib.get_close_matches(option, _OPTIONS, n=1)
                hint = f"did you mean {near[0]}=?" if near else f"there are {', '.join(_OPTIONS)}"
                raise TypeError(f"load() has no option {option!r}; {hint}")
        weights = {key: options.pop(key) for key in ("dtype", "device", "max_context") if key in options}
        if isinstance(weights.get("dtype"), str):
            weights["dtype"] = getattr(torch, weights["dtype"], weights["dtype"])
        return cls(load_model(name, **weights), **options)

    def root(self, namespace: str = "") -> Branch:
        """A fresh, empty branch under this model's weights and ``namespace``.

        Raises FurcateError in a forked child: the engine's thread stayed in the parent.
        """
        if os.getpid() != self._process:
            raise FurcateError(
                f"the model {self.name} was loaded in another process: after os.fork (multiprocessing's default on "
                "Linux) the engine's thread is missing. Load the model in the child, or start children with 'spawn'."
            )
        return self._engine.root(self._key(namespace))

    def flush(self, namespace: str = "") -> int:
        """Forget the KV under ``namespace``, and nothing else; returns how many blocks became free."""
        return self._engine.flush(self._key(namespace))

    def _key(self, namespace: str) -> str:
        return str(Namespace(model=self.name, weights=self._weights_version, salt=namespace))

    def stats(self) -> Mapping[str, int]:
        """Counters of the pool, the tree and the engine; see ``Model.stats``."""
        return self._engine.stats()

    def check_integrity(self) -> None:
        """Walk pool, tables, tree and pins; raises RuntimeError naming the broken invariant."""
        self._engine.check_integrity()

    def close(self) -> None:
        """Stop the engine's thread and drop the pool. Idempotent."""
        self._finalizer()


def _close(engine: Engine, process: int) -> None:
    if os.getpid() == process:  # in a forked child the engine's thread, and who held its lock, are missing
        engine.close()


def default_blocks(loaded: LoadedModel) -> int:
    """Blocks of the default pool: a quarter of the free memory, at most MAX_POOL_BYTES or MAX_POOL_CONTEXTS."""
    affordable = min(MAX_POOL_BYTES, free_bytes() // 4) // bytes_per_block(loaded)
    useful = MAX_POOL_CONTEXTS * -(-loaded.max_context // BLOCK_SIZE)
    return max(64, min(affordable, useful))


def free_bytes() -> int:
    """Memory that can be had without swapping, in bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 * MAX_POOL_BYTES  # not Linux: let the ceiling decide
