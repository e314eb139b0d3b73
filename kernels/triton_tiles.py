"""Which tile each kernel runs with, and what a target cannot run: the one table that launches and compilation share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

HEAD_DIMS = (64, 80, 96, 128, 256)
"""Head sizes of the attention kernels. 80 and 96 are padded to 128 inside the program; the padding is never loaded."""

LATENT_DIM = 512
"""Numbers of a latent that serve as key and as value (DeepSeek-V2, arXiv 2405.04434)."""
LATENT_ROPE_DIM = 64
"""Numbers of a latent's key that carry the rotary position."""

KV_DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
)


class UnsupportedByKernel(Exception):
    """A kernel lacks a head size, a dtype or a target; the message names the kernel and what to use in its place."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Shape of one program of an attention kernel."""

    block_m: int
    """Rows x query heads of a KV head."""
    block_n: int
    """KV slots per step of its loop; divides the chunk."""
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class TilePair:
    """Tiles for items of few rows, and for all others and prefill."""

    small: Tile
    large: Tile


_NARROW = TilePair(Tile(16, 64, 4, 2), Tile(64, 32, 8, 3))
_TILES = {
    64: _NARROW,
    80: _NARROW,
    96: _NARROW,
    128: _NARROW,
    # 64 rows spill on every target at these two (docs/kernels.md).
    256: TilePair(Tile(16, 32, 8, 2), Tile(16, 32, 8, 2)),
    LATENT_DIM: TilePair(Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
}


def attention_tiles(head_dim: int, *, deterministic: bool, dtype_bytes: int = 2) -> TilePair:
    """Tiles of a head size. Deterministic mode has one tile for every item and phase, the large one: tiles of 16 and 64
    rows use different matrix instructions, and so need not agree in the last bit.

    fp32 pools have one tile of 16 rows: exact fp32 products have no matrix instructions, and 64 rows spill.
    Raises UnsupportedByKernel for head sizes that no tile was chosen for.
    """
    if head_dim not in _TILES:
        raise UnsupportedByKernel(
            f"tree_attention has no tile for head size {head_dim}; it has {', '.join(map(str, HEAD_DIMS))}. "
            "Use the torch backend for this model."
        )
    pair = _TILES[head_dim]
    if dtype_bytes == 4:
        tile = Tile(16, 32, 8, 2) if head_dim <= 128 else Tile(16, 16, 4, 2)
        return TilePair(tile, tile)
    return TilePair(pair.large, pair.large) if deterministic else pair


def check_kv_dtype(dtype: torch.dtype, target: str) -> None:
    """Raise UnsupportedByKernel where ``target`` ("sm_80", "gfx942", "interpreter") cannot hold KV in ``dtype``.

    e4m3 needs sm_89 or later; gfx942 has the fnuz form of it, every other target the other one.
    """
    if dtype not in KV_DTYPES:
        raise UnsupportedByKernel(f"store_kv has no pool of {dtype}; it has {', '.join(map(str, KV_DTYPES))}")
    if dtype == torch.float8_e4m3fn:
        if target.startswith("sm_") and int(target[3:]) < 89:
            raise UnsupportedByKernel(f"store_kv: {target} has no e4m3; use torch.float8_e5m2 or a wider dtype")
        if target == "gfx942":
            raise UnsupportedByKernel("store_kv: gfx942 has e4m3 as torch.float8_e4m3fnuz; use that one")
    if dtype == torch.float8_e4m3fnuz and target not in ("gfx942", "interpreter"):
        raise UnsupportedByKernel(f"store_kv: {target} has no e4m3fnuz; use torch.float8_e4m3fn")


def padded(size: int) -> int:
    """Least power of two that is at least ``size`` and 16, as tiles need."""
    return max(16, 1 << (size - 1).bit_length())
