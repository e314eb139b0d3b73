"""``select``: tokens, scores, probabilities."""

from __future__ import annotations

import math
from enum import Enum
from typing import Literal

import pytest

import furcate as fc
from furcate import Context, program
from furcate.lang.choice import choose, greedy_scores
from furcate.runtime.models.byte_tokenizer import ByteTokenizer
from furcate.runtime.requests import ScoreRequest
from furcate.runtime.vocabulary import Vocabulary
from furcate.testing import Scripted


@pytest.fixture(scope="module")
def tiny():
    model = fc.load("test:tiny")
    yield model
    model.close()


def run(body, model):
    return program(body).using(model).run().value


def test_probabilities_are_the_softmax_and_ties_go_to_the_first():
    choice = choose(["a", "b", "c"], [-1.0, -1.0, -3.0])
    assert (choice.value, choice.index) == ("a", 0)
    assert math.isclose(sum(choice.probs.values()), 1.0)
    assert math.isclose(choice.margin, 0.0, abs_tol=1e-12)
    assert math.isclose(choice.probs["c"] / choice.probs["a"], math.exp(-2))
    assert choose(["only"], [-5.0]).margin == 1.0


def test_greedy_is_the_product_of_steps_among_the_choices_that_are_left():
    sequences = [(1, 2), (1, 3), (4,)]
    logprobs = [(-1.0, -2.0), (-1.0, -1.0), (-3.0,)]
    scores = greedy_scores(sequences, logprobs)
    assert math.isclose(sum(map(math.exp, scores)), 1.0)
    first_step = math.exp(-1) / (math.exp(-1) + math.exp(-3))
    second_step = math.exp(-2) / (math.exp(-2) + math.exp(-1))
    assert math.isclose(math.exp(scores[0]), first_step * second_step)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("choices", "answer", "value"),
    [
        (["yes", "no"], "no", "no"),
        (Literal["yes", "no"], "no", "no"),
        (Colour, "blue", Colour.BLUE),
        (bool, "false", False),
        ([1, 10, 100], "10", 10),
    ],
)
def test_choices_are_a_sequence_or_a_finite_type(choices, answer, value):
    def body(c: Context):
        c.user("q")
        return c.select(choices), c.messages[-1]["content"]

    choice, text = run(body, Scripted([answer]))
    assert choice.value == value
    assert text == answer


def test_empty_and_repeated_choices_are_typed_errors():
    def body(c: Context):
        c.user("q")
        with pytest.raises(fc.InvalidChoices, match="at least one"):
            c.select([])
        with pytest.raises(fc.InvalidChoices, match="same text"):
            c.select(["a", "b", "a"])
        with pytest.raises(fc.InvalidChoices, match="empty text"):
            c.select(["a", ""])
        with pytest.raises(TypeError, match="one string"):
            c.select("abc")
        with pytest.raises(TypeError, match="no finite list"):
            c.select(int)
        with pytest.raises(ValueError, match="how="):
            c.select(["a"], how="best")

    run(body, Scripted([]))


def brute_force(model, prefix, sequence):
    """Log-probability of ``sequence`` after ``prefix``, one generated token at a time, each forced by its bias."""
    branch = model.root()
    branch.append(prefix)
    (steps,) = branch.score(ScoreRequest((tuple(sequence),))).wait(60).logprobs
    branch.release()
    return list(steps)


@pytest.mark.parametrize("how", ["sum", "mean", "pmi", "greedy"])
def test_scores_equal_scoring_each_sequence_alone(tiny, how):
    choices = ["yes", "yes, certainly", "no", "not at all"]
    encode = tiny.tokenizer.encode
    end = min(tiny.tokenizer.vocabulary.eos_ids)

    def body(c: Context):
        c.user("Is it?")
        with c.scratch() as t, t.assistant():
            prefix = list(t.tokens)
        return prefix, c.select(choices, how=how)

    prefix, choice = run(body, tiny)
    sequences = [(*encode(text), end) for text in choices]
    steps = [brute_force(tiny, prefix, sequence) for sequence in sequences]
    if how == "sum":
        scores = [sum(s) for s in steps]
    elif how == "mean":
        scores = [sum(s) / len(s) for s in steps]
    elif how == "pmi":
        header = [tiny.tokenizer.special_ids["<|im_start|>"], *encode("assistant\n")]
        scores = [sum(s) - sum(brute_force(tiny, header, q)) for s, q in zip(steps, sequences, strict=True)]
    else:
        scores = greedy_scores(sequences, steps)
    expected = choose(choices, scores)
    assert math.isclose(sum(choice.probs.values()), 1.0, abs_tol=1e-9)
    assert choice.value == expected.value
    for text in choices:
        assert math.isclose(choice.probs[text], expected.probs[text], abs_tol=1e-5)


def test_the_context_is_not_computed_again_by_select(tiny):
    def body(c: Context):
        c.user("A question of some length, so that a second computation would show. " * 4)
        c.gen(max_tokens=2)
        before = tiny.stats()["tokens_computed"]
        c.select(["alpha", "beta", "gamma"])
        return tiny.stats()["tokens_computed"] - before

    # inner nodes of the trie (the last token of each choice and the terminator need no row of their own),
    # and the token that was generated last
    assert run(body, tiny) <= len("alpha") + len("beta") + len("gamma") + 3


def test_two_thousand_choices(tiny):
    choices = [f"{i:04d}" for i in range(2000)]

    def body(c: Context):
        c.user("Pick a number.")
        return c.select(choices)

    choice = run(body, tiny)
    assert len(choice.probs) == 2000
    assert math.isclose(sum(choice.probs.values()), 1.0, abs_tol=1e-6)
    tiny.check_integrity()


def test_the_last_word_piece_of_text_is_split_again_with_the_choice():
    """With a vocabulary that has " no" as one token, "Answer: " + "no" must give that token, not " " and "no"."""
    model = Scripted(["no"])

    def body(c: Context):
        c += "Answer: "
        c.select(["no", "yes"])
        return list(c.tokens)

    assert run(body, model) == model.tokenizer.encode("Answer: no")


class Merging(ByteTokenizer):
    """Bytes, and a few longer tokens taken wherever they stand."""

    def __init__(self, *merged: bytes) -> None:
        super().__init__()
        self.merged = dict(zip(merged, range(260, 260 + len(merged)), strict=True))
        self.whole = Vocabulary(super().vocabulary.token_bytes + merged, super().vocabulary.eos_ids)

    @property
    def vocabulary(self) -> Vocabulary:
        return self.whole

    def encode(self, text: str) -> list[int]:
        data, ids = text.encode(), []
        while data:
            found = next((m for m in self.merged if data.startswith(m)), data[:1])
            ids.append(self.merged.get(found, data[0]))
            data = data[len(found) :]
        return ids


def merging(answers, *merged: bytes) -> Scripted:
    model = Scripted(answers)
    model.tokenizer = Merging(*merged)
    return model


def test_a_space_at_the_end_of_text_is_joined_with_the_choice():
    model = merging([" no", "", "no"], b" no", b" yes")

    def body(c: Context):
        c += "Answer: "
        with c.scratch() as t:
            t.select(["no", "yes"])
            joined = list(t.tokens)
        with c.scratch() as t:
            t.gen(max_tokens=0)  # generated text, if only empty: nothing before it is split again
            t.select(["no", "yes"])
            apart = list(t.tokens)
        return joined, apart

    joined, apart = run(body, model)
    assert joined == model.tokenizer.encode("Answer: no")
    assert apart == model.tokenizer.encode("Answer: ") + model.tokenizer.encode("no")


def test_a_failed_select_leaves_the_text_before_it_whole():
    def body(c: Context):
        c += "Answer: "
        with pytest.raises(fc.BackendError):
            c.select(["no", "yes"])
        return c.transcript

    assert run(body, merging([ConnectionError("down")], b" no", b" yes")) == "Answer: "


def test_a_rewind_to_before_a_select_restores_the_token_that_it_split():
    def body(c: Context):
        c += "Answer: "
        mark, tokens = c.mark(), list(c.tokens)
        c.select(["no", "yes"])
        c.rewind(mark)
        return list(c.tokens) == tokens

    assert run(body, merging([" no"], b" no", b" yes"))


def test_a_context_of_one_token_is_not_split_away():
    def body(c: Context):
        c += "a"
        return c.select(["b", "c"]).value, c.transcript

    assert run(body, merging(["b"], b"ab", b"ac")) == ("b", "ab")


@pytest.mark.parametrize("choices", [[1, True], [1, 1.0], [{"a": 1}, {"b": 2}]])
def test_choices_that_cannot_be_told_apart_as_keys_are_refused(choices):
    def body(c: Context):
        c.user("q")
        with pytest.raises(fc.InvalidChoices, match=r"equal|hashed"):
            c.select(choices)

    run(body, Scripted([]))


@pytest.mark.parametrize("how", ["sum", "mean", "pmi", "greedy"])
@pytest.mark.parametrize(
    "choices", [["日本", "日木", "月"], [" a", "a ", "a"], ["only"], ["x" * 500, "y"], ["\n", "\t"]]
)
def test_odd_choices_on_the_engine(tiny, choices, how):
    def body(c: Context):
        c.user("q")
        choice = c.select(choices, how=how)
        assert (c.last.text, c.last.finish_reason) == (choice.value, "choice")
        assert c.last.tokens == tuple(tiny.tokenizer.encode(choice.value))
        assert c.usage == c.last.usage
        assert c.messages[-1]["content"] == choice.value
        return choice

    choice = run(body, tiny)
    assert math.isclose(sum(choice.probs.values()), 1.0, abs_tol=1e-6)
    assert choice.value == choices[choice.index] == max(choice.probs, key=choice.probs.get)
    tiny.check_integrity()


def test_a_choice_writes_its_value_into_text():
    assert f"{choose([Colour.RED, Colour.BLUE], [0.0, -1.0])}" == "red"
