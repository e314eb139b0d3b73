"""The commands of ``furcate``: each takes the parsed command line, writes to stdout and returns an exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..runtime.models.known import list_models
from . import cli_report as report
from .backends.base import Model
from .checks import Finding
from .cli_errors import FAILED, OK, UsageError
from .cli_target import AnyProgram, bind, find_program, find_programs, row
from .errors import ModelNotFound
from .load import EMBEDDED, load, using
from .render import to_text

Command = Callable[[argparse.Namespace], int]


def run(args: argparse.Namespace) -> int:
    """``furcate run``: run a program once."""
    program = find_program(args.program)
    values = bind(program, args.arg)
    show = sys.stdout.isatty() and not args.json if args.show is None else args.show
    if show:
        _write(report.section("graph", to_text(program.compile())))
    with _model(args.model) as model:
        done = _configured(program, args).run(**values)
        stats = model.stats()
        if args.json:
            shown = {
                "value": done.value,
                "usage": report.usage_fields(done.usage),
                "seed": done.seed,
                "model": model.name,
                "engine": dict(stats),
            }
            _write(report.value_json(shown, indent=2) + "\n")
        elif show:
            _write(report.section("text", report.transcript(done.events)))
            _write(report.section(f"value of {program.name} on {model.name}", report.value_text(done.value)))
            _write(report.section("tokens", report.usage_text(done.usage, stats)))
        else:
            _write(report.value_text(done.value) + "\n")
    return OK


def graph(args: argparse.Namespace) -> int:
    """``furcate graph``: print a program's planned graph."""
    plan = find_program(args.program).compile()
    draw: Mapping[str, Callable[[], str]] = {
        "mermaid": plan.to_mermaid,
        "text": lambda: to_text(plan),
        "dot": plan.to_dot,
        "json": plan.to_json,
        "html": plan._repr_html_,
    }
    _write(draw[args.format]().rstrip("\n") + "\n")
    return OK


def check(args: argparse.Namespace) -> int:
    """``furcate check``: print the findings of programs; FAILED if one is an error."""
    programs = [program for target in args.program for program in find_programs(target).values()]
    with _model(args.model) if args.model else nullcontext() as model:  # loaded once for all programs
        findings = [finding for program in programs for finding in program.check(model)]
    if args.json:
        _write(json.dumps([_fields(finding) for finding in findings], indent=2) + "\n")
    else:
        for finding in findings:
            _write(finding.render().rstrip("\n") + "\n")
        _write(_summary(len(programs), findings) + "\n")
    return FAILED if any(finding.level == "error" for finding in findings) else OK


def map_rows(args: argparse.Namespace) -> int:
    """``furcate map``: run a program on each row of a JSON Lines file; FAILED if a row failed."""
    if args.resume and not args.out:
        raise UsageError("--resume needs --out FILE, the file to go on with")
    program = find_program(args.program)
    rows = [row(program, value) for value in _json_lines(args.rows)]
    with _model(args.model):
        results = _configured(program, args).map(rows, on_error=args.on_error, out=args.out, resume=args.resume)
    if not args.out:
        for value in results.ok:
            _write(report.value_json(value) + "\n")
    for failed in results.failed:
        sys.stderr.write(f"row {failed.index}: {type(failed.error).__name__}: {failed.error}\n")
    sys.stderr.write(f"{len(results.ok)} rows done, {len(results.failed)} failed\n")
    return FAILED if results.failed else OK


def models(args: argparse.Namespace) -> int:
    """``furcate models``: list what ``--model`` takes."""
    known = list_models()
    _write(report.value_json(known, indent=2) + "\n" if args.json else "".join(f"{line}\n" for line in known))
    return OK


COMMANDS: Mapping[str, Command] = {"run": run, "graph": graph, "check": check, "map": map_rows, "models": models}


@contextmanager
def _model(name: str | None) -> Iterator[Model]:
    """The model of the run, closed at its end; a name that is not known is a usage error with the nearest one."""
    wanted = name or os.environ.get("FURCATE_MODEL") or EMBEDDED
    try:
        model = load(wanted)
    except ModelNotFound as error:
        raise UsageError(str(error)) from error  # it names what is near
    try:
        with using(model):
            yield model
    finally:
        model.close()


def _configured(program: AnyProgram, args: argparse.Namespace) -> AnyProgram:
    return program.using(seed=args.seed, temperature=args.temperature, timeout=args.timeout)


def _summary(num_programs: int, findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning", "note")}
    found = ", ".join(f"{n} {level}{'s' * (n != 1)}" for level, n in counts.items() if n) or "nothing found"
    return f"{num_programs} program{'s' * (num_programs != 1)}: {found}"


def _fields(finding: Finding) -> dict[str, Any]:
    names = ("code", "level", "message", "mend", "file", "line", "column")
    return {name: getattr(finding, name) for name in names}


def _json_lines(name: str) -> Iterator[Any]:
    try:
        lines = (
            Path(name).read_text(encoding="utf-8").split("\n")
        )  # not splitlines: U+2028 is legal inside a JSON string
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UsageError(f"{name}:{number} is not JSON: {error}") from error


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
