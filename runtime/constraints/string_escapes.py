"""The escapes of JSON strings: what one that has begun may come to spell, and what is missing from it."""

from __future__ import annotations

from functools import lru_cache

SHORT = {0x22: '"', 0x5C: "\\", 0x2F: "/", 0x62: "\b", 0x66: "\f", 0x6E: "\n", 0x72: "\r", 0x74: "\t"}
"""Characters that have an escape of two bytes, by its second byte."""

_HEX = frozenset(b"0123456789abcdefABCDEF")


def escape_size(code: int, escape: bytes) -> int:
    """Bytes that are missing from ``escape`` until it spells the character ``code``."""
    if len(escape) == 1 and chr(code) in SHORT.values():
        return 1
    return (12 if code > 0xFFFF else 6) - len(escape)


def decoded(escape: bytes) -> str | None:
    """The character that a whole escape spells, None while it is not whole."""
    if len(escape) == 2 and escape[1] in SHORT:
        return SHORT[escape[1]]
    if len(escape) == 6:
        code = int(escape[2:], 16)
        return None if 0xD800 <= code <= 0xDBFF else chr(code)
    if len(escape) == 12:
        return chr(0x10000 + ((int(escape[2:6], 16) - 0xD800) << 10) + int(escape[8:], 16) - 0xDC00)
    return None


@lru_cache(maxsize=65536)
def characters(escape: bytes, *, free: bool) -> tuple[tuple[int, int], ...]:
    """Ranges of the characters that an escape may still come to spell; empty if it is malformed."""
    found: list[tuple[int, int]] = []
    if len(escape) == 1:
        found.extend((ord(char), ord(char)) for char in SHORT.values() if free or char != "/")
        found.extend(characters(b"\\u", free=free))
        return tuple(found)
    if escape[1] in SHORT and len(escape) == 2:
        char = ord(SHORT[escape[1]])
        return ((char, char),) if free or char != 0x2F else ()
    if escape[1] != 0x75 or not all(byte in _HEX for byte in escape[2:6]):
        return ()
    low, high = _hex_range(escape[2:6])
    if len(escape) > 6:
        if escape[6] != 0x5C or escape[7:8] not in (b"", b"u") or not all(byte in _HEX for byte in escape[8:]):
            return ()
        second_low, second_high = _hex_range(escape[8:])
        second_low, second_high = max(second_low, 0xDC00), min(second_high, 0xDFFF)
        if second_low > second_high:
            return ()
        base = 0x10000 + ((low - 0xD800) << 10)
        return ((base + second_low - 0xDC00, base + second_high - 0xDC00),)
    plain = [(0, 0xFFFF)] if free else [(0, 0x1F), (0x7F, 0xFFFF)]
    for first, last in [(max(low, a), min(high, b)) for a, b in plain]:
        if first <= min(last, 0xD7FF):
            found.append((first, min(last, 0xD7FF)))
        if max(first, 0xE000) <= last:
            found.append((max(first, 0xE000), last))
    lead_low, lead_high = max(low, 0xD800), min(high, 0xDBFF)
    if lead_low <= lead_high:
        found.append((0x10000 + ((lead_low - 0xD800) << 10), 0x10000 + ((lead_high - 0xD800) << 10) + 0x3FF))
    return tuple(found)


def _hex_range(digits: bytes) -> tuple[int, int]:
    value = int(digits, 16) if digits else 0
    missing = 4 * (4 - len(digits))
    return value << missing, ((value + 1) << missing) - 1
