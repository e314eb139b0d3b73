"""A model as the language sees it: a tokenizer, a context limit and a source of branches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from ...runtime.requests import Branch
from ...runtime.tokenizer import Tokenizer


class Model(ABC):
    """Base of every model. ``fc.load`` returns one over the engine; ``fc.testing`` has stand-ins."""

    name: str
    tokenizer: Tokenizer
    max_context: int
    """Tokens that a branch may hold."""

    @abstractmethod
    def root(self, namespace: str = "") -> Branch:
        """A fresh, empty branch. Branches share KV only within one namespace."""

    def stats(self) -> Mapping[str, int]:
        """Counters: ``blocks_total blocks_free blocks_cached blocks_referenced blocks_peak blocks_copied tree_nodes
        tree_tokens steps forward_passes tokens_computed preemptions``; a stand-in without an engine has only zeros."""
        names = (
            "blocks_total blocks_free blocks_cached blocks_referenced blocks_peak blocks_copied tree_nodes tree_tokens "
            "steps forward_passes tokens_computed preemptions"
        )
        return dict.fromkeys(names.split(), 0)

    def check_integrity(self) -> None:
        """Walk the KV ledger and raise RuntimeError on any broken invariant; nothing to do without an engine."""

    def close(self) -> None:
        """Release what the model holds. Idempotent."""
