"""Copy-on-write of KV blocks, for all layers in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl

from .layout import BlockCopy


@triton.jit
def copy_blocks_kernel(
    pools: tl.tensor,
    slot_words: tl.tensor,
    copies: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (copy, pool). ``pools`` holds the addresses of the K and V pools of all layers, int64;
    ``slot_words`` how many int32 words one slot of each takes; ``copies`` ``[n, 4]`` int32 source block, target block,
    slots, unused. Words are moved, never numbers, so any dtype keeps its bits, NaN included.
    """
    pool = tl.load(pools + tl.program_id(1)).to(tl.pointer_type(tl.int32))
    words = tl.load(slot_words + tl.program_id(1))
    source = tl.load(copies + tl.program_id(0) * 4).to(tl.int64)
    target = tl.load(copies + tl.program_id(0) * 4 + 1).to(tl.int64)
    count = tl.load(copies + tl.program_id(0) * 4 + 2) * words
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        data = tl.load(pool + source * BLOCK_SIZE * words + at, mask=at < count)
        tl.store(pool + target * BLOCK_SIZE * words + at, data, mask=at < count)


def copy_waves(copies: Sequence[BlockCopy]) -> list[list[BlockCopy]]:
    """The copies in as few launches as their order allows: a copy comes after those that write what it reads or
    writes, and after those that read what it writes. Copies of one launch run at once, in no order."""
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    waves: list[list[BlockCopy]] = []
    for copy in copies:
        wave = max(written.get(copy.source, -1), written.get(copy.target, -1), read.get(copy.target, -1)) + 1
        if wave == len(waves):
            waves.append([])
        waves[wave].append(copy)
        written[copy.target] = wave
        read[copy.source] = max(wave, read.get(copy.source, -1))
    return waves
