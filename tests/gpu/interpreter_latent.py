"""The latent (MLA) shape of tree attention in Triton's interpreter: one KV head whose values lie inside its keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from furcate.kernels.gpu_plan import GpuPlan, GpuPlanner, PlanShape
from furcate.kernels.layout import BLOCK_SIZE, CHUNK_SIZE, StepBatch
from furcate.kernels.triton_merge import merge_partials_kernel
from furcate.kernels.triton_prefill import prefill_attention_kernel
from furcate.kernels.triton_tiles import LATENT_DIM, LATENT_ROPE_DIM, attention_tiles
from furcate.kernels.triton_tree_attention import reference_tree_attention, tree_attention_kernel

TILE = attention_tiles(LATENT_DIM, deterministic=True).small
HEADS = 16
WIDTH = LATENT_DIM + LATENT_ROPE_DIM
SCALE = 192**-0.5


def attend(query: torch.Tensor, pool: torch.Tensor, plan: GpuPlan, positions: torch.Tensor, row_dot: bool) -> Any:
    arrays = {
        name: torch.from_numpy(getattr(plan, name))
        for name in ("small", "large", "tiles", "blocks", "item_rows", "merge_rows", "merge_starts", "merge_entries")
    }
    constants = {"GROUP": HEADS, "TILE_HEADS": HEADS, "DIM": LATENT_DIM, "DIM_PAD": LATENT_DIM, "LATENT": True}
    constants |= {"ROPE_DIM": LATENT_ROPE_DIM, "BLOCK_M": TILE.block_m, "BLOCK_N": TILE.block_n}
    constants |= {"BLOCK_SIZE": BLOCK_SIZE, "HAS_SOFTCAP": False, "HAS_WINDOW": False, "ROW_DOT": row_dot}
    constants |= {"UPCAST": True, "PRECISION": "ieee"}
    scalars = (SCALE * 1.4426950408889634, 0.0, 0, 1.0)
    out = torch.full((len(query), HEADS, LATENT_DIM), torch.nan, dtype=query.dtype)
    partial_out = torch.full((max(1, plan.num_partials), HEADS, LATENT_DIM), torch.nan)
    partial_lse = torch.full((max(1, plan.num_partials), HEADS), torch.nan)
    none = torch.zeros(1)
    for name, count in (("small", plan.num_small), ("large", plan.num_large)):
        tree_attention_kernel[(1, 1)](  # one program strides over all items, as in a captured graph
            *(query, pool, pool, arrays[name], torch.tensor([count], dtype=torch.int32)),
            *(arrays["blocks"], arrays["item_rows"], positions, partial_out, partial_lse),
            *(query.stride(0), query.stride(1), WIDTH, *scalars),
            **constants,
            HEADS=HEADS,
        )
    if len(plan.merge_rows):
        merge_partials_kernel[(len(plan.merge_rows), 1)](
            *(partial_out, partial_lse, arrays["merge_rows"], arrays["merge_starts"], arrays["merge_entries"], none),
            *(out, out.stride(0)),
            **{"HEADS": HEADS, "DIM": LATENT_DIM, "DIM_PAD": LATENT_DIM, "BLOCK_H": HEADS, "HAS_SINKS": False},
        )
    if len(plan.tiles):
        prefill_attention_kernel[(1, 1)](
            *(query, pool, pool, arrays["tiles"], torch.tensor([len(plan.tiles)], dtype=torch.int32)),
            *(arrays["blocks"], positions, none, out, query.stride(0), query.stride(1), out.stride(0), WIDTH, *scalars),
            **constants,
            CHUNK_SIZE=CHUNK_SIZE,
            HAS_SINKS=False,
        )
    return out


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_items_and_walked_chunks_agree_with_dense_attention(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(12)
    pool = torch.full((24, BLOCK_SIZE, 1, WIDTH), torch.nan, dtype=dtype)
    trunk = list(range(17))[::-1]
    tables = [[*trunk, 20], [*trunk, 21]]
    positions = [[274, 275], [277]]
    for table, own in zip(tables, positions, strict=True):
        at = torch.arange(own[-1] + 1)
        pool[torch.tensor(table)[at // BLOCK_SIZE], at % BLOCK_SIZE] = torch.randn(
            len(at), 1, WIDTH, generator=generator
        ).to(dtype)
    query = torch.randn(3, HEADS, WIDTH, generator=generator).to(dtype)
    flat = torch.tensor([274, 275, 277], dtype=torch.int32)
    batch = StepBatch([0] * 3, flat.tolist(), [0, 0, 1], tables, [], [], [])
    for inline_rows in (10, 2):
        plan = GpuPlanner(PlanShape(1, 1, inline_rows)).plan(batch)
        assert len(plan.tiles) == (2 if inline_rows == 2 else 0)
        got = attend(query, pool, plan, flat, row_dot=False)
        for row, table in enumerate((tables[0], tables[0], tables[1])):
            at = torch.arange(int(flat[row]) + 1)
            key = pool[torch.tensor(table)[at // BLOCK_SIZE], at % BLOCK_SIZE]
            want, _ = reference_tree_attention(
                query[row : row + 1], key, key[..., :LATENT_DIM], flat[row : row + 1], at, scale=SCALE
            )
            assert (got[row].double() - want[0]).abs().max() < tolerance
