"""Triton kernels on a GPU: correctness, then time against named peers of the same run. Under five minutes.

    python benchmarks/gpu.py [--json FILE]                      on a GPU
    python benchmarks/gpu.py --dry-run [--targets sm_90,...]   anywhere: shapes, plans, what compiled kernels take

Times are medians of CUDA events. Bytes are what the plan says must be read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from furcate.kernels.gpu_plan import GpuPlanner, PlanShape
from furcate.kernels.interface import KVShape
from furcate.kernels.layout import BLOCK_SIZE, BlockCopy, StepBatch
from furcate.kernels.torch_backend import TorchBackend
from furcate.kernels.triton_backend import TritonBackend
from furcate.kernels.triton_compile import TARGETS, compile_variant, variants
from furcate.kernels.triton_linear import linear, reference_linear
from furcate.kernels.triton_rms_norm import reference_rms_norm, rms_norm
from furcate.kernels.triton_tiles import UnsupportedByKernel, attention_tiles
from furcate.kernels.triton_token_mask import apply_token_mask, reference_token_mask
from furcate.runtime.model_runner import ModelRunner
from furcate.runtime.models.assemble import assemble_model
from furcate.runtime.models.byte_tokenizer import ByteTokenizer

BRANCHES = (1, 4, 16, 64, 256)
PREFIXES = (256, 2048, 8192, 32768)
OWN = 64
"""Tokens of each branch after the shared prefix."""
TARGET_RATIOS = {
    "unshared decode at 32k tokens, share of copy bandwidth": 0.85,
    "fork(64) on 8k against one branch": 1.15,
    "fork(64) on 8k, times as fast as unshared": 10.0,
}


@dataclass(frozen=True)
class Shape:
    name: str
    heads: int
    kv_heads: int
    dim: int

    @property
    def bytes_per_token(self) -> int:
        """K and V of one layer in bf16."""
        return 2 * self.kv_heads * self.dim * 2

    def plan_shape(self) -> PlanShape:
        tiles, group = attention_tiles(self.dim, deterministic=False), self.heads // self.kv_heads
        return PlanShape(tiles.small.block_m // group, tiles.large.block_m // group, max(2, -(-128 // group)))


SHAPES = (Shape("Llama-8B", 32, 8, 128), Shape("SmolLM2-135M", 9, 3, 64))


def fork_batch(branches: int, prefix: int, *, shared: bool) -> tuple[StepBatch, int]:
    """One decode row for each branch, and the number of blocks that their tables use."""
    trunk = prefix // BLOCK_SIZE
    total = -(-(prefix + OWN) // BLOCK_SIZE)
    fresh = total - trunk if shared else total
    first = trunk if shared else 0
    tables = [
        [*range(first), *range(first + branch * fresh, first + (branch + 1) * fresh)] for branch in range(branches)
    ]
    rows, last = list(range(branches)), prefix + OWN - 1
    slots = [table[last // BLOCK_SIZE] * BLOCK_SIZE + last % BLOCK_SIZE for table in tables]
    return StepBatch([0] * branches, [last] * branches, rows, tables, rows, slots, rows), first + branches * fresh


def dry_run(targets: list[str]) -> dict[str, Any]:
    """Shapes and plans of every case, and the resources of every kernel: nothing here needs a GPU."""
    plans = []
    for shape in SHAPES:
        for branches, prefix in ((b, p) for b in BRANCHES for p in PREFIXES):
            batch, blocks = fork_batch(branches, prefix, shared=True)
            plan = GpuPlanner(shape.plan_shape()).plan(batch)
            plans.append(
                {
                    "shape": shape.name,
                    "branches": branches,
                    "prefix": prefix,
                    "pool_blocks": blocks,
                    "items": plan.num_small + plan.num_large,
                    "partials": plan.num_partials,
                    "kv_bytes_read": plan.kv_tokens_read * shape.bytes_per_token,
                    "kv_bytes_unshared": branches * (prefix + OWN) * shape.bytes_per_token,
                }
            )
    planner, host_ms = GpuPlanner(SHAPES[0].plan_shape()), []
    batch, _ = fork_batch(64, 4096 - OWN, shared=True)
    for fresh in (True, False) * 20:
        planner = GpuPlanner(SHAPES[0].plan_shape()) if fresh else planner
        start = time.process_time()
        planner.plan(batch)
        host_ms.append((fresh, (time.process_time() - start) * 1e3))
    kernels = {}
    for variant in variants():
        for target in targets:
            try:
                taken = compile_variant(variant, target)
            except UnsupportedByKernel as reason:
                kernels[f"{variant.name} on {target}"] = str(reason)
                continue
            kernels[f"{variant.name} on {target}"] = (
                f"{taken.registers} registers, {taken.shared_bytes} B shared, {taken.spilled_bytes} B spilled"
            )
    return {
        "plans": plans,
        "host planning of 64 branches x 4096 tokens, CPU ms": {
            "anew": min(ms for fresh, ms in host_ms if fresh),
            "carried over": min(ms for fresh, ms in host_ms if not fresh),
        },
        "kernels": kernels,
    }


def median_us(run: Callable[[], Any], repeats: int = 20) -> float:
    """Median time of ``run`` on the device, after three runs that are not counted."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes per microsecond of a device-to-device copy of 1 GiB, reads and writes both counted."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / median_us(lambda: target.copy_(source))


def backends(shape: Shape, blocks: int) -> tuple[TritonBackend, TorchBackend]:
    """Both backends over equal random KV."""
    kv = KVShape(1, blocks, [shape.kv_heads], [shape.dim], torch.bfloat16, torch.device("cuda"))
    ours, reference = TritonBackend(kv), TorchBackend(kv)
    for mine, theirs in zip(ours.kv_pool(0), reference.kv_pool(0), strict=True):
        theirs.copy_(mine.normal_())
    return ours, reference


def correctness() -> dict[str, float]:
    """Greatest distance of every kernel from its reference on the device, in bf16."""
    found: dict[str, float] = {}
    for shape in SHAPES:
        for kind, rows in (("decode", 1), ("prefill", 200)):
            batch, blocks = fork_batch(5, 1024, shared=True)
            if rows > 1:
                last = batch.positions[0]
                batch = StepBatch(
                    [0] * rows, list(range(last - rows + 1, last + 1)), [0] * rows, batch.tables[:1], [], [], []
                )
            ours, reference = backends(shape, blocks)
            query = torch.randn(batch.num_rows, shape.heads, shape.dim, device="cuda", dtype=torch.bfloat16)
            key, value = torch.randn(2, batch.num_rows, shape.kv_heads, shape.dim, device="cuda", dtype=torch.bfloat16)
            outs = []
            for backend in (ours, reference):
                plan = backend.plan(batch)
                backend.copy_blocks([BlockCopy(0, blocks - 1, 7)] if rows > 1 else [])
                backend.write_kv(0, key, value, plan)
                outs.append(backend.attend(0, query, plan, scale=shape.dim**-0.5, softcap=None))
            found[f"attention {shape.name} {kind}"] = float((outs[0] - outs[1]).abs().max())
            pools = zip(ours.kv_pool(0), reference.kv_pool(0), strict=True)
            found[f"pool {shape.name} {kind}"] = max(float((mine - theirs).abs().max()) for mine, theirs in pools)
    x, weight = torch.randn(37, 4096, device="cuda").bfloat16(), torch.randn(512, 4096, device="cuda").bfloat16()
    found["linear"] = float((linear(x, weight).double() - reference_linear(x, weight)).abs().max())
    found["rms_norm"] = float(
        (rms_norm(x, weight[0], 1e-5).double() - reference_rms_norm(x, weight[0], 1e-5)).abs().max()
    )
    logits = torch.randn(4, 128256)
    masks = torch.randint(-(2**31), 2**31, (2, 4008), dtype=torch.int64).to(torch.int32)
    rows_of = torch.tensor([0, -1, 1, 0], dtype=torch.int32)
    on_device = logits.cuda()
    apply_token_mask(on_device, masks.cuda(), rows_of.cuda())
    found["token mask, wrong ids"] = float((on_device.cpu() != reference_token_mask(logits, masks, rows_of)).sum())
    return found


def decode_cases(bandwidth: float) -> Iterator[dict[str, Any]]:
    """Decode attention of one layer, shared and unshared, against SDPA over gathered KV."""
    for shape in SHAPES:
        for branches, prefix in ((b, p) for b in BRANCHES for p in PREFIXES):
            query = torch.randn(branches, shape.heads, shape.dim, device="cuda", dtype=torch.bfloat16)
            row: dict[str, Any] = {"shape": shape.name, "branches": branches, "prefix": prefix}
            for shared in (True, False):
                batch, blocks = fork_batch(branches, prefix, shared=shared)
                if blocks * BLOCK_SIZE * shape.bytes_per_token > torch.cuda.mem_get_info()[0] * 0.3:
                    continue
                kv = KVShape(1, blocks, [shape.kv_heads], [shape.dim], torch.bfloat16, torch.device("cuda"))
                ours = TritonBackend(kv)
                plan = ours.plan(batch)
                ours.attend(0, query, plan, scale=shape.dim**-0.5)
                read = next(iter(plan.plans.values())).host.kv_tokens_read * shape.bytes_per_token
                took = median_us(partial(ours.attend, 0, query, plan, scale=shape.dim**-0.5))
                name = "shared" if shared else "unshared"
                row |= {f"{name}_us": took, f"{name}_share_of_copy_bandwidth": read / took / bandwidth}
                if not shared:
                    row["sdpa_on_gathered_us"] = sdpa_us(shape, branches, prefix + OWN, query)
            yield row


def sdpa_us(shape: Shape, branches: int, length: int, query: torch.Tensor) -> float | None:
    """SDPA over KV that lies gathered already; None where it does not fit."""
    if 2 * branches * length * shape.bytes_per_token > torch.cuda.mem_get_info()[0]:
        return None
    key, value = torch.randn(2, branches, shape.kv_heads, length, shape.dim, device="cuda", dtype=torch.bfloat16)
    return median_us(
        lambda: torch.nn.functional.scaled_dot_product_attention(query[:, :, None], key, value, enable_gqa=True)
    )


def model_step(config: LlamaConfig, device: str, branches: int, prefix: int) -> dict[str, float]:
    """One eager decode step of a random-weight Llama in bf16: host and device together, in microseconds, and the bytes
    of weights and KV that it must read."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        module = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    loaded = assemble_model(
        "llama", module, ByteTokenizer(), weights_version="random", device=device, dtype=torch.bfloat16
    )
    batch, blocks = fork_batch(branches, prefix, shared=True)
    runner = ModelRunner(loaded, num_blocks=blocks, deterministic=False, backend=TritonBackend)
    runner.forward(batch)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        runner.forward(batch).cpu()
        times.append((time.perf_counter() - start) * 1e6)
    shape = Shape("", config.num_attention_heads, config.num_key_value_heads, loaded.head_dim[0])
    plan = GpuPlanner(shape.plan_shape()).plan(batch)
    weights = sum(p.numel() * p.itemsize for name, p in module.named_parameters() if "embed" not in name)
    kv = plan.kv_tokens_read * shape.bytes_per_token * config.num_hidden_layers
    return {"branches": branches, "prefix": prefix, "step_us": statistics.median(times), "bytes": weights + kv}


def llama_8b() -> LlamaConfig:
    """Llama-3.1-8B's geometry."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    )


def ratios(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The figures that have a target, beside it."""
    llama = {(row["branches"], row["prefix"]): row for row in rows if row["shape"] == SHAPES[0].name}
    found = {
        "unshared decode at 32k tokens, share of copy bandwidth": llama[4, 32768].get(
            "unshared_share_of_copy_bandwidth"
        ),
        "fork(64) on 8k against one branch": llama[64, 8192]["shared_us"] / llama[1, 8192]["shared_us"],
    }
    if "unshared_us" in llama[64, 8192]:
        found["fork(64) on 8k, times as fast as unshared"] = (
            llama[64, 8192]["unshared_us"] / llama[64, 8192]["shared_us"]
        )
    return {name: {"measured": value, "target": TARGET_RATIOS[name]} for name, value in found.items() if value}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--targets", default="sm_90", help=f"of --dry-run, out of {', '.join(TARGETS)}")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.dry_run:
        result = dry_run(options.targets.split(","))
    elif not torch.cuda.is_available():
        sys.exit("no GPU here; --dry-run needs none")
    else:
        bandwidth = copy_bandwidth()
        errors = correctness()
        rows = list(decode_cases(bandwidth))
        step = model_step(llama_8b(), "cuda", 64, 8192)
        result = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "copy_bandwidth_gb_s": bandwidth / 1e3,
            "greatest_error": errors,
            "decode": rows,
            "eager step of Llama-8B": step,
            "step against its bytes at copy bandwidth": step["step_us"] / (step["bytes"] / bandwidth),
            "ratios": ratios(rows),
        }
    text = json.dumps(result, indent=1)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
