"""Text, turns, marks and read-outs of a Context."""

from __future__ import annotations

import pytest

import furcate as fc
from furcate import Context, program
from furcate.testing import Scripted


def run(body, answers=None, **settings):
    """Run ``body(c)`` as a program on a scripted model."""
    return program(body).using(Scripted(answers), **settings).run()


def test_a_conversation_is_appended_by_the_template_and_closed_lazily():
    def body(c: Context) -> str:
        c.system("Be brief.")
        c.user("Hi")
        before = c.transcript
        c.gen(max_tokens=8)
        return before + "\n---\n" + c.transcript

    value = run(body, ["Hello"]).value
    assert value == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\n---\n"
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello"
    )


def test_gen_after_gen_and_after_text_continues_the_open_turn():
    def body(c: Context):
        c.user("q")
        c.gen(max_tokens=8)
        c += " and "
        c.gen(max_tokens=8)
        return c.messages

    assert run(body, ["one", "two"]).value == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "one and two"},
    ]


def test_an_assistant_turn_in_pieces():
    def body(c: Context):
        c.user("q")
        with c.assistant():
            c += "a"
            c.text("b")
        c.user("r")
        return c.transcript

    assert run(body).value.endswith("<|im_start|>assistant\nab<|im_end|>\n<|im_start|>user\nr")


def test_special_tokens_in_user_text_stay_text():
    def body(c: Context):
        c.user("<|im_end|>")
        return list(c.tokens)

    tokens = run(body).value
    end = Scripted().tokenizer.special_ids["<|im_end|>"]
    assert end not in tokens


def test_raw_text_belongs_to_no_turn():
    def body(c: Context):
        c += "Once "
        c.gen(max_tokens=9)
        return c.transcript, c.messages

    assert run(body, ["upon"]).value == ("Once upon", [])


def test_rewind_restores_tokens_turns_and_messages_but_not_usage():
    def body(c: Context):
        c.user("q")
        mark = c.mark()
        tokens = list(c.tokens)
        c.gen(max_tokens=8)
        used = c.usage
        c.rewind(mark)
        assert list(c.tokens) == tokens
        assert c.messages == [{"role": "user", "content": "q"}]
        assert c.usage == used
        c.gen(max_tokens=8)
        return c.messages[-1]["content"]

    assert run(body, ["first", "second"]).value == "second"


def test_a_rewind_drops_later_marks_and_refuses_foreign_ones():
    def body(c: Context):
        early = c.mark()
        c += "x"
        late = c.mark()
        c.rewind(early)
        with pytest.raises(fc.InvalidMark, match="earlier rewind"):
            c.rewind(late)
        with c.scratch() as t, pytest.raises(fc.InvalidMark, match="another context"):
            t.rewind(early)
        c.rewind(early)

    run(body)


def test_a_scratch_branch_leaves_no_trace():
    def body(c: Context):
        c.user("q")
        with c.scratch() as t:
            t.user("aside")
            t.gen(max_tokens=8)
        with pytest.raises(fc.ContextClosed):
            t.gen(max_tokens=8)
        return c.messages

    assert run(body, ["x"]).value == [{"role": "user", "content": "q"}]


def test_a_context_is_closed_when_its_program_ends():
    kept = []
    run(kept.append)
    with pytest.raises(fc.ContextClosed, match="its program has ended"):
        _ = kept[0].tokens


def test_last_tells_what_the_last_operation_did():
    def body(c: Context):
        with pytest.raises(fc.FurcateError, match="no gen or select"):
            _ = c.last
        c.user("q")
        c.gen(max_tokens=3)
        return c.last

    last = run(body, ["abcdef"]).value
    assert (last.text, last.finish_reason, len(last.tokens)) == ("abc", "length", 3)


def test_a_stop_string_is_in_neither_value_nor_context():
    def body(c: Context):
        c.user("q")
        value = c.gen(max_tokens=20, stop="##")
        return value, c.transcript

    value, transcript = run(body, ["think ## 12"]).value
    assert value == "think "
    assert transcript.endswith("think ")


def test_gen_without_a_bound_is_refused_unless_the_type_is_finite():
    def body(c: Context):
        c.user("q")
        with pytest.raises(fc.UnboundedGeneration, match=r"test_context\.py:\d+"):
            c.gen()
        return c.gen(bool)

    assert run(body, ["true"]).value is True


def test_a_context_overflow_is_raised_before_anything_runs():
    def body(c: Context):
        c.user("q")
        with pytest.raises(fc.ContextOverflow) as caught:
            c.gen(max_tokens=10_000_000)
        return caught.value

    error = run(body, []).value
    assert error.needed > error.limit


def test_truncated_carries_what_there_was():
    def body(c: Context):
        c.user("q")
        with pytest.raises(fc.Truncated) as caught:
            c.gen(fc.regex("[ab]{6}"), max_tokens=3)
        return caught.value.partial

    assert run(body, ["ababab"]).value == "aba"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_token": 3}, "did you mean max_tokens"),
        ({"colour": 3}, "no option 'colour'"),
    ],
)
def test_an_unknown_option_is_a_type_error(options, message):
    def body(c: Context):
        c.user("q")
        with pytest.raises(TypeError, match=message):
            c.gen(**options)

    run(body)


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"top_p": 0}, {"top_k": -1}, {"min_p": 2}, {"stop": ""}, {"max_tokens": -1}]
)
def test_an_impossible_option_is_a_value_error(options):
    def body(c: Context):
        c.user("q")
        with pytest.raises(ValueError, match=next(iter(options)) if "stop" not in options else "stop string"):
            c.gen(**{"max_tokens": 3, **options})

    run(body)


def test_only_text_can_be_appended():
    def body(c: Context):
        with pytest.raises(TypeError, match="not int"):
            c += 3
        with pytest.raises(TypeError, match="takes text, not int"):
            c.user(3)

    run(body)


def test_a_context_outside_its_body_says_what_to_do():
    def body(c: Context):
        def tool():
            with pytest.raises(fc.FurcateError, match=r"c\.fork|c\.tool|outside the body|is running"):
                c.gen(max_tokens=3)

        c.tool(tool)

    run(body)


def test_a_number_that_max_tokens_may_have_cut_is_a_warning():
    def body(c: Context):
        c.user("q")
        return c.gen(int, max_tokens=3)

    cut = run(body, ["123456"])
    assert cut.value == 123
    assert [e.text for e in cut.events if e.kind == "warning"] == [
        "max_tokens=3 ended the int '123', which could have gone on"
    ]


def test_an_option_of_the_wrong_kind_is_a_type_error():
    def body(c: Context):
        c.user("q")
        with pytest.raises(TypeError, match="temperature is a number, not str"):
            c.gen(max_tokens=3, temperature="hot")

    run(body)


def test_an_operation_that_is_refused_leaves_the_context_as_it_was():
    def body(c: Context):
        c.user("q")
        before = list(c.tokens), c.messages
        with pytest.raises(fc.UnboundedGeneration):
            c.gen()
        with pytest.raises(fc.ContextOverflow):
            c.gen(max_tokens=10_000_000)
        with pytest.raises(fc.BackendError):
            c.gen(max_tokens=3)
        with pytest.raises(fc.BackendError):
            c.select(["a", "b"])
        assert (list(c.tokens), c.messages) == before
        c.user("r")
        return c.gen(max_tokens=3)

    assert run(body, [OSError("down"), OSError("down"), "ok"]).value == "ok"
