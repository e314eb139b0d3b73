"""The vocabulary as bytes: the seam between tokenizers, constraints, stop strings and samplers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Vocabulary:
    """Bytes of every token id, and which ids end generation.

    ``token_bytes[i]`` is None for special, padding and unused ids: they never stand inside text.
    """

    token_bytes: tuple[bytes | None, ...]
    eos_ids: frozenset[int]

    @property
    def size(self) -> int:
        """Number of ids = length of a logits row."""
        return len(self.token_bytes)

    @cached_property
    def digest(self) -> str:
        """Hex digest of the whole vocabulary; keys every cache that depends on it."""
        h = hashlib.blake2b(digest_size=16)
        for token in self.token_bytes:
            h.update(b"\xff\xff\xff\xff" if token is None else len(token).to_bytes(4, "little") + token)
        h.update(repr(sorted(self.eos_ids)).encode())
        return h.hexdigest()

    def text_of(self, ids: Iterable[int]) -> bytes:
        """Concatenated bytes of ``ids``; special ids count as nothing."""
        return b"".join(self.token_bytes[i] or b"" for i in ids)


def decode(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """Text of ``ids``; bytes that are not valid UTF-8 become U+FFFD."""
    return vocabulary.text_of(ids).decode("utf-8", errors="replace")
