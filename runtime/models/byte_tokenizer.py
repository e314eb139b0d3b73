"""A tokenizer whose tokens are the 256 bytes: for ``test:tiny`` and for models without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..vocabulary import Vocabulary
from .token_bytes import LONE_SURROGATE

BOS, IM_START, IM_END, PAD = 256, 257, 258, 259
"""Special ids; the ids below them are the bytes themselves. ``IM_END`` ends a turn and the sequence."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML without a default system prompt."""


class ByteTokenizer:
    """The 256 bytes and four specials (260 ids). Implements ``Tokenizer``; immutable, safe from any thread.

    Every text has exactly one tokenisation, its UTF-8 bytes, so counts of tokens are counts of bytes.
    """

    __slots__ = ("_specials", "_template", "_vocabulary")

    def __init__(self) -> None:
        self._specials: Mapping[str, int] = MappingProxyType(
            {"<|bos|>": BOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END, "<|pad|>": PAD}
        )
        token_bytes: tuple[bytes | None, ...] = tuple(bytes([b]) for b in range(256))
        self._vocabulary = Vocabulary(token_bytes + (None,) * len(self._specials), frozenset({IM_END}))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(CHAT_TEMPLATE)

    @property
    def vocabulary(self) -> Vocabulary:
        """260 ids: bytes, then ``<|bos|> <|im_start|> <|im_end|> <|pad|>``."""
        return self._vocabulary

    @property
    def bos_id(self) -> int | None:
        """None: nothing is put at the root."""
        return None

    @property
    def special_ids(self) -> Mapping[str, int]:
        """The four specials by spelling; read-only."""
        return self._specials

    @property
    def chat_template(self) -> str | None:
        """The ChatML template's source."""
        return CHAT_TEMPLATE

    def encode(self, text: str) -> list[int]:
        """UTF-8 bytes of ``text``. A lone surrogate becomes one U+FFFD, as it has no UTF-8 form."""
        return list(LONE_SURROGATE.sub("\ufffd", text).encode())

    def render(self, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool) -> str:
        """The ChatML text of ``messages``; with ``generation_prompt`` the assistant's header at the end."""
        return self._template.render(messages=list(messages), add_generation_prompt=generation_prompt)
