"""Options of ``gen``: what is wrong with one is said before anything is written; compiling types blocks nobody."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import furcate as fc
from furcate import Context, OutputType, program
from furcate.runtime.constraints.byte_dfa import compile_pattern
from furcate.testing import Scripted


def gen(type=str, **options):
    @program
    def body(c: Context):
        c.user("q")
        before = c.tokens
        try:
            return c.gen(type, **options)
        except (TypeError, ValueError):
            assert c.tokens == before, "a refused gen wrote on the context"
            raise

    with fc.using(Scripted(default="x")):
        return body()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_tokens": "10"}, TypeError, "max_tokens is a whole number, not '10'"),
        ({"max_tokens": 1.5}, TypeError, "max_tokens is a whole number"),
        ({"max_tokens": True}, TypeError, "max_tokens is a whole number"),
        ({"max_tokens": -1}, ValueError, "max_tokens=-1 must be at least 0"),
        ({"min_tokens": -1}, ValueError, "min_tokens=-1 must be at least 0"),
        ({"min_tokens": 9}, ValueError, "min_tokens=9 is more than max_tokens=5"),
        ({"seed": "x"}, TypeError, "seed is a whole number"),
        ({"top_k": 1.5}, TypeError, "top_k is a whole number"),
        ({"logprobs": "yes"}, TypeError, "how many of the likeliest tokens"),
        ({"logprobs": -1}, ValueError, "logprobs=-1 must be at least 0"),
        ({"logit_bias": 5}, TypeError, "logit_bias maps token ids to numbers"),
        ({"logit_bias": {"a": 1}}, TypeError, "'a': 1 is neither"),
        ({"logit_bias": {10**6: 1.0}}, ValueError, "the model has no token 1000000"),
        ({"presence_penalty": float("nan")}, ValueError, "presence_penalty=nan must be finite"),
        ({"stop": 5}, TypeError, "stop is a text or a list of texts, not int"),
        ({"stop": [""]}, ValueError, "a stop string is text and not empty"),
        ({"max_token": 5}, TypeError, "did you mean max_tokens="),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(options, error, message):
    with pytest.raises(error, match=message):
        gen(**{"max_tokens": 5, **options})


def test_numbers_of_numpy_are_numbers():
    assert gen(max_tokens=np.int64(5), temperature=np.float32(0.5), seed=-1, logit_bias={np.int64(3): -1}) == "x"


def noted(pattern, compiled_on):
    def compile():
        compiled_on.append(threading.current_thread().name)
        return compile_pattern(pattern)

    return OutputType("twins", str, compile=compile)


def test_types_of_one_name_are_each_compiled_off_the_interpreters_thread():
    compiled_on = []
    types = iter([noted("x", compiled_on), noted("x|y", compiled_on)])

    @program
    def body(c: Context):
        c.user("q")
        return [c.gen(next(types), max_tokens=2) for _ in range(2)]

    with fc.using(Scripted(default="x")):
        assert body() == ["x", "x"]
    assert compiled_on == ["furcate-tool", "furcate-tool"]


def test_a_type_that_the_plan_compiles_does_not_hold_the_interpreter():
    compiled_on = []
    assert gen(noted("x", compiled_on), max_tokens=2) == "x"
    assert compiled_on == [threading.current_thread().name]


def test_one_pattern_is_one_type():
    assert fc.regex("[a-f]+") is fc.regex("[a-f]+")
