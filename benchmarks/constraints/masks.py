"""What masks cost: ``python benchmarks/constraints/masks.py [--schemas N] [--out FILE]``, on smollm2-135m's vocabulary.

For each of N schemas of maskbench (every k-th) the first valid instance is fed token by token, and the mask of every
state is taken twice: new, and known. Seconds are those of the process's CPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from pathlib import Path

from furcate.runtime.constraints.json_schema import compile_schema
from furcate.runtime.constraints.machine_masks import MachineConstraint
from furcate.runtime.constraints.schema_build import Style
from furcate.runtime.errors import FurcateError
from furcate.runtime.models.loading import load_model

DATA = Path(os.environ.get("FURCATE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def shares(seconds: list[float]) -> dict[str, float]:
    """p50, p90, p99 and the greatest, in microseconds."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        **{f"p{p}": round(1e6 * ordered[last * p // 100], 1) for p in (50, 90, 99)},
        "max": round(1e6 * ordered[-1], 1),
    }


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=40)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tokenizer = load_model(options.model).tokenizer
    with gzip.open(DATA / "maskbench_a.jsonl.gz", "rt") as lines:
        cases = [json.loads(line) for line in lines]
    new: list[float] = []
    known: list[float] = []
    compiled: list[float] = []
    for case in cases[:: max(1, len(cases) // options.schemas)]:
        valid = next((test["data"] for test in case["tests"] if test["valid"]), None)
        if valid is None:
            continue
        start = time.process_time()
        try:
            machine = compile_schema(case["schema"], style=Style(ordered=False)).machine
        except FurcateError:
            continue
        compiled.append(time.process_time() - start)
        constraint = MachineConstraint(machine, tokenizer.vocabulary)
        state = constraint.initial()
        for token in tokenizer.encode(json.dumps(valid, separators=(",", ":")))[:200]:
            for into in (new, known):
                start = time.process_time()
                constraint.mask(state)
                into.append(time.process_time() - start)
            state = constraint.advance(state, token)
    report = {
        "vocabulary": tokenizer.vocabulary.size,
        "schemas": len(compiled),
        "masks": len(new),
        "compile us": shares(compiled),
        "new state us": shares(new),
        "known state us": shares(known),
    }
    print(json.dumps(report, indent=1))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
