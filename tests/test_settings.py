"""Models, settings, budgets and rows of the wrong kind: refused where they are given, with what to give instead."""

from __future__ import annotations

from collections import UserDict

import pytest

import furcate as fc
from furcate import Budget, Chat, Context, program
from furcate.testing import Scripted


@program
def echo(c: Context, q) -> object:
    return q


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"timeout": "5"}, TypeError, "timeout is a number"),
        ({"timeout": -1}, ValueError, "timeout=-1 must be at least 0"),
        ({"temperature": "hot"}, TypeError, "temperature is a number"),
        ({"temperature": float("nan")}, ValueError, "temperature=nan"),
        ({"seed": "x"}, TypeError, "seed is a whole number"),
        ({"model": object()}, TypeError, "a model is a name or what fc.load returns, not object"),
    ],
)
def test_a_wrong_setting_is_refused_where_it_is_set(settings, error, message):
    with pytest.raises(error, match=message):
        echo.using(**settings)


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="a model is a name"), fc.using(5):
        pass
    with pytest.raises(TypeError, match="a model is a name"):
        Chat(model=5)
    with pytest.raises(TypeError, match="name or path as text"):
        fc.load(5)


def test_a_model_without_options_refuses_them():
    with pytest.raises(TypeError, match=r"no options, and kv_tokens was given"):
        fc.load("test:scripted", kv_tokens=64)


def test_an_unknown_dtype_is_named():
    with pytest.raises(fc.ModelLoadError, match="not in floaty"):
        fc.load("test:tiny", dtype="floaty")


def test_limits_of_a_budget_are_numbers_and_have_names():
    with pytest.raises(TypeError, match="tokens is a number, not '5'"):
        Budget(tokens="5")
    with pytest.raises(ValueError, match="seconds=-1 must be at least 0"):
        Budget(seconds=-1)
    with pytest.raises(TypeError):
        Budget(5)


def test_a_seed_of_the_environment_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("FURCATE_SEED", "abc")
    with fc.using(Scripted()), pytest.raises(ValueError, match="FURCATE_SEED='abc' is no whole number"):
        echo(1)


def test_any_mapping_is_a_row_and_one_mapping_is_no_list_of_rows():
    with fc.using(Scripted()):
        assert echo.map([UserDict(q=1), {"q": 2}]).ok == [1, 2]
        with pytest.raises(TypeError, match="give a list of rows"):
            echo.map({"q": 1})


@pytest.mark.parametrize("choices", [{"a", "b"}, {"a": 1}, {"a": 1}.keys(), iter("ab"), b"ab"])
def test_choices_without_an_order_are_refused(choices):
    @program
    def body(c: Context):
        c.user("q")
        return c.select(choices)

    with fc.using(Scripted()), pytest.raises(TypeError, match="give a list"):
        body()
