"""Paged tree attention on a GPU: the Triton kernels behind the contract of an attention backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton

from .gpu_plan import GpuPlan, GpuPlanner, Int32Array, PlanShape
from .interface import KVShape
from .layout import BLOCK_SIZE, CHUNK_SIZE, BlockCopy, StepBatch
from .triton_copy_blocks import copy_blocks_kernel, copy_waves
from .triton_merge import merge_partials_kernel
from .triton_prefill import prefill_attention_kernel
from .triton_store_kv import store_kv_kernel
from .triton_tiles import Tile, TilePair, UnsupportedByKernel, attention_tiles, check_kv_dtype, padded
from .triton_tree_attention import tree_attention_kernel

LOG2_E = 1.4426950408889634
MERGE_HEADS = 8
"""Query heads per merge program."""
COPY_WORDS = 1024
"""int32 words per step of a copy's loop."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A ``GpuPlan`` on the device: views of one packed tensor."""

    host: GpuPlan
    positions: torch.Tensor
    small: torch.Tensor
    large: torch.Tensor
    tiles: torch.Tensor
    blocks: torch.Tensor
    item_rows: torch.Tensor
    merge_rows: torch.Tensor
    merge_starts: torch.Tensor
    merge_entries: torch.Tensor
    counts: torch.Tensor
    """[4] small items, large items, prefill tiles, unused."""


class TritonPlan:
    """What ``TritonBackend.plan`` returns: the step's writes and, per plan shape, its work on the device."""

    __slots__ = ("batch", "num_rows", "num_writes", "plans", "write_rows", "write_slots")

    def __init__(self, batch: StepBatch, writes: Sequence[torch.Tensor], plans: dict[PlanShape, DevicePlan]) -> None:
        self.batch = batch
        self.num_rows = batch.num_rows
        self.num_writes = len(batch.write_rows)
        self.write_rows, self.write_slots = writes
        self.plans = plans


class TritonBackend:
    """Paged attention over one KV pool, ``[num_blocks, 16, kv_heads, head_dim]`` for K and for V of each layer.

    ``deterministic`` uses one tile per head size for every item and phase, so that a row's bits do not depend on what
    else is in the step. ``kv_scales`` are the per-tensor scales (K, V) of an fp8 pool: what is stored is the number
    divided by its scale. ``query_dtype`` is what fp8 keys are widened to before they meet the queries.

    On a CPU it runs only inside Triton's interpreter (TRITON_INTERPRET=1 before triton is imported), which is for
    tests; ``row_dot`` then replaces matrix products by sums whose rows cannot depend on each other, since the
    interpreter's BLAS rounds a row by its place in the matrix. Raises UnsupportedByKernel where a kernel lacks the head
    size, the dtype or the target.
    """

    name = "triton"

    def __init__(
        self,
        kv_shape: KVShape,
        *,
        deterministic: bool = False,
        kv_scales: tuple[float, float] = (1.0, 1.0),
        row_dot: bool = False,
    ) -> None:
        self.kv_shape = kv_shape
        self.deterministic = deterministic
        self._interpreted = bool(triton.knobs.runtime.interpret)
        if kv_shape.device.type == "cpu" and not self._interpreted:
            raise UnsupportedByKernel("the Triton kernels need a GPU; use the torch backend on a CPU")
        if row_dot and not self._interpreted:
            raise UnsupportedByKernel("row_dot is for Triton's interpreter")
        check_kv_dtype(kv_shape.dtype, device_target(kv_shape.device))
        self._row_dot = row_dot
        self._kv_scales = kv_scales
        self._fp8_max = torch.finfo(kv_shape.dtype).max if kv_shape.dtype.itemsize == 1 else 0.0
        if kv_scales != (1.0, 1.0) and not self._fp8_max:
            raise ValueError(f"kv_scales are for fp8 pools, not for {kv_shape.dtype}")
        self._tiles = [
            attention_tiles(dim, deterministic=deterministic, dtype_bytes=kv_shape.dtype.itemsize)
            for dim in kv_shape.head_dim
        ]
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        for heads, dim in zip(kv_shape.kv_heads, kv_shape.head_dim, strict=True):
            shape = (kv_shape.num_blocks, BLOCK_SIZE, heads, dim)
            for pools in (self._keys, self._values):
                pools.append(torch.zeros(shape, dtype=kv_shape.dtype, device=kv_shape.device))
        every = [*self._keys, *self._values]
        words = [pool[0, 0].numel() * pool.dtype.itemsize // 4 for pool in every]
        self._pool_addresses = torch.tensor([pool.data_ptr() for pool in every], device=kv_shape.device)
        self._slot_words = torch.tensor(words, dtype=torch.int32, device=kv_shape.device)
        self._planners: dict[PlanShape, GpuPlanner] = {}
        self._partials: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._no_sinks = torch.zeros(1, device=kv_shape.device)

    def kv_pool(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of ``layer``, each ``[num_blocks, 16, kv_heads, head_dim]``."""
        return self._keys[layer], self._values[layer]

    def plan(self, batch: StepBatch) -> TritonPlan:
        """Plan the step for every shape that layers have asked for so far, and move it all in one copy."""
        hosts = {shape: planner.plan(batch) for shape, planner in self._planners.items()}
        writes = [np.asarray(batch.write_rows, dtype=np.int32), np.asarray(batch.write_slots, dtype=np.int32)]
        packed = self._to_device(writes + [part for host in hosts.values() for part in _sections(host, batch)])
        plans = {
            shape: DevicePlan(host, *packed[2 + index * 10 : 12 + index * 10])
            for index, (shape, host) in enumerate(hosts.items())
        }
        return TritonPlan(batch, packed[:2], plans)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Run copy-on-write copies for all layers, in order. Chains are allowed: a target may be a later source."""
        for wave in copy_waves(copies):
            flat = np.array([(copy.source, copy.target, copy.num_slots, 0) for copy in wave], dtype=np.int32)
            (moved,) = self._to_device([flat.reshape(-1)])
            copy_blocks_kernel[(len(wave), len(self._pool_addresses))](
                self._pool_addresses, self._slot_words, moved, BLOCK_SIZE, COPY_WORDS
            )

    def write_kv(self, layer: int, key: torch.Tensor, value: torch.Tensor, plan: TritonPlan) -> None:
        """Scatter ``key``/``value`` ``[rows, kv_heads, head_dim]`` to the step's slots."""
        if not plan.num_writes:
            return
        _, heads, dim = key.shape
        k_scale, v_scale = self._kv_scales
        store_kv_kernel[(plan.num_writes,)](
            *(key, value, self._keys[layer], self._values[layer], plan.write_rows, plan.write_slots),
            *(key.stride(0), key.stride(1), value.stride(0), value.stride(1), 1.0 / k_scale, 1.0 / v_scale),
            DIM=dim,
            DIM_PAD=padded(dim),
            HEADS=heads,
            HEADS_PAD=1 << (heads - 1).bit_length(),
            FP8_MAX=self._fp8_max,
        )

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        plan: TritonPlan,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend ``query`` ``[rows, heads, head_dim]`` to each row's own prefix; returns the same shape.

        ``query`` may hold more rows than the step: the rows past the step's come back zero.
        """
        rows, heads, dim = query.shape
        group = heads // self.kv_shape.kv_heads[layer]
        tiles = self._tiles[layer]
        own = self._device_plan(plan, self._plan_shape(tiles, group, sliding_window))
        out = torch.empty((rows, heads, dim), dtype=query.dtype, device=query.device)
        if rows > plan.num_rows:
            out[plan.num_rows :] = 0
        k_scale, v_scale = self._kv_scales
        scalars = (
            scale * k_scale * (1.0 if softcap is not None else LOG2_E),
            softcap or 0.0,
            sliding_window or 0,
            v_scale,
        )
        constants = {
            "GROUP": group,
            "DIM": dim,
            "DIM_PAD": padded(dim),
            "ROPE_DIM": 0,
            "LATENT": False,
            "BLOCK_SIZE": BLOCK_SIZE,
            "HAS_SOFTCAP": softcap is not None,
            "HAS_WINDOW": sliding_window is not None,
            "ROW_DOT": self._row_dot,
            "UPCAST": self._interpreted,
            "PRECISION": "ieee",
            "enable_fp_fusion": False,
        }
        pools = (query, self._keys[layer], self._values[layer])
        slot_stride = self._keys[layer].stride(1)
        kv_heads = self.kv_shape.kv_heads[layer]
        partial_out, partial_lse = self._scratch(own.host.num_partials, heads, dim)
        for index, (items, count, tile) in enumerate(
            ((own.small, own.host.num_small, tiles.small), (own.large, own.host.num_large, tiles.large))
        ):
            if count:
                tree_attention_kernel[(count, kv_heads * _head_tiles(group, tile))](
                    *(*pools, items, own.counts[index:], own.blocks, own.item_rows, own.positions),
                    *(partial_out, partial_lse, query.stride(0), query.stride(1), slot_stride, *scalars),
                    HEADS=heads,
                    **constants,
                    **_tile_options(group, tile),
                )
        sink_values = self._no_sinks if sinks is None else sinks
        if len(own.host.tiles):
            tile = tiles.large
            prefill_attention_kernel[(len(own.host.tiles), kv_heads * _head_tiles(group, tile))](
                *(*pools, own.tiles, own.counts[2:], own.blocks, own.positions, sink_values, out),
                *(query.stride(0), query.stride(1), out.stride(0), slot_stride, *scalars),
                CHUNK_SIZE=CHUNK_SIZE,
                HAS_SINKS=sinks is not None,
                **constants,
                **_tile_options(group, tile),
            )
        if len(own.host.merge_rows):
            merge_partials_kernel[(len(own.host.merge_rows), -(-heads // MERGE_HEADS))](
                *(partial_out, partial_lse, own.merge_rows, own.merge_starts, own.merge_entries, sink_values),
                *(out, out.stride(0)),
                HEADS=heads,
                DIM=dim,
                DIM_PAD=padded(dim),
                BLOCK_H=MERGE_HEADS,
                HAS_SINKS=sinks is not None,
                enable_fp_fusion=False,
            )
        return out

    def _plan_shape(self, tiles: TilePair, group: int, window: int | None) -> PlanShape:
        small, large = (max(1, tile.block_m // min(group, tile.block_m)) for tile in (tiles.small, tiles.large))
        # A row's partials cost 8 bytes x group per number of a chunk (written, then read), the chunk itself 2 x 256
        # numbers: from here on walking the chunks moves fewer bytes than sharing them could save.
        inline = max(2, -(-2 * CHUNK_SIZE * self.kv_shape.dtype.itemsize // (8 * group)))
        return PlanShape(small_rows=small, large_rows=large, inline_rows=inline, window=window)

    def _device_plan(self, plan: TritonPlan, shape: PlanShape) -> DevicePlan:
        if shape not in plan.plans:
            planner = self._planners.setdefault(shape, GpuPlanner(shape))
            host = planner.plan(plan.batch)
            plan.plans[shape] = DevicePlan(host, *self._to_device(_sections(host, plan.batch)))
        return plan.plans[shape]

    def _scratch(self, num_partials: int, heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Partial outputs and log-sum-exps, kept between steps and doubled when too small."""
        found = self._partials.get((heads, dim))
        if found is None or len(found[0]) < num_partials:
            size = max(64, 1 << max(0, num_partials - 1).bit_length())
            device = self.kv_shape.device
            found = torch.empty(size, heads, dim, device=device), torch.empty(size, heads, device=device)
            self._partials[heads, dim] = found
        return found

    def _to_device(self, parts: Sequence[Int32Array]) -> list[torch.Tensor]:
        """The flat arrays as views of one int32 tensor on the device, each 16-byte aligned, moved in one copy."""
        sizes = [max(4, -(-part.size // 4) * 4) for part in parts]
        pinned = self.kv_shape.device.type != "cpu"
        host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pinned)
        view = host.numpy()
        offset = 0
        for part, size in zip(parts, sizes, strict=True):
            view[offset : offset + part.size] = part.reshape(-1)
            offset += size
        moved = host.to(self.kv_shape.device, non_blocking=True) if pinned else host
        return list(torch.split(moved, sizes))


def device_target(device: torch.device) -> str:
    """What kernels are compiled for on ``device``: "sm_90", "gfx942", or "interpreter" for a CPU."""
    if device.type == "cpu":
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return str(properties.gcnArchName).split(":", maxsplit=1)[0]
    return f"sm_{properties.major}{properties.minor}"


def _sections(host: GpuPlan, batch: StepBatch) -> list[Int32Array]:
    """The flat arrays of a plan in the order of ``DevicePlan``'s fields."""
    counts = np.array([host.num_small, host.num_large, len(host.tiles), 0], dtype=np.int32)
    return [
        np.asarray(batch.positions, dtype=np.int32),
        *(host.small, host.large, host.tiles, host.blocks, host.item_rows),
        *(host.merge_rows, host.merge_starts, host.merge_entries, counts),
    ]


def _head_tiles(group: int, tile: Tile) -> int:
    return -(-group // min(group, tile.block_m))


def _tile_options(group: int, tile: Tile) -> dict[str, int]:
    return {
        "TILE_HEADS": min(group, tile.block_m),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
