"""Branches: fork, parallel, split, until, errors, cancellation."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

import furcate as fc
from furcate import Context, first, majority, parallel, program, vote
from furcate.testing import Scripted


def echo(prompt: str) -> str:
    """Answers with the last line of the last user turn."""
    return prompt.rsplit("<|im_start|>user\n", maxsplit=1)[-1].split("<|im_end|>", maxsplit=1)[0]


def run(body, answers=echo, **settings):
    return program(body).using(Scripted(answers), **settings).run()


def say(b: Context, text: str) -> str:
    b.user(str(text))
    return b.gen(max_tokens=40)


def test_results_come_in_the_order_of_the_items():
    def body(c: Context):
        c.user("all")
        return c.fork(["a", "b", "c"], say), c.fork(2, say), c.fork([], say)

    assert run(body).value == (["a", "b", "c"], ["0", "1"], [])


def test_a_branch_inherits_the_open_turn_and_the_parents_stays_open():
    def branch(b: Context, i: int):
        b += f" plus {i}"
        return b.messages[-1]["content"]

    def body(c: Context):
        c.user("base")
        return c.fork(2, branch), c.messages[-1]["content"]

    assert run(body).value == (["base plus 0", "base plus 1"], "base")


@pytest.mark.parametrize("items", ["abc", 1.5, None, True])
def test_a_fork_over_no_sequence_is_a_type_error(items):
    def body(c: Context):
        with pytest.raises(TypeError):
            c.fork(items, say)

    run(body)


def test_the_parent_is_busy_during_its_own_fork():
    def body(c: Context):
        def branch(b: Context, i: int):
            c.user("on the parent")

        with pytest.raises(fc.BranchError) as caught:
            c.fork(2, branch)
        assert isinstance(caught.value.cause, fc.ContextBusy)
        c.user("free again")

    run(body)


def test_a_failed_branch_cancels_its_siblings_and_is_raised_with_its_index():
    cancelled = []

    def body(c: Context):
        def branch(b: Context, i: int):
            try:
                if i == 1:
                    raise ValueError("boom")
                return b.tool(forever.wait)
            except fc.Cancelled:
                cancelled.append(i)
                raise

        with pytest.raises(fc.BranchError, match="boom") as caught:
            c.fork(3, branch)
        return caught.value

    forever = threading.Event()
    try:
        error = run(body).value
    finally:
        forever.set()
    assert (error.index, type(error.cause), sorted(cancelled)) == (1, ValueError, [0, 2])


def test_errors_return_keeps_positions():
    def branch(b: Context, i: int):
        if i % 2:
            raise ValueError(i)
        return i

    def body(c: Context):
        return c.fork(4, branch, errors="return")

    value = run(body).value
    assert value[0] == 0
    assert value[2] == 2
    assert [v.index for v in (value[1], value[3])] == [1, 3]


def test_until_sees_values_in_branch_order_and_stops_the_rest():
    seen = []

    def until(values):
        seen.append(list(values))
        return len(values) == 2

    def branch(b: Context, i: int):
        return i if i < 2 else b.tool(forever.wait)

    forever = threading.Event()
    try:
        value = run(lambda c: c.fork(4, branch, until=until)).value
    finally:
        forever.set()
    assert value == [0, 1]
    assert seen == [[0], [0, 1]]


def test_an_until_that_raises_raises_at_the_forks_line():
    def until(values):
        raise KeyError("until")

    def body(c: Context):
        with pytest.raises(KeyError, match="until"):
            c.fork(3, lambda b, i: i, until=until)
        c.user("usable")

    run(body)


def test_majority_and_first():
    assert majority(2)(["a", "b"]) is False
    assert majority(2)(["a", "b", "a"]) is True
    assert majority(2, key=str.lower)(["a", "A"]) is True
    assert first(2)(["a"]) is False
    assert first(1)(["a"]) is True
    with pytest.raises(ValueError, match="majority"):
        majority(0)


def test_vote_takes_the_most_frequent_ties_to_the_first():
    assert vote([1, 2, 2, 1]) == 1
    assert vote([[1], [2], [2]]) == [2]
    with pytest.raises(ValueError, match="no values"):
        vote([])


def test_split_gives_handles_that_parallel_runs_on():
    def body(c: Context):
        c.user("base")
        handles = c.split(3)
        values = parallel(lambda b, word: (say(b, word), b.path), handles, "go")
        c.user("still usable")
        return values, [h.messages[-1]["content"] for h in handles]

    values, texts = run(body).value
    assert [v for v, _ in values] == ["go"] * 3
    assert texts == ["go"] * 3
    assert len({path for _, path in values}) == 3


def test_the_same_context_twice_in_parallel_is_a_value_error():
    def body(c: Context):
        with pytest.raises(ValueError, match="twice"):
            parallel(lambda b: None, [c, c])

    run(body)


def test_a_handle_that_nothing_refers_to_gives_its_branch_back():
    released = []

    def body(c: Context):
        c.user("base")
        (handle,) = c.split(1)
        branch = handle._branch
        del handle
        gc.collect()
        c.tool(lambda: None)  # a turn of the interpreter's loop
        released.append(_is_released(branch))

    run(body)
    assert released == [True]


def _is_released(branch) -> bool:
    try:
        branch.append([1])
    except RuntimeError:
        return True
    return False


def test_cancelled_is_not_swallowed_by_except_exception_and_reraised_in_finally():
    events = []

    def branch(b: Context, i: int):
        if i == 0:
            return "done"
        try:
            b.tool(forever.wait)
        except Exception:
            events.append("swallowed")
        finally:
            try:
                b.gen(max_tokens=3)
            except fc.Cancelled:
                events.append("again")
        return "unreachable"

    forever = threading.Event()
    try:
        value = run(lambda c: (c.user("q"), c.fork(2, branch, until=first(1)))[1]).value
    finally:
        forever.set()
    assert value == ["done"]
    assert events == ["again"]


def test_async_branches():
    async def branch(b: Context, i: int) -> int:
        await asyncio.sleep(0)
        b.user(str(i))
        return int(b.gen(max_tokens=4))

    assert run(lambda c: c.fork(3, branch)).value == [0, 1, 2]


def test_a_branch_error_names_the_line_and_the_others():
    def branch(b: Context, i: int):
        raise ValueError(i)

    def body(c: Context):
        with pytest.raises(fc.BranchError, match=r"test_fork\.py:\d+") as caught:
            c.fork(3, branch)
        return caught.value

    error = run(body).value
    assert (error.index, [other.index for other in error.others]) == (0, [1, 2])


def test_wrong_arguments_are_refused_before_anything_is_branched():
    def body(c: Context):
        for wrong in (lambda: c.fork(2, None), lambda: parallel(str, [1]), lambda: c.split("x"), lambda: c.tool(None)):
            with pytest.raises(TypeError):
                wrong()
        with pytest.raises(ValueError, match="errors="):
            c.fork(2, say, errors="ignore")
        c.user("still usable")
        return [reference().path for reference in c._execution.contexts]

    assert run(body).value == ["body"]


def test_branches_that_had_not_begun_are_closed_with_the_others():
    begun = []

    def branch(b: Context, i: int):
        begun.append(i)
        if i == 0:
            raise ValueError
        b.tool(asyncio.Event().wait)

    def body(c: Context):
        with pytest.raises(fc.BranchError):
            c.fork(50, branch)
        return [reference().path for reference in c._execution.contexts if not reference()._closed]

    assert run(body).value == ["body"]


def test_a_second_round_on_the_same_handles_does_not_draw_the_same():
    model = fc.load("test:tiny")

    @program
    def draw(c: Context) -> str:
        c.user("q")
        return c.gen(max_tokens=16, temperature=1.0)

    @program
    def rounds(c: Context) -> list[str]:
        handles = c.split(2)
        twice = [*parallel(lambda b: draw(), handles), *parallel(lambda b: draw(), handles)]
        return [*twice, draw(), *parallel(lambda b: draw(), [c]), *c.fork(1, lambda b, i: draw())]

    values = rounds.using(model, seed=3)()
    assert len(set(values)) == 7
    assert rounds.using(model, seed=3)() == values
    model.close()


def test_an_until_that_too_few_branches_can_reach_is_a_warning():
    run_ = run(lambda c: c.fork(3, lambda b, i: i, until=majority(5)))
    assert run_.value == [0, 1, 2]
    assert [e.text.split(":")[0] for e in run_.events if e.kind == "warning"] == [
        "until= needs 5 branches and there are 3"
    ]
    with pytest.raises(TypeError, match=r"until=majority\(3\)"):
        majority(["a"])


def test_majority_looks_at_each_value_a_bounded_number_of_times():
    compared = 0

    class Answer:
        def __init__(self, number):
            self.number = number

        def __hash__(self):
            return hash(self.number)

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return self.number == other.number

    answers = [Answer(i % 100) for i in range(500)]
    assert majority(6)(answers) is False
    assert majority(5)(answers) is True
    assert compared <= 2 * len(answers)
    assert majority(2)([[1], [2], [1]]) is True  # what cannot be hashed is compared
