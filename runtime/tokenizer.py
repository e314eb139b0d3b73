"""What the language and the engine need of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from .vocabulary import Vocabulary


class Tokenizer(Protocol):
    """Text to ids and back. Implementations are immutable and safe to call from any thread."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def bos_id(self) -> int | None:
        """Beginning-of-sequence id that the model wants once, at the root; None where it wants none."""

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Special tokens by their spelling, e.g. ``{"<|im_end|>": 2}``."""

    @property
    def chat_template(self) -> str | None:
        """The model's own Jinja chat template, or None for a base model."""

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``. No special token is ever produced: special spellings are ordinary text. No BOS."""

    def render(self, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool) -> str:
        """The chat template applied to ``messages`` (dicts with ``role`` and ``content``). Dates are frozen at load.

        Raises jinja2.TemplateError where the template refuses the messages.
        """
