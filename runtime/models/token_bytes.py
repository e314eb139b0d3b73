"""Bytes of every token id, read off a tokenizer's own JSON: the decoder decides how a spelling stands for bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Matches what a Python string may hold and UTF-8 may not; tokenizers write U+FFFD for it."""
_SPACE_MARK = "\u2581"


def token_bytes(vocabulary: Mapping[str, int], definition: Mapping[str, Any], size: int) -> tuple[bytes | None, ...]:
    """Bytes of ids 0..``size``-1; None for special, unused and padding ids.

    ``vocabulary`` is the model's and the added tokens' spelling to id, ``definition`` the parsed ``tokenizer.json``.
    Byte-level BPE spells each byte as one character of GPT-2's alphabet; sentencepiece-like tokenizers mark a space as
    U+2581 and write bytes that are no text as ``<0x0A>``. Added tokens that are not special stand for their spelling.
    """
    special = {entry["id"] for entry in definition.get("added_tokens", ()) if entry["special"]}
    literal = {entry["id"] for entry in definition.get("added_tokens", ()) if not entry["special"]}
    byte_level = "ByteLevel" in _component_types(definition.get("decoder"))
    result: list[bytes | None] = [None] * size
    for spelling, token in vocabulary.items():
        if token >= size or token in special:
            continue
        if token in literal:
            result[token] = spelling.encode()
        elif byte_level:
            result[token] = _byte_level(spelling)
        else:
            result[token] = _sentencepiece(spelling)
    return tuple(result)


def _byte_level(spelling: str) -> bytes:
    try:
        return spelling.translate(_byte_alphabet()).encode("latin-1")
    except UnicodeEncodeError:  # not in the alphabet: a token that was added as text
        return spelling.encode()


def _sentencepiece(spelling: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(spelling)
    return bytes([int(match[1], 16)]) if match else spelling.replace(_SPACE_MARK, " ").encode()


@cache
def _byte_alphabet() -> dict[int, int]:
    """GPT-2's alphabet, character to byte: printable Latin-1 stands for itself, the rest is moved up from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {0x100 + i: byte for i, byte in enumerate(moved)}


def _component_types(component: Any) -> set[str]:
    """Types of a decoder and, for a sequence, of its parts."""
    if not isinstance(component, dict):
        return set()
    types = {component["type"]}
    for part in component.get("decoders", ()):
        types |= _component_types(part)
    return types
