"""UTF-8 as automata have it: the automaton of all texts, and the byte ranges of a range of characters."""

from __future__ import annotations

import numpy as np

from .byte_dfa import DEAD, ByteDFA


def _universal() -> ByteDFA:
    """UTF-8 of any characters but surrogates."""
    table = np.full((8, 256), DEAD, dtype=np.int32)
    table[0, 0x00:0x80] = 0
    table[0, 0xC2:0xE0] = 1
    table[0, 0xE0], table[0, 0xE1:0xF0], table[0, 0xED] = 2, 3, 4
    table[0, 0xF0], table[0, 0xF1:0xF4], table[0, 0xF4] = 5, 6, 7
    table[1, 0x80:0xC0] = 0
    table[2, 0xA0:0xC0] = 1
    table[3, 0x80:0xC0] = 1
    table[4, 0x80:0xA0] = 1
    table[5, 0x90:0xC0] = 3
    table[6, 0x80:0xC0] = 3
    table[7, 0x80:0x90] = 3
    accepting = np.zeros(8, dtype=np.bool_)
    accepting[0] = True
    table.setflags(write=False)
    accepting.setflags(write=False)
    return ByteDFA(table, accepting)


UNIVERSAL = _universal()
"""The automaton of all texts. State 0 is between characters."""


def utf8_ranges(low: int, high: int) -> list[list[tuple[int, int]]]:
    """Byte ranges, position by position, whose sequences are the UTF-8 of the characters ``low`` to ``high``."""
    for limit in (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF):
        if low <= limit < high:
            return utf8_ranges(low, limit) + utf8_ranges(limit + 1, high)
    if 0xD800 <= low <= 0xDFFF:
        return []
    first, last = chr(low).encode(), chr(high).encode()
    for i in range(1, len(first)):
        block = (1 << (6 * i)) - 1
        if low & ~block != high & ~block:
            if low & block:
                return utf8_ranges(low, low | block) + utf8_ranges((low | block) + 1, high)
            if high & block != block:
                return utf8_ranges(low, (high & ~block) - 1) + utf8_ranges(high & ~block, high)
    return [list(zip(first, last, strict=True))]
