"""What the engine computes, holds and costs: exact counts first, then host time.

    python benchmarks/engine.py [--json FILE] [--skip-time]

Counts need the sample programs (FURCATE_SAMPLE_PROGRAMS names their folder) and run on ``test:tiny``; how many blocks
are held at most depends on how calls meet in steps, tokens do not. Times are CPU time of the engine's thread over a
model that answers at once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import furcate as fc
from furcate.kernels.layout import BLOCK_SIZE, StepBatch
from furcate.runtime.engine import Engine
from furcate.runtime.integrity import check_integrity
from furcate.runtime.kv_cache import KVCache
from furcate.runtime.metrics import Usage
from furcate.runtime.requests import GenRequest, SampleKey, Sampling
from furcate.runtime.sampler import Sample, SampleRow
from furcate.runtime.vocabulary import Vocabulary

PROGRAMS: dict[str, tuple[Any, ...]] = {
    "few_shot:classify": ("Superb acting, dull plot.",),
    "few_shot:classify_raw": ("Superb acting, dull plot.",),
    "judge:judge": ("Tea is better than coffee, because it is calmer. Everyone knows it.",),
    "nested:article": ("gardening",),
    "react:react": ("How many more people live in Finland than in Norway?",),
    "tree_of_thought:tree_of_thought": ("Make 24 from 4, 6, 8, 2.",),
    "vote:solve": ("Ann has 3 apples and buys 4 more. How many has she?",),
    "extract:extract": ("Invoice of 3 May 2026 from Alder & Co: 2 x AB-104 at 9.50 EUR.",),
}
VOCAB = 64


class Recorder:
    """Listens to one engine: which tokens it wrote, what its calls cost, what it held at most."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.usage = Usage()
        self.num_calls = 0
        self.distinct: set[int] = set()
        """Lineage tags of all tokens computed: equal tokens after equal texts count once."""
        self.peak_blocks = 0
        self.bound_at_peak = 0
        self._finish, self._run_step, self._write = engine._finish, engine._run_step, engine.cache.pool.write
        engine._finish = self.finish  # type: ignore[method-assign]  # listens, then does the same
        engine._run_step = self.run_step  # type: ignore[method-assign]
        engine.cache.pool.write = self.write  # type: ignore[method-assign]

    def finish(self, work: Any) -> None:
        self._finish(work)
        self.usage += work.tally.usage()
        self.num_calls += 1

    def write(self, block: int, offset: int, tag: int) -> None:
        self.distinct.add(tag)
        self._write(block, offset, tag)

    def run_step(self) -> None:
        self._run_step()
        pool = self.engine.cache.pool
        if pool.num_referenced > self.peak_blocks:
            self.peak_blocks = pool.num_referenced
            self.bound_at_peak = fewest_blocks(self.engine.cache)


def fewest_blocks(cache: KVCache) -> int:
    """Blocks without which the resident tokens of all branches cannot be held: one for every distinct text up to a
    block's end, and one for every last, partial block that no other continues."""
    whole: set[tuple[int, int]] = set()
    partial: dict[tuple[int, int], tuple[int, ...]] = {}
    for seq in cache.residency.holders:
        for logical, block in enumerate(seq.table):
            size = min(BLOCK_SIZE, seq.resident - logical * BLOCK_SIZE)
            tags = tuple(cache.pool.tag(block, offset) for offset in range(size))
            if size == BLOCK_SIZE:
                whole.add((logical, tags[-1]))
                for end in range(1, BLOCK_SIZE):
                    partial.pop((logical, tags[end - 1]), None)
            else:
                partial[logical, tags[-1]] = tags
    inner = {(logical, tag) for (logical, _), tags in partial.items() for tag in tags[:-1]}
    for seq in cache.residency.holders:
        for logical, block in enumerate(seq.table):
            if (logical + 1) * BLOCK_SIZE <= seq.resident:
                inner.update((logical, cache.pool.tag(block, offset)) for offset in range(BLOCK_SIZE - 1))
    return len(whole) + sum(key not in inner for key in partial)


def load_program(folder: Path, name: str) -> Any:
    """The program ``FILE:NAME`` of the folder."""
    file, _, attribute = name.partition(":")
    spec = importlib.util.spec_from_file_location(f"sample_{file}", folder / f"{file}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(folder / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, attribute)


def count_program(folder: Path, name: str) -> dict[str, Any]:
    """Run one program on a cold engine. Without sharing means: every call prefills its whole context."""
    model = fc.load("test:tiny")
    recorder = Recorder(model._engine)  # type: ignore[attr-defined]  # an EngineModel
    outcome = "value"
    try:
        load_program(folder, name).using(model, seed=11)(*PROGRAMS[name])
    except (fc.Truncated, fc.BranchError) as error:
        outcome = type(error).__name__
    stats = model.stats()
    model.check_integrity()
    model.close()
    usage = recorder.usage
    off = usage.prompt + usage.decoded
    return {
        "program": name,
        "outcome": outcome,
        "calls": recorder.num_calls,
        "tokens_without_sharing": off,
        "tokens_computed": stats["tokens_computed"],
        "distinct_tokens": len(recorder.distinct),
        "query_rows": stats["query_rows"],
        "recomputed": usage.recomputed,
        "copied_blocks": stats["blocks_copied"],
        "peak_blocks": recorder.peak_blocks,
        "fewest_blocks": recorder.bound_at_peak,
    }


class Instant:
    """A model that answers at once: what is left is the engine's own cost."""

    vocab_size = VOCAB

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._logits = torch.zeros(2048, VOCAB)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Zeros ``[outputs, vocab]``."""
        return self._logits[: len(batch.logit_rows)]


class Counting:
    """A sampler whose draws differ from branch to branch, so that nothing but the trunk is shared."""

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> list[Sample]:
        """One token per row, from its key and position."""
        return [Sample((7 * row.position + row.key.stream) % 60, 0.0, None) for row in rows]


def crowded(num_running: int, num_waiting: int, context: int, steps: int) -> Engine:
    """An engine in which ``num_running`` branches of one trunk decode and ``num_waiting`` calls wait."""
    vocabulary = Vocabulary(tuple(bytes([i]) for i in range(VOCAB)), frozenset())
    num_blocks = 40_000
    engine = Engine(
        Instant(num_blocks),
        vocabulary,
        Counting(),
        num_blocks=num_blocks,
        max_context=1_000_000,
        max_step_tokens=2048,
        threaded=False,
    )
    engine.scheduler._max_running = num_running
    trunk = engine.root()
    trunk.append([7 * i % 61 for i in range(context)])
    keep = trunk.fork(num_running + num_waiting)
    for i, branch in enumerate(keep):
        branch.append([i % 60, i // 60 % 60, i // 3600])
        key = SampleKey(1, i)
        branch.generate(GenRequest(max_tokens=steps + 100, sampling=Sampling(), key=key, end_ids=frozenset()))
    while not all(getattr(work, "steady", False) for work in engine.scheduler.running) or not engine.scheduler.running:
        engine.step()
    engine._keep = keep  # type: ignore[attr-defined]  # branches that are collected release themselves
    return engine


def time_host(num_running: int, num_waiting: int, context: int = 4096, steps: int = 100) -> dict[str, Any]:
    """CPU milliseconds a step takes, the model's none."""
    engine = crowded(num_running, num_waiting, context, steps)
    scheduling = 0.0
    plan = engine.scheduler.plan

    def timed() -> Any:
        nonlocal scheduling
        start = time.thread_time()
        planned = plan()
        scheduling += time.thread_time() - start
        return planned

    engine.scheduler.plan = timed  # type: ignore[method-assign]
    start = time.thread_time()
    for _ in range(steps):
        engine.step()
    total = time.thread_time() - start
    start = time.thread_time()
    check_integrity(engine.cache)
    walk = time.thread_time() - start
    return {
        "running": num_running,
        "waiting": num_waiting,
        "context": context,
        "scheduler_ms": round(1e3 * scheduling / steps, 3),
        "step_ms": round(1e3 * total / steps, 3),
        "check_integrity_ms": round(1e3 * walk, 1),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table."""
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    for row in [dict(zip(names, names, strict=True)), *rows]:
        print("  ".join(str(row[name]).rjust(width) for name, width in zip(names, widths, strict=True)))
    print()


def main() -> None:
    """Print counts, then times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--skip-time", action="store_true", help="counts only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    folder = os.environ.get("FURCATE_SAMPLE_PROGRAMS")
    if folder:
        figures["programs"] = [count_program(Path(folder), name) for name in PROGRAMS]
        show(figures["programs"])
    else:
        print("FURCATE_SAMPLE_PROGRAMS is not set: no counts of programs")
    if not options.skip_time:
        figures["host"] = [time_host(*load) for load in ((1, 0), (32, 0), (256, 0), (256, 10_000))]
        figures["host"] += [time_host(256, 0, context=context) for context in (256, 16_384)]
        show(figures["host"])
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
