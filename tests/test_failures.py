"""Every way to fail, on the real engine: what is raised, that nothing stays referenced, that the next program runs."""

from __future__ import annotations

import asyncio
import gc

import pytest

import furcate as fc
from furcate import Budget, Chat, Context, first, parallel, program
from furcate.runtime.errors import EngineFailed
from furcate.testing import Scripted

LONG = 1900


@pytest.fixture(scope="module")
def loaded():
    model = fc.load("test:tiny")
    yield model
    model.close()


@pytest.fixture
def tiny(loaded):
    """The engine; after the test its ledger is clean and it still works."""
    yield loaded
    loaded.check_integrity()
    assert loaded.stats()["blocks_referenced"] == 0
    assert len(program(talk).using(loaded)().tokens) == 3


def talk(c: Context, tokens: int = 3):
    c.user("q")
    c.gen(max_tokens=tokens, min_tokens=tokens)
    return c.last


def run(body, model, **settings):
    return program(body).using(model, **settings).run()


def test_a_failing_forward_pass_is_a_backend_error_with_its_place(tiny, monkeypatch):
    def body(c: Context):
        c.user("the end of the context")
        c.fork(2, lambda b, i: b.gen(max_tokens=4, name="thought"))

    def fail(*_):
        raise OSError("the device fell off")

    with monkeypatch.context() as patch:
        patch.setattr(tiny._engine._runner, "forward", fail)
        with pytest.raises(fc.BranchError) as caught:
            run(body, tiny)
    error = caught.value.cause
    assert isinstance(error, fc.BackendError)
    assert isinstance(error.__cause__, OSError)
    assert error.path == "body/fork[0]/thought"
    assert "test_failures.py:" in error.where
    assert all(part in str(error) for part in (error.path, error.where, "the device fell off", "end of the context"))
    assert caught.value.run.graph.nodes


def test_a_failed_branch_frees_its_siblings_and_their_branches(tiny):
    def branch(b: Context, i: int):
        b.gen(max_tokens=3 + i)
        if i == 0:
            raise ValueError("boom")
        b.fork(3, lambda d, j: d.gen(max_tokens=LONG, min_tokens=LONG))

    def body(c: Context):
        c.user("q")
        with pytest.raises(fc.BranchError, match="boom") as caught:
            c.fork(4, branch)
        assert caught.value.index == 0
        c.gen(max_tokens=2)

    run(body, tiny)


def test_errors_of_branches_of_branches_are_chained(tiny):
    def inner(b: Context, i: int):
        raise KeyError(i)

    def body(c: Context):
        c.user("q")
        c.fork(2, lambda b, i: b.fork(3, inner))

    with pytest.raises(fc.BranchError) as caught:
        run(body, tiny)
    error = caught.value
    assert isinstance(error.cause, fc.BranchError)
    assert isinstance(error.cause.cause, KeyError)
    assert error.__cause__ is error.cause
    assert [other.index for other in error.others] == [1]
    assert [other.index for other in error.cause.others] == [1, 2]


def test_until_with_errors_return_keeps_failures_in_place_and_leaves_the_cancelled_out(tiny):
    def branch(b: Context, i: int):
        if i == 1:
            raise ValueError
        b.gen(max_tokens=LONG if i == 3 else 2, min_tokens=LONG if i == 3 else 2)
        return i

    values = run(
        lambda c: (c.user("q"), c.fork(4, branch, until=lambda v: len(v) == 2, errors="return"))[1], tiny
    ).value
    assert values[0] == 0
    assert isinstance(values[1], fc.BranchError)
    assert values[2:] == [2]


@pytest.mark.parametrize("where", ["gen", "select", "fork", "parallel", "nested", "map", "scratch"])
def test_a_timeout_ends_every_kind_of_operation(tiny, where):
    def long(b: Context, *_):
        b.gen(max_tokens=LONG, min_tokens=LONG)
        b.gen(max_tokens=100, min_tokens=100)

    @program
    def called(c: Context):
        c.user("q")
        long(c)

    def in_scratch(c: Context):
        with c.scratch() as t:
            long(t)

    bodies = {
        "gen": long,
        "select": lambda c: [c.select([f"{i}{'x' * 200}" for i in range(200)]) for _ in range(50)],
        "fork": lambda c: c.fork(3, long),
        "parallel": lambda c: parallel(long, c.split(3)),
        "nested": lambda c: called(),
        "map": lambda c: called.map([{}] * 3),
        "scratch": in_scratch,
    }
    with pytest.raises(fc.ProgramTimeout) as caught:
        run(lambda c: (c.user("q"), bodies[where](c)), tiny, timeout=0.05)
    assert caught.value.run.graph.nodes


def test_losers_of_until_give_everything_back(tiny):
    def body(c: Context):
        c.user("q")
        c.fork(6, lambda b, i: b.gen(max_tokens=3 if i < 2 else LONG, min_tokens=3 if i < 2 else LONG), until=first(2))
        c.gen(max_tokens=2)

    run(body, tiny)


def test_a_cancelled_await_and_a_closed_stream_give_everything_back(tiny):
    body = program(lambda c: talk(c, LONG)).using(tiny)

    async def main():
        task = asyncio.create_task(body.aio())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    stream = body.stream()
    next(iter(stream))
    stream.close()
    with pytest.raises(fc.Cancelled):
        list(stream)


def test_handles_that_outlive_their_program_are_closed(tiny):
    kept: list[Context] = []

    def body(c: Context):
        c.user("q")
        kept.extend([c, *c.split(3)])
        kept[1].gen(max_tokens=2)

    run(body, tiny)
    for handle in kept:
        for use in (lambda h=handle: h.gen(max_tokens=1), lambda h=handle: h.tokens, lambda h=handle: h.fork(2, talk)):
            with pytest.raises(fc.ContextClosed, match="its program has ended"):
                use()


def test_handles_in_reference_cycles_give_their_blocks_back(tiny):
    def body(c: Context):
        c.user("q")
        (handle,) = c.split(1)
        handle.gen(max_tokens=30, min_tokens=30)
        cycle: list[object] = [handle]
        cycle.append(cycle)
        branch = handle._branch
        del handle, cycle
        gc.collect()
        c.tool(lambda: None)
        return branch._released

    assert run(body, tiny).value


def test_refusals_come_before_any_forward_pass(tiny):
    def body(c: Context):
        c.user("q")
        before = tiny.stats()["forward_passes"]
        with pytest.raises(fc.UnboundedGeneration):
            c.gen()
        with pytest.raises(fc.ContextOverflow) as caught:
            c.gen(max_tokens=10**6)
        with pytest.raises(fc.ContextOverflow):
            c.select(["x" * 10**4, "y"])
        with pytest.raises(fc.UnsatisfiableConstraint):
            c.gen(fc.regex("a^b"), max_tokens=8)
        assert tiny.stats()["forward_passes"] == before
        return caught.value

    error = run(body, tiny).value
    assert error.needed > error.limit
    assert "test_failures.py:" in error.where


def test_a_budget_is_checked_before_dispatch(tiny):
    def body(c: Context):
        c.user("q")
        while True:
            c.gen(max_tokens=4)

    with pytest.raises(fc.BudgetExceeded) as caught:
        run(body, tiny, budget=Budget(tokens=40))
    assert (caught.value.kind, caught.value.limit) == ("tokens", 40)
    assert caught.value.used >= 40
    assert caught.value.run.usage.generated > 0


def test_two_bodies_may_not_use_one_context(tiny):
    def body(c: Context):
        c.user("q")
        handles = c.split(2)

        def branch(b: Context):
            b.gen(max_tokens=4 if b is handles[0] else 40)
            handles[1].user("from the other")

        with pytest.raises(fc.BranchError) as caught:
            parallel(branch, handles)
        assert isinstance(caught.value.cause, fc.ContextBusy)
        handles[1].gen(max_tokens=2)

    run(body, tiny)


def test_a_closed_model_is_an_error_not_a_hang():
    model = fc.load("test:tiny")
    model.close()
    with pytest.raises(fc.EngineClosed):
        run(talk, model)


# ---- chats
def test_a_turn_that_fails_is_taken_back():
    chat = Chat(model=Scripted(["one", ConnectionError("down"), EngineFailed("gone"), "four"]))
    chat.say("1", max_tokens=9)
    for text in "23":
        with pytest.raises(fc.BackendError) as caught:
            chat.say(text, max_tokens=9)
        assert caught.value.run is not None
    assert chat.say("4", max_tokens=9) == "four"
    assert [m["content"] for m in chat.messages] == ["1", "one", "4", "four"]


def test_a_turn_that_is_cancelled_is_taken_back_and_a_second_at_once_is_refused(tiny):
    chat = Chat(model=tiny)

    async def main():
        running = asyncio.create_task(chat.asay("first", max_tokens=LONG, min_tokens=LONG))
        await asyncio.sleep(0.02)
        with pytest.raises(fc.FurcateError, match="still answering"):
            await chat.asay("second", max_tokens=3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await chat.asay("third", max_tokens=3)

    asyncio.run(main())
    asyncio.run(chat.asay("from another loop", max_tokens=3))
    assert [m["content"] for m in chat.messages if m["role"] == "user"] == ["third", "from another loop"]
    chat.close()


def test_a_closed_chat_says_so_every_time_and_its_running_turn_is_cancelled(tiny):
    chat = Chat(model=tiny)
    stream = chat.stream("q", max_tokens=LONG, min_tokens=LONG)
    next(iter(stream))
    chat.close()
    with pytest.raises(fc.Cancelled):
        list(stream)
    for _ in range(2):
        with pytest.raises(fc.ContextClosed, match="closed"):
            chat.say("again", max_tokens=3)
    unused = Chat(model=tiny)
    unused.close()
    with pytest.raises(fc.ContextClosed):
        unused.say("q")


def test_a_first_turn_that_fails_leaves_the_chat_usable(monkeypatch):
    chat = Chat(system="s", model=Scripted())

    def refuse(*_, **__):
        raise fc.NoChatTemplate("no roles")

    with monkeypatch.context() as patch:
        patch.setattr("furcate.lang.chat.ChatFormat.turn", refuse)
        for _ in range(2):
            with pytest.raises(fc.NoChatTemplate):
                chat.say("q")
    assert chat.say("q", max_tokens=3) == ""
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant"]
