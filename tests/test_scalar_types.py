"""The texts of numbers, dates and strings: exactly those that their types can hold."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from furcate.lang.testing import admits
from furcate.lang.types import regex, resolve


def test_length_counts_characters_however_they_are_spelt() -> None:
    wanted = Annotated[str, Field(min_length=2, max_length=2)] | None
    for text in ('"ab"', '"\\u0041\\u0042"', '"\\n\\n"', '"é€"', '"🎉\\ud83c\\udf89"', "null"):
        assert admits(wanted, text), text
    for text in ('"a"', '"abc"', '"\\u0041"', '"🎉"', '""'):
        assert not admits(wanted, text), text


@given(st.integers(-2000, 2000), st.integers(0, 3000), st.integers(-5500, 5500))
@settings(max_examples=50, deadline=None)
def test_integer_bounds_are_exact(low: int, width: int, value: int) -> None:
    closed = Annotated[int, Field(ge=low, le=low + width)]
    assert admits(closed, str(value)) == (low <= value <= low + width)
    assert admits(Annotated[int, Field(gt=low)], str(value)) == (value > low)
    assert admits(Annotated[int, Field(lt=low)], str(value)) == (value < low)
    assert admits(Annotated[int, Field(le=float(low))], str(value)) == (value <= low)


@pytest.mark.parametrize("text", ["01", "+1", "", "-", "1.0", " 1", "1 ", "1_0", "1e3"])
def test_integers_are_written_one_way(text: str) -> None:
    assert not admits(int, text)


def test_integers_have_no_longest_text() -> None:
    digits = "7" * 9001
    assert admits(int, digits)
    assert resolve(int).parse("-" + digits) == -int(Decimal(digits))
    assert not resolve(int).finite


@pytest.mark.parametrize("text", ["0", "-0", "1.5", "-1.5", "1e5", "1e+5", "2.5E-3", "1E-05", "1e239", "9" * 64])
def test_floats_are_json_numbers(text: str) -> None:
    assert admits(float, text)
    assert resolve(float).parse(text) == float(text)


@pytest.mark.parametrize("text", ["1.", ".5", "nan", "inf", "1e400", "9" * 400, "01.5", "1e"])
def test_floats_are_finite_and_canonical(text: str) -> None:
    assert not admits(float, text)


def test_largest_float_is_finite() -> None:
    assert resolve(float).parse("9" * 64 + "e239") < float("inf")


def test_dates_are_those_of_the_calendar() -> None:
    dfa = resolve(date).dfa
    assert dfa is not None
    years = [1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9999]
    for year in years:
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    real = date.fromisoformat(text).isoformat() == text
                except ValueError:
                    real = False
                assert dfa.accepts(text.encode()) == real, text
    assert not dfa.accepts(b"0000-01-01")
    assert resolve(date).max_bytes == 10


def test_times_are_read_with_their_zone() -> None:
    assert resolve(datetime).parse("2024-02-29T10:11:12.5+05:30") == datetime(
        2024, 2, 29, 10, 11, 12, 500_000, tzinfo=timezone(timedelta(hours=5, minutes=30))
    )
    assert resolve(time).parse("23:59:59") == time(23, 59, 59)
    for text in ("24:00:00", "10:60:00", "10:11", "10:11:12.1234567", "10:11:12+24:00"):
        assert not admits(time, text)


@pytest.mark.parametrize("length", range(5))
def test_list_lengths(length: int) -> None:
    text = json.dumps([1] * length, separators=(",", ":"))
    assert admits(list[int], text)
    assert admits(Annotated[list[int], Field(min_length=2, max_length=3)], text) == (2 <= length <= 3)
    assert admits(Annotated[list[int], Field(max_length=0)], text) == (length == 0)
    assert admits(Annotated[list[int], Field(min_length=1)], text) == (length >= 1)


@pytest.mark.parametrize(
    ("pattern", "admitted", "refused"),
    [
        ("[a-z]+", "abc", "ab1"),
        ("^[a-z]+$", "abc", "ab1"),
        ("^a", "ab1", "ba"),
        ("(?i)^a", "A!", "ba"),
        ("z$", "az", "za"),
    ],
)
def test_field_patterns_open_only_where_one_end_is_anchored(pattern: str, admitted: str, refused: str) -> None:
    wanted = Annotated[str, Field(pattern=pattern)] | None
    assert admits(wanted, json.dumps(admitted))
    assert not admits(wanted, json.dumps(refused))


def test_patterns_inside_json_are_escaped() -> None:
    wanted = Annotated[str, regex(r'["\\\n\x01é]+')] | None
    value = '"\\\n\x01é'
    assert admits(wanted, json.dumps(value, ensure_ascii=False))
    assert resolve(wanted).parse(json.dumps(value, ensure_ascii=False)) == value
    assert not admits(wanted, '"a"')
    assert not admits(wanted, '"""')
