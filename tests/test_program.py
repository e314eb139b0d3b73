"""Running programs: values, settings, nesting, seeds, time limits, threads and loops, streams, chats."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading

import pytest

import furcate as fc
from furcate import Chat, Context, program
from furcate.testing import Scripted


def last_user(prompt: str) -> str:
    return prompt.rsplit("<|im_start|>user\n", maxsplit=1)[-1].split("<|im_end|>", maxsplit=1)[0]


@pytest.fixture
def echo():
    with fc.using(Scripted(last_user)) as model:
        yield model


@pytest.fixture(scope="module")
def tiny():
    model = fc.load("test:tiny")
    yield model
    model.close()


@program
def say(c: Context, text: str) -> str:
    c.user(text)
    return c.gen(max_tokens=40)


@pytest.mark.usefixtures("echo")
def test_a_run_has_value_usage_graph_events_and_seed():
    run = say.using(seed=5).run("hello")
    assert (run.value, run.seed, run.usage.generated) == ("hello", 5, 5)
    assert [n.kind for n in run.graph.nodes] == ["Text", "Gen", "Return"]
    assert [n.planned for n in run.graph.nodes[:2]] == [n.id for n in say.compile().nodes if n.kind in ("Text", "Gen")]
    assert not [e for e in run.events if e.kind == "break"]


@pytest.mark.usefixtures("echo")
def test_a_wrong_argument_is_a_type_error_at_the_call():
    with pytest.raises(TypeError, match="missing a required argument"):
        say()
    with pytest.raises(TypeError, match="nonsense"):
        say("x", nonsense=1)


def test_without_a_model_the_error_says_how_to_set_one(monkeypatch):
    monkeypatch.delenv("FURCATE_MODEL", raising=False)
    with pytest.raises(fc.NoModel, match="FURCATE_MODEL"):
        say("x")


def test_the_environment_names_the_fallback_model(monkeypatch):
    monkeypatch.setenv("FURCATE_MODEL", "test:scripted")
    assert say("x") == ""


@pytest.mark.usefixtures("echo")
def test_a_nested_program_runs_on_a_fresh_context_with_the_callers_model():
    @program
    def outer(c: Context) -> list[str]:
        c.user("outer")
        inner = say("inner")
        return [inner, c.gen(max_tokens=9)]

    run = outer.run()
    assert run.value == ["inner", "outer"]
    assert run.usage.generated == 10
    assert [n.kind for n in run.graph.nodes].count("Call") == 1


def test_a_failing_backend_is_raised_at_the_line_with_its_place():
    @program
    def fails(c: Context) -> str:
        c.user("the end of the context")
        return c.gen(max_tokens=4, name="thought")

    with pytest.raises(fc.BackendError) as caught:
        fails.using(Scripted([ConnectionError("down")])).run()
    error = caught.value
    assert isinstance(error.__cause__, ConnectionError)
    assert error.path == "fails/thought"
    assert "test_program.py" in error.where
    assert "the end of the context" in str(error)
    assert error.run.graph.nodes


def test_a_timeout_ends_every_branch():
    release = threading.Event()

    @program
    def waits(c: Context) -> None:
        c.fork(3, lambda b, i: b.tool(release.wait))

    try:
        with pytest.raises(fc.ProgramTimeout) as caught:
            waits.using(Scripted([]), timeout=0.05).run()
        assert caught.value.run is not None
    finally:
        release.set()


@pytest.mark.usefixtures("echo")
def test_async_programs_and_running_loops():
    @program
    async def outer(c: Context) -> list[str]:
        await asyncio.sleep(0)
        c.user("a")
        return [c.gen(max_tokens=4), await say.aio("b"), say("c")]

    async def main() -> list[str]:
        return [*(await outer.aio()), *(await asyncio.gather(say.aio("d"), say.aio("e"))), say("f")]

    assert outer() == ["a", "b", "c"]
    assert asyncio.run(main()) == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.usefixtures("echo")
def test_a_sync_call_from_a_tool_and_from_a_thread():
    @program
    def outer(c: Context) -> str:
        return c.tool(lambda: say("from a tool"))

    assert outer() == "from a tool"


@pytest.mark.usefixtures("echo")
def test_a_blocking_call_from_an_async_tool_says_what_to_do():
    async def tool() -> str:
        return say("x")

    @program
    def outer(c: Context) -> str:
        return c.tool(tool)

    with pytest.raises(fc.FurcateError, match=r"await say\.aio"):
        outer()


@pytest.mark.usefixtures("echo")
def test_context_variables_reach_programs_branches_and_tools():
    variable = contextvars.ContextVar("variable")
    variable.set("set by the caller")

    @program
    def outer(c: Context) -> list[str]:
        return [variable.get(), *c.fork(1, lambda b, i: b.tool(variable.get))]

    assert outer() == ["set by the caller"] * 2


@pytest.mark.usefixtures("echo")
def test_a_stream_gives_events_and_then_the_run():
    stream = say.stream("hello")
    events = list(stream)
    assert "".join(e.text for e in events if e.kind == "text") == "hello"
    assert stream.run.value == "hello"


def test_an_error_in_a_stream_is_raised_at_its_end():
    with pytest.raises(fc.BackendError):
        list(say.using(Scripted([ConnectionError("down")])).stream("x"))


@pytest.mark.usefixtures("echo")
def test_a_chat_keeps_its_history():
    chat = Chat(system="Echo.")
    assert chat.say("one", max_tokens=9) == "one"
    assert "".join(e.text for e in chat.stream("two", max_tokens=9)) == "two"
    assert asyncio.run(chat.asay("three", max_tokens=9)) == "three"
    assert [m["content"] for m in chat.messages] == ["Echo.", "one", "one", "two", "two", "three", "three"]


def test_a_chats_second_turn_reuses_all_of_the_first(tiny):
    chat = Chat(system="Answer briefly.", model=tiny)
    chat.say("Name a tree.", max_tokens=12)
    first = chat.usage
    chat.say("And another?", max_tokens=12)
    second = chat.usage
    assert second.cached >= first.prompt + first.generated - 1
    chat.close()


def test_the_same_seed_gives_the_same_tokens_and_another_one_does_not(tiny):
    def think(b: Context, i: int) -> str:
        return b.gen(max_tokens=12, temperature=1.0)

    @program
    def sample(c: Context) -> list[str]:
        c.user("q")
        return c.fork(3, think)

    program_ = sample.using(tiny, seed=1)
    first = program_()
    assert program_() == first
    assert len(set(first)) == 3
    assert sample.using(tiny, seed=2)() != first
    alone = program_.map([{}] * 4).ok
    assert alone[0] == first  # whatever runs beside it


def test_gen_seed_replaces_the_run_seed_for_one_call(tiny):
    @program
    def two(c: Context) -> list[str]:
        c.user("q")
        return c.fork(2, lambda b, i: b.gen(max_tokens=8, temperature=1.0, seed=9 + i))

    assert two.using(tiny, seed=1)() == two.using(tiny, seed=2)()


def test_the_pool_is_where_it_was_after_a_run(tiny):
    @program
    def tree(c: Context) -> None:
        c.user("root")
        for handle in c.split(3):
            handle.gen(max_tokens=3)
        with c.scratch() as t:
            t.gen(max_tokens=3)

    tree.using(tiny)()
    tiny.check_integrity()
    assert tiny.stats()["blocks_referenced"] == 0


def test_a_model_in_a_forked_child_says_what_to_do(tiny):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            say.using(tiny)("x")
        except fc.FurcateError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "Load the model in the child" in pipe.read()


@pytest.mark.usefixtures("echo")
def test_a_scripted_model_works_in_a_forked_child():
    assert say("before") == "before"
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, say("in the child").encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "in the child"


def test_the_log_level_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("FURCATE_LOG", "loud")
    with pytest.raises(ValueError, match="FURCATE_LOG"):
        fc.load("test:scripted")


@pytest.mark.usefixtures("echo")
def test_a_setting_among_the_arguments_is_pointed_to_using():
    with pytest.raises(TypeError, match=r"say\(text: 'str'\).*say\.using\(temperature="):
        say("x", temperature=1)
    with pytest.raises(TypeError, match="takes a Budget"):
        say.using(budget=100)("x")


@pytest.mark.usefixtures("echo")
def test_a_chat_closes_with_its_block():
    with Chat() as chat:
        assert chat.say("hi", max_tokens=4) == "hi"
