"""Hostile patterns, huge schemas and enumerations: a typed error or a constraint within the limits."""

from __future__ import annotations

import contextlib
import time

import pytest

from furcate.lang.testing import admits
from furcate.lang.types import json_schema, regex
from furcate.runtime.constraints import limited
from furcate.runtime.constraints.byte_dfa import compile_pattern
from furcate.runtime.constraints.json_schema import compile_schema
from furcate.runtime.errors import InvalidRegex, UnsatisfiableConstraint, UnsupportedSchema

HOSTILE = [r"(?i)(?:\w[\w ]{0,60}){1,40}x\w{30}", "(?:a|b)*a(?:a|b){40}", "(?:(?:a{0,90}){0,90}){0,9}"]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_hostile_pattern_ends_in_a_typed_error_in_time(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "TIME_LIMIT_S", 2.0)
    start = time.monotonic()
    with contextlib.suppress(InvalidRegex):
        admits(regex(pattern), "a")
    assert time.monotonic() - start < 30  # a hang, not slowness, is what this finds
    assert admits(regex("[a-z]{1,9}"), "abc")


def test_the_child_compiles_what_this_process_would() -> None:
    pattern = "[a-c]{2,9}(?:x|yy){8}"
    assert limited.is_risky(pattern)
    here, there = compile_pattern(pattern), limited.compile_limited(pattern)
    assert (here.table == there.table).all()
    assert (here.accepting == there.accepting).all()


@pytest.mark.parametrize(
    ("pattern", "error"), [("a{8}(", InvalidRegex), ("[a&&b]{9}", (InvalidRegex, UnsatisfiableConstraint))]
)
def test_the_childs_errors_are_this_process_own(pattern: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        limited.compile_limited(pattern)


def test_ten_thousand_choices() -> None:
    wanted = json_schema({"enum": [f"choice number {i}" for i in range(10_000)]})
    assert admits(wanted, '"choice number 9999"')
    assert not admits(wanted, '"choice number 10000"')


def test_a_schema_of_a_megabyte() -> None:
    properties = {f"property_{i}": {"type": "string", "description": "x" * 400} for i in range(2_300)}
    machine = compile_schema({"type": "object", "properties": properties, "additionalProperties": False}).machine
    assert machine.read(b'{"property_7":"a","property_2000":""}').ends


def test_alternatives_that_multiply_are_refused() -> None:
    arms = [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(6)]} for i in range(12)]
    with pytest.raises(UnsupportedSchema, match="alternatives"):
        compile_schema({"allOf": arms})


def test_deep_nesting_is_refused_or_built() -> None:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(3_000):
        schema = {"items": schema}
    with pytest.raises(UnsupportedSchema, match="deep"):
        compile_schema(schema)
