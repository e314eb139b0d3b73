"""Models without weights: Scripted says what it is told, RandomValid says anything valid."""

from __future__ import annotations

import math
import threading
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from furcate.lang.backends.local import LocalModel
from furcate.lang.errors import ContextOverflow, EngineFailed, UnsatisfiableConstraint
from furcate.lang.testing import RandomValid, Scripted, admits, allowed_tokens
from furcate.lang.types import regex, resolve
from furcate.runtime.models.byte_tokenizer import IM_END, ByteTokenizer
from furcate.runtime.requests import Branch, GenRequest, GenResult, SampleKey, Sampling, ScoreRequest

TOKENIZER = ByteTokenizer()


class Point(BaseModel):
    name: str = Field(max_length=8)
    x: int
    tags: list[Literal["a", "ab"]]


def request(wanted: Any = str, **changes: Any) -> GenRequest:
    fields: dict[str, Any] = {
        "max_tokens": 100,
        "sampling": Sampling(),
        "key": SampleKey(0, 0),
        "end_ids": frozenset({IM_END}),
        "constraint": resolve(wanted).constraint(TOKENIZER.vocabulary),
        "label": "demo/gen",
    }
    return GenRequest(**{**fields, **changes})


def prompted(model: LocalModel, text: str = "Q: ") -> Branch:
    branch = model.root()
    branch.append(TOKENIZER.encode(text))
    return branch


def say(model: LocalModel, wanted: Any = str, **changes: Any) -> GenResult:
    return prompted(model).generate(request(wanted, **changes)).result()


def text_of(result: GenResult) -> str:
    return TOKENIZER.vocabulary.text_of(result.tokens).decode()


def score(model: LocalModel, *choices: str, label: str = "demo/select", end: str = "") -> list[float]:
    sequences = tuple((*TOKENIZER.encode(choice + end), IM_END) for choice in choices)
    result = prompted(model).score(ScoreRequest(sequences, label=label)).result()
    assert [len(row) for row in result.logprobs] == [len(ids) for ids in sequences]
    return [sum(row) for row in result.logprobs]


def test_answers_are_given_in_order_and_appended() -> None:
    model = Scripted(["one", "two"])
    branch = prompted(model)
    first = branch.generate(request()).result()
    assert (text_of(first), first.finish_reason, first.complete) == ("one", "stop", True)
    assert TOKENIZER.vocabulary.text_of(branch.tokens()) == b"Q: one"
    assert (first.usage.prompt, first.usage.prefilled, first.usage.cached, first.usage.generated) == (3, 3, 0, 3)
    second = branch.generate(request()).result()
    assert text_of(second) == "two"
    assert second.usage.prompt == 6


def test_a_list_that_ran_out_says_how_many_there_were() -> None:
    model = Scripted(["one"])
    say(model)
    with pytest.raises(EngineFailed, match="1 were given, and this is call 2"):
        say(model)


def test_default_stands_for_what_the_list_lacks() -> None:
    model = Scripted(["one"], default="more")
    assert [text_of(say(model)) for _ in range(3)] == ["one", "more", "more"]


def test_a_callable_sees_the_prompt_with_special_tokens_spelt() -> None:
    seen: list[str] = []

    def answer(prompt: str) -> str:
        seen.append(prompt)
        return prompt[-2:]

    branch = prompted(Scripted(answer), "hé")
    branch.append([IM_END])
    branch.append(TOKENIZER.encode("ab"))
    assert text_of(branch.generate(request()).result()) == "ab"
    assert seen == ["hé<|im_end|>ab"]


def test_exceptions_are_raised_through_the_ticket() -> None:
    fault = OSError("network down")

    def fail(prompt: str) -> str:
        raise fault

    for model in (Scripted([fault]), Scripted(fail)):
        ticket = prompted(model).generate(request())
        assert ticket.done
        with pytest.raises(OSError, match="network down"):
            ticket.result()
    with pytest.raises(OSError, match="network down"):
        score(Scripted([fault]), "yes", "no")


@pytest.mark.parametrize("answers", ["one string", [3], ["a", None], [["a"]]])
def test_answers_that_are_no_texts_are_refused_at_once(answers: Any) -> None:
    with pytest.raises(TypeError):
        Scripted(answers)


def test_stop_strings_cut_the_answer() -> None:
    result = say(Scripted(["line\nmore"]), stop=(b"\n",))
    assert (text_of(result), result.stop, result.finish_reason, result.leftover) == ("line", b"\n", "stop", b"")
    assert text_of(say(Scripted(["ab##c#"]), stop=(b"#", b"b##"))) == "ab"


def test_max_tokens_cut_the_answer() -> None:
    result = say(Scripted(["abcdef"]), max_tokens=4)
    assert (text_of(result), result.finish_reason, result.complete) == ("abcd", "length", True)
    result = say(Scripted(["12345"]), regex("[0-9]{5}"), max_tokens=4)
    assert (text_of(result), result.finish_reason, result.complete) == ("1234", "length", False)


def test_typed_answers_must_satisfy_their_type() -> None:
    assert say(Scripted(["true"]), bool).finish_reason == "constraint"
    with pytest.raises(EngineFailed, match=r"'twelve' does not satisfy .* after '' it goes on with b't'"):
        say(Scripted(["twelve"]), int)
    with pytest.raises(EngineFailed, match="breaks off"):
        say(Scripted(['{"name":"a"']), Point)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [(str, ""), (int, "0"), (bool, "true"), (Literal["long", "no"], "no"), (Point, '{"name":"","x":0,"tags":[]}')],
)
def test_without_answers_the_shortest_valid_value_is_said(wanted: Any, text: str) -> None:
    result = say(Scripted(), wanted)
    assert text_of(result) == text
    assert result.complete


def test_shortest_value_longer_than_the_bound_is_unsatisfiable() -> None:
    for model in (Scripted(), RandomValid()):
        with pytest.raises(UnsatisfiableConstraint, match="max_tokens=5"):
            say(model, Point, max_tokens=5)


def test_select_gives_all_probability_to_the_answer() -> None:
    model = Scripted(["no", "yes, certainly", "yes", "yes"])
    assert score(model, "yes", "no") == [-30.0, 0.0]
    assert score(model, "yes", "yes, certainly", "no") == [-30.0, 0.0, -30.0]
    assert score(model, "yes", "yes, certainly", "no") == [0.0, -30.0, -30.0]
    assert score(model, "no", "yes", end="\n") == [-30.0, 0.0]
    assert score(Scripted(), "yes", "no") == [0.0, -30.0]


def test_prefix_of_the_answer_loses_without_a_terminator() -> None:
    sequences = tuple(tuple(TOKENIZER.encode(text)) for text in ("yes", "yes, certainly"))
    result = prompted(Scripted(["yes, certainly"])).score(ScoreRequest(sequences)).result()
    assert [sum(row) for row in result.logprobs] == [-30.0, 0.0]


def test_select_of_what_is_no_choice_names_the_choices() -> None:
    with pytest.raises(EngineFailed, match="'maybe' is none of the choices 'yes', 'no'"):
        score(Scripted(["maybe"]), "yes", "no")


def test_unconditional_scores_use_no_answer() -> None:
    model = Scripted(["no"])
    assert score(model, "yes", "no", label="demo/select/unconditional") == [0.0, 0.0]
    assert score(model, "yes", "no") == [-30.0, 0.0]


def test_threads_share_the_list_without_losing_an_answer() -> None:
    model = Scripted([str(i) for i in range(200)])
    said: list[str] = []

    def work() -> None:
        said.extend(text_of(say(model)) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said, key=int) == [str(i) for i in range(200)]


def test_logprobs_and_tokens_are_reported() -> None:
    told: list[int] = []
    result = say(Scripted(["ab"]), logprobs=1, on_tokens=told.extend)
    assert result.logprobs == (0.0, 0.0)
    assert result.top_logprobs == ({97: 0.0}, {98: 0.0})
    assert told == [97, 98]
    assert say(Scripted(["ab"]), logprobs=0).top_logprobs is None
    assert say(Scripted(["ab"])).logprobs is None


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([Point, int, float, bool, Literal["a", "ab"], str]), st.integers(27, 90))
def test_random_values_are_valid_within_every_bound(stream: int, wanted: Any, max_tokens: int) -> None:
    result = say(RandomValid(1), wanted, key=SampleKey(0, stream), max_tokens=max_tokens)
    assert result.complete
    assert len(result.tokens) <= max_tokens
    assert admits(wanted, text_of(result))
    resolve(wanted).parse(text_of(result))


def test_random_values_reach_every_choice() -> None:
    wanted = Literal["a", "ab", "cat", "category"]
    said = {text_of(say(RandomValid(), wanted, key=SampleKey(0, i))) for i in range(100)}
    assert said == {"a", "ab", "cat", "category"}


def test_random_values_depend_on_the_key_and_the_seed_alone() -> None:
    def values(seed: int, order: list[int]) -> dict[int, str]:
        model = RandomValid(seed)
        return {i: text_of(say(model, Point, key=SampleKey(9, i))) for i in order}

    assert values(1, [0, 1, 2, 3]) == values(1, [3, 1, 0, 2])
    assert values(1, [0, 1, 2, 3]) != values(2, [0, 1, 2, 3])


def test_random_text_is_ascii_and_sometimes_stops() -> None:
    results = [say(RandomValid(), stop=(b"\n",), key=SampleKey(0, i)) for i in range(40)]
    assert {result.stop for result in results} == {None, b"\n"}
    assert all(text_of(result).isascii() and "\n" not in text_of(result) for result in results)
    assert say(RandomValid(), max_tokens=2).finish_reason == "length"


def test_random_value_waits_for_min_tokens() -> None:
    for i in range(20):
        assert len(say(RandomValid(), regex("a*"), min_tokens=5, max_tokens=9, key=SampleKey(0, i)).tokens) >= 5


def test_random_values_avoid_stop_strings() -> None:
    for i in range(20):
        result = say(RandomValid(), regex("[ab]{8}"), stop=(b"ba",), key=SampleKey(0, i))
        assert result.complete


def test_random_scores_are_finite_and_repeatable() -> None:
    first = score(RandomValid(4), "yes", "no", "yesterday")
    assert first == score(RandomValid(4), "yes", "no", "yesterday")
    assert first != score(RandomValid(5), "yes", "no", "yesterday")
    assert all(math.isfinite(value) and value < 0 for value in first)


def test_branches_share_and_part() -> None:
    trunk = prompted(Scripted(), "trunk")
    left, right = trunk.fork(2)
    left.append([1])
    trunk.append([2])
    right.truncate(2)
    assert [bytes(branch.tokens()) for branch in (trunk, left, right)] == [b"trunk\x02", b"trunk\x01", b"tr"]
    assert [branch.length for branch in (trunk, left, right)] == [6, 6, 2]


def test_a_released_branch_is_refused_and_releases_again() -> None:
    branch = prompted(Scripted())
    branch.release()
    branch.release()
    for use in (lambda: branch.length, branch.tokens, lambda: branch.append([1]), lambda: branch.fork(1),
                lambda: branch.truncate(0), lambda: branch.generate(request()),
                lambda: branch.score(ScoreRequest(((1,),)))):  # fmt: skip
        with pytest.raises(RuntimeError, match="released"):
            use()


def test_context_overflow_goes_through_the_ticket() -> None:
    model = Scripted(["x"])
    model.max_context = 10
    with pytest.raises(ContextOverflow) as caught:
        say(model, max_tokens=8)
    assert (caught.value.needed, caught.value.limit) == (11, 10)
    with pytest.raises(ContextOverflow):
        score(model, "a long choice", "no")
    assert text_of(say(model, max_tokens=7)) == "x"


def test_ten_thousand_branches_need_no_thread_and_share_their_trunk() -> None:
    trunk = prompted(Scripted(default="ok"), "x" * 5000)
    before = threading.active_count()
    branches = trunk.fork(10_000)
    assert sum(len(branch.generate(request()).result().tokens) for branch in branches[:50]) == 100
    assert threading.active_count() == before


def test_admits_in_bytes_and_in_tokens() -> None:
    for model in (None, Scripted()):
        assert admits(regex("(cat|category)"), "category", model)
        assert admits(str, "anything", model)
        assert not admits(int, "1.5", model)
        assert not admits(int, "1\ud800", model)
    assert admits(int, "17", "test:scripted")


def test_allowed_tokens_follow_the_prefix() -> None:
    assert allowed_tokens(Literal["cat", "category", "dog"], []) == [ord("c"), ord("d")]
    assert allowed_tokens(Literal["cat", "category"], list(b"cat")) == [ord("e")]
    assert allowed_tokens(bool, list(b"true")) == []
    assert allowed_tokens(str, []) == list(range(256))
    with pytest.raises(ValueError, match="not allowed"):
        allowed_tokens(bool, list(b"x"), Scripted())
