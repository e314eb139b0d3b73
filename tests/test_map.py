"""``map``: rows, failures, files, resumption, budgets."""

from __future__ import annotations

import asyncio
import json

import pytest

import furcate as fc
from furcate import Budget, Choice, Context, program
from furcate.testing import Scripted

pytestmark = pytest.mark.usefixtures("scripted")


@pytest.fixture
def scripted():
    model = Scripted(lambda prompt: prompt.split("<|im_start|>user\n")[-1].split("<|im_end|>")[0])
    with fc.using(model):
        yield model


@program
def shout(c: Context, text: str, mark: str = "!") -> str:
    if text == "bad":
        raise ValueError("a bad row")
    c.user(f"{text}{mark}")
    return c.gen(max_tokens=20)


def test_a_row_is_the_sole_argument_a_tuple_or_keywords():
    assert shout.map(["a", ("b", "?"), {"text": "c", "mark": "."}]).ok == ["a!", "b?", "c."]


def test_values_come_in_row_order_for_more_rows_than_run_at_once():
    rows = [str(i) for i in range(700)]
    assert shout.map(rows).ok == [f"{row}!" for row in rows]


def test_keep_collects_failures_and_the_other_rows_finish():
    results = shout.map(["a", "bad", "b", {"nonsense": 1}], on_error="keep")
    assert results.ok == ["a!", "b!"]
    assert [(f.index, type(f.error)) for f in results.failed] == [(1, ValueError), (3, TypeError)]
    assert results.usage.generated == 4


def test_raise_is_the_default():
    with pytest.raises(ValueError, match="a bad row"):
        shout.map(["a", "bad", "b"])


def test_out_is_written_row_by_row_and_resume_runs_only_what_is_missing(tmp_path, scripted):
    out = tmp_path / "out.jsonl"
    shout.map(["a", "bad", "b"], on_error="keep", out=out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(line["index"] for line in lines) == [0, 1, 2]
    with out.open("a") as file:
        file.write('{"index": 1, "val')  # cut off by a kill
    results = shout.map(["a", "bad", "b", "new"], on_error="keep", out=out, resume=True)
    assert results.ok == ["a!", "b!", "new!"]
    assert results.usage.generated == 4  # only the new row ran and generated
    with pytest.raises(fc.FurcateError, match="not the row"):
        shout.map(["other", "bad", "b"], out=out, resume=True)


def test_resume_gives_values_of_the_declared_type_back(tmp_path):
    @program
    def pick(c: Context, text: str) -> Choice[str]:
        c.user(text)
        return c.select(["yes", "no"])

    out = tmp_path / "out.jsonl"
    first = pick.map(["yes", "no"], out=out).ok
    again = pick.map(["yes", "no"], out=out, resume=True).ok
    assert [c.value for c in again] == [c.value for c in first] == ["yes", "no"]


def test_a_budget_covers_all_rows_and_is_checked_before_dispatch():
    results = shout.map([str(i) for i in range(50)], budget=Budget(tokens=200), on_error="keep")
    assert results.ok
    assert results.failed
    assert {type(f.error) for f in results.failed} == {fc.BudgetExceeded}


def test_each_row_draws_with_its_own_seed():
    @program
    def seed(c: Context, row: int) -> int:
        return c._execution.seed

    assert seed.using(seed=7).map(range(3)).ok == [7, 8, 9]


def test_amap_and_map_inside_a_program():
    assert asyncio.run(shout.amap(["a", "b"])).ok == ["a!", "b!"]

    @program
    def outer(c: Context) -> list[str]:
        return list(shout.map(["x", "y"]).ok)

    assert outer() == ["x!", "y!"]


def test_resume_without_a_file_is_a_value_error():
    with pytest.raises(ValueError, match="resume=True needs out="):
        shout.map(["a"], resume=True)


@program
def cyclic(c: Context, row: int) -> list:
    value: list = []
    value.append(value)
    return value


def test_a_value_without_json_is_a_value_where_no_file_is_written(tmp_path):
    assert len(cyclic.map([1, 2]).ok) == 2
    with pytest.raises(ValueError, match="Circular"):
        cyclic.map([1, 2], out=tmp_path / "out.jsonl")


def test_a_full_disk_ends_the_map_with_its_error():
    with pytest.raises(OSError, match="No space left"):
        shout.map(["a", "b"], out="/dev/full")
    with pytest.raises(OSError, match="nowhere"):
        shout.map(["a", "b"], out="/nowhere/out.jsonl")


def test_five_thousand_rows_that_cannot_start():
    results = shout.map(({"nonsense": i} for i in range(5000)), on_error="keep")
    assert [f.index for f in results.failed] == list(range(5000))


def test_resume_reads_over_garbage_and_leaves_a_readable_file(tmp_path):
    out = tmp_path / "out.jsonl"
    garbage = ["[1]", "3", "null", '"x"', '{"index": true, "value": 3}', '{"index": -1, "value": 3}', '{"index": 0}']
    out.write_bytes("\n".join(garbage).encode() + b'\n\xff\xfe\n{"index": 0, "val')
    rows = ["a\u2028b\x85", "b", "c"]
    assert shout.map(rows, out=out, resume=True).ok == [f"{row}!" for row in rows]
    again = shout.map(rows, out=out, resume=True)
    assert again.ok == [f"{row}!" for row in rows]
    assert again.usage.generated == 0


def test_a_failing_row_stops_hundreds_that_are_running():
    ended = []

    @program
    async def waits(c: Context, i: int):
        if i == 200:
            raise ValueError("row 200")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(i)

    with pytest.raises(ValueError, match="row 200"):
        waits.map(range(1000))
    assert sorted(ended) == [i for i in range(256) if i != 200]


def test_a_map_inside_a_map():
    @program
    def outer(c: Context, i: int) -> int:
        return len(shout.map([str(j) for j in range(3)]).ok)

    assert outer.map(range(300)).ok == [3] * 300


def test_a_file_that_holds_results_is_not_overwritten(tmp_path):
    out = tmp_path / "out.jsonl"
    shout.map(["a"], out=out)
    with pytest.raises(fc.FurcateError, match="resume=True"):
        shout.map(["b"], out=out)
    assert shout.map(["a", "b"], out=out, resume=True).ok == ["a!", "b!"]


def test_an_error_names_its_row_and_a_bare_string_is_refused():
    with pytest.raises(ValueError, match="a bad row") as caught:
        shout.map(["a", "bad"])
    assert caught.value.__notes__ == ["in row 1 of shout.map: 'bad'"]
    with pytest.raises(TypeError, match="list of rows"):
        shout.map("ab")
