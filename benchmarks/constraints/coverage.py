"""How many schemas are enforced exactly: ``python benchmarks/constraints/coverage.py [maskbench|suite] [--out FILE]``.

Reads the cases from the folder that FURCATE_DATA names (by default ``shared/data`` beside the checkout). Each instance
is written compactly and with ``json.dumps``' own spacing, its keys in the order of the data.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from furcate.runtime.constraints.json_schema import compile_schema
from furcate.runtime.constraints.schema_build import Style
from furcate.runtime.errors import FurcateError, UnsatisfiableConstraint, UnsupportedSchema

DATA = Path(os.environ.get("FURCATE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
FILES = {"maskbench": "maskbench_a.jsonl.gz", "suite": "json_schema_suite_2020_12.jsonl.gz"}


def judge(case: dict[str, Any], style: Style) -> tuple[str, str, float]:
    """(exact, under, over, refused, crashed or unsatisfiable, a detail, seconds of the compilation) for one schema."""
    start = time.process_time()
    try:
        machine = compile_schema(case["schema"], style=style).machine
    except UnsupportedSchema as error:
        return "refused", f"{error.keyword}: {error.reason}", time.process_time() - start
    except UnsatisfiableConstraint:
        machine = None
    except FurcateError as error:
        return "crashed", repr(error), time.process_time() - start
    spent = time.process_time() - start
    faults = set()
    detail = ""
    for test in case["tests"]:
        text = json.dumps(test["data"], separators=None if style.flexible else (",", ":"))
        admitted = machine is not None and machine.read(text.encode()).ends
        if admitted != test["valid"]:
            faults.add("under" if admitted else "over")
            detail = detail or text[:300]
    return "+".join(sorted(faults)) or "exact", detail, spent


def _late(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Judge all cases of one set and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", choices=sorted(FILES))
    parser.add_argument("--flexible", action="store_true")
    parser.add_argument("--any-order", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit-s", type=int, default=5, help="seconds for one schema")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th case from the i-th on")
    options = parser.parse_args()
    first, _, step = options.part.partition("/")
    signal.signal(signal.SIGALRM, _late)
    style = Style(flexible=options.flexible, ordered=not options.any_order)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    times = []
    with gzip.open(DATA / FILES[options.cases], "rt") as lines:
        for number, line in enumerate(lines):
            if number % int(step) != int(first):
                continue
            case = json.loads(line)
            signal.alarm(options.limit_s)
            try:
                verdict, detail, spent = judge(case, style)
            except TimeoutError:
                verdict, detail, spent = "timeout", "", float(options.limit_s)
            signal.alarm(0)
            counts[verdict] += 1
            times.append(spent)
            if verdict == "refused":
                reasons[detail.partition(":")[0]] += 1
            if options.show and verdict != "exact":
                print(verdict, "|", case.get("file", ""), "|", case["id"], "|", detail, f"| {spent:.3f}", flush=True)
    times.sort()
    report = {
        "cases": options.cases,
        "total": sum(counts.values()),
        **dict(counts.most_common()),
        "refused by keyword": dict(reasons.most_common()),
        "compile ms p50": round(1e3 * times[len(times) // 2], 2),
        "compile ms p99": round(1e3 * times[len(times) * 99 // 100], 1),
        "compile ms max": round(1e3 * times[-1], 1),
    }
    print(json.dumps(report, indent=1))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
