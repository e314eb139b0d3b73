"""Ahead-of-time compilation of every kernel for targets that need not be there, and what the result takes of them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .layout import BLOCK_SIZE, CHUNK_SIZE
from .triton_backend import COPY_WORDS, MERGE_HEADS
from .triton_copy_blocks import copy_blocks_kernel
from .triton_linear import LINEAR_STAGES, LINEAR_TILE, LINEAR_WARPS, linear_kernel
from .triton_merge import merge_partials_kernel
from .triton_prefill import prefill_attention_kernel
from .triton_rms_norm import rms_norm_kernel
from .triton_sampling import SAMPLE_BLOCK, SAMPLE_WARPS, sample_kernel
from .triton_store_kv import store_kv_kernel
from .triton_tiles import LATENT_DIM, LATENT_ROPE_DIM, Tile, UnsupportedByKernel, attention_tiles, padded
from .triton_token_mask import apply_token_mask_kernel
from .triton_tree_attention import tree_attention_kernel

TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
    "gfx950": ("hip", "gfx950", 64),
}
"""Backend, architecture and lanes per warp of each target."""

_POINTERS = {
    "i32": "items num_items tiles num_tiles blocks item_rows positions merge_rows merge_starts merge_entries "
    "write_rows write_slots copies slot_words masks mask_rows tokens top_ks",
    "i64": "pools keys",
    "fp64": "temperatures top_ps min_ps",
    "fp32": "partial_out partial_lse sinks logits",
    "bf16": "query key value k_pool v_pool out x weight bias",
}
_INTEGERS = "window vocab_size num_rows out_features"


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel with the constants and options that it is launched with."""

    name: str
    kernel: Any
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    kv_type: str = "bf16"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one program takes."""

    registers: int
    """Vector registers per thread (AMD: accumulation registers included)."""
    shared_bytes: int
    spilled_bytes: int
    """Local memory per thread: stack and spilled vector registers."""
    spilled_scalars: int
    """AMD only: scalar registers kept in vector registers."""


def variants() -> list[Variant]:
    """Every kernel in the shapes that it is launched with: Llama-8B's (32 heads, 8 KV heads), bf16, unless the name
    says otherwise."""
    found = [
        Variant("store_kv", store_kv_kernel, _store(0.0)),
        Variant("store_kv fp8", store_kv_kernel, _store(448.0), kv_type="fp8e4nv"),
    ]
    for dim in (64, 80, 96, 128, 256):
        pair = attention_tiles(dim, deterministic=False)
        found.append(_items(f"tree_attention {dim} x{pair.small.block_m}", dim, pair.small))
        if pair.large != pair.small:
            found.append(_items(f"tree_attention {dim} x{pair.large.block_m}", dim, pair.large))
        found.append(_prefill(f"prefill {dim} x{pair.large.block_m}", dim, pair.large))
    narrow = attention_tiles(128, deterministic=False)
    extras: dict[str, Any] = {"HAS_SOFTCAP": True, "HAS_WINDOW": True}
    found += [
        _items("tree_attention 128 x16 window softcap", 128, narrow.small, **extras),
        _prefill("prefill 128 x64 window softcap sinks", 128, narrow.large, HAS_SINKS=True, **extras),
        _items("tree_attention 128 x16 fp8", 128, narrow.small, kv_type="fp8e4nv"),
    ]
    for dim in (128, 256):
        exact = attention_tiles(dim, deterministic=False, dtype_bytes=4).small
        found += [
            _items(f"tree_attention fp32 {dim} x16", dim, exact, kv_type="fp32"),
            _prefill(f"prefill fp32 {dim} x16", dim, exact, kv_type="fp32"),
        ]
    latent = attention_tiles(LATENT_DIM, deterministic=False).small
    shape: dict[str, Any] = {"GROUP": 16, "HEADS": 16, "TILE_HEADS": 16, "ROPE_DIM": LATENT_ROPE_DIM, "LATENT": True}
    found += [
        _items("tree_attention mla x16", LATENT_DIM, latent, **shape),
        _prefill("prefill mla x16", LATENT_DIM, latent, **{k: v for k, v in shape.items() if k != "HEADS"}),
    ]
    for dim in (64, 128, 256, LATENT_DIM):
        constants = {"HEADS": 32, "DIM": dim, "DIM_PAD": dim, "BLOCK_H": MERGE_HEADS, "HAS_SINKS": False}
        found.append(Variant(f"merge_partials {dim}", merge_partials_kernel, constants))
    tile_m, tile_n, tile_k = LINEAR_TILE
    linear = {"IN_FEATURES": 4096, "BLOCK_M": tile_m, "BLOCK_N": tile_n, "BLOCK_K": tile_k}
    linear |= {"HAS_BIAS": False, "ROW_DOT": False, "UPCAST": False}
    found += [
        Variant("copy_blocks", copy_blocks_kernel, {"BLOCK_SIZE": BLOCK_SIZE, "BLOCK": COPY_WORDS}),
        Variant("apply_token_mask", apply_token_mask_kernel, {"BLOCK": 1024}),
        Variant("sample", sample_kernel, {"SPAN": 27.0, "BLOCK": SAMPLE_BLOCK}, num_warps=SAMPLE_WARPS),
        Variant("rms_norm 4096", rms_norm_kernel, {"SIZE": 4096, "SIZE_PAD": 4096}, num_warps=8),
        Variant("linear 4096", linear_kernel, linear, LINEAR_WARPS, LINEAR_STAGES),
    ]
    return found


def compile_variant(variant: Variant, target: str) -> Resources:
    """Compile for ``target``, a key of ``TARGETS``; no GPU is needed. Raises UnsupportedByKernel where the target lacks
    the variant's number format."""
    kv_type = variant.kv_type
    if kv_type.startswith("fp8"):
        if target == "sm_80":
            raise UnsupportedByKernel(f"{variant.name}: sm_80 has no e4m3; use e5m2 or a wider dtype")
        kv_type = "fp8e4b8" if target == "gfx942" else kv_type
    names = variant.kernel.arg_names
    types = _types(kv_type)
    signature = {name: "constexpr" if name in variant.constants else types.get(name, "fp32") for name in names}
    for name in names:
        if name.endswith("_stride") and signature[name] != "constexpr":
            signature[name] = "i32"
    aligned = [
        index
        for index, name in enumerate(names)
        if signature[name].startswith("*") or (name.endswith("_stride") and signature[name] == "i32")
    ]
    source = ASTSource(
        fn=variant.kernel,
        signature=signature,
        constexprs=dict(variant.constants),
        attrs={(index,): [["tt.divisibility", 16]] for index in aligned},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)
    read = _nvidia_resources if TARGETS[target][0] == "cuda" else _amd_resources
    return read(compiled.asm, int(compiled.metadata.shared))


def _types(kv_type: str) -> dict[str, str]:
    types = {name: f"*{kind}" for kind, names in _POINTERS.items() for name in names.split()}
    types |= dict.fromkeys(_INTEGERS.split(), "i32")
    if kv_type == "fp32":
        types = {name: kind.replace("bf16", "fp32") for name, kind in types.items()}
    return types | {"k_pool": f"*{kv_type}", "v_pool": f"*{kv_type}"}


def _store(fp8_max: float) -> dict[str, Any]:
    return {"DIM": 128, "DIM_PAD": 128, "HEADS": 8, "HEADS_PAD": 8, "FP8_MAX": fp8_max}


def _attention(dim: int, tile: Tile) -> dict[str, Any]:
    return {
        "GROUP": 4,
        "TILE_HEADS": 4,
        "DIM": dim,
        "DIM_PAD": padded(dim),
        "ROPE_DIM": 0,
        "LATENT": False,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_SIZE": BLOCK_SIZE,
        "HAS_SOFTCAP": False,
        "HAS_WINDOW": False,
        "ROW_DOT": False,
        "UPCAST": False,
        "PRECISION": "ieee",
    }


def _items(name: str, dim: int, tile: Tile, *, kv_type: str = "bf16", **changes: Any) -> Variant:
    constants = {"HEADS": 32, **_attention(dim, tile), **changes}
    return Variant(name, tree_attention_kernel, constants, tile.num_warps, tile.num_stages, kv_type)


def _prefill(name: str, dim: int, tile: Tile, *, kv_type: str = "bf16", **changes: Any) -> Variant:
    constants = {"CHUNK_SIZE": CHUNK_SIZE, "HAS_SINKS": False, **_attention(dim, tile), **changes}
    return Variant(name, prefill_attention_kernel, constants, tile.num_warps, tile.num_stages, kv_type)


def _nvidia_resources(asm: Mapping[str, Any], shared: int) -> Resources:
    """Registers and local memory as cuobjdump reads them from the cubin; dynamic shared memory is in no cubin."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        done = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump prints no resource usage: {done.stdout[:200]!r}")
    return Resources(int(found[1]), shared, int(found[2]) + int(found[3]), 0)


def _amd_resources(asm: Mapping[str, Any], shared: int) -> Resources:
    """Counts from the metadata at the end of the assembly."""
    count = {name: int(value) for name, value in re.findall(r"^\s*\.(\w+):\s+(\d+)$", asm["amdgcn"], re.MULTILINE)}
    return Resources(count["vgpr_count"], shared, count["private_segment_fixed_size"], count["sgpr_spill_count"])
