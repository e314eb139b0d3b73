"""Tasks, loops, threads and processes: whatever a body, a tool or a caller does, the next program runs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading

import pytest

import furcate as fc
from furcate import Budget, Chat, Context, program
from furcate.testing import Scripted


def last_user(prompt: str) -> str:
    return prompt.rsplit("<|im_start|>user\n", maxsplit=1)[-1].split("<|im_end|>", maxsplit=1)[0]


@pytest.fixture(autouse=True)
def a_hang_is_a_failure():
    def ring(*_):
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def model():
    model = Scripted(last_user)
    yield model
    assert say.using(model)("still here") == "still here"


@program
def say(c: Context, text: str) -> str:
    c.user(text)
    return c.gen(max_tokens=40)


async def forever() -> None:
    await asyncio.Event().wait()


@program
async def sleeper(c: Context) -> None:
    await forever()


# ---- what a body may raise
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("where", ["body", "async body", "branch", "sync tool", "async tool", "asyncio task", "until"])
def test_a_base_exception_reaches_the_caller_and_only_the_caller(model, kind, where):
    def fail(first=None, *_):
        raise kind

    async def fail_later(first=None):
        raise kind

    async def await_task(c: Context):
        await asyncio.create_task(fail_later())

    bodies = {
        "body": fail,
        "async body": fail_later,
        "branch": lambda c: c.fork(3, fail),
        "sync tool": lambda c: c.tool(fail),
        "async tool": lambda c: c.tool(fail_later),
        "asyncio task": await_task,
        "until": lambda c: c.fork(3, lambda b, i: i, until=fail),
    }
    with pytest.raises(kind):
        program(bodies[where]).using(model)()


def test_stop_iteration_of_a_body_reaches_an_await(model):
    @program
    def empty(c: Context):
        return next(iter(()))

    with pytest.raises(StopIteration):
        empty.using(model)()
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(empty.using(model).aio())


def test_a_tool_may_raise_the_cancelled_error_of_a_future(model):
    def tool():
        raise concurrent.futures.CancelledError

    with pytest.raises(concurrent.futures.CancelledError):
        program(lambda c: c.tool(tool)).using(model)()


def test_a_compiler_that_fails_costs_the_plan_not_the_run(model, monkeypatch, caplog):
    def fail(*_):
        raise RecursionError

    monkeypatch.setattr("furcate.lang.program.compile_program", fail)
    assert program(lambda c: 3).using(model)() == 3
    assert "runs without a plan" in caplog.text


# ---- async bodies
def test_asyncio_timeout_breaks_an_operation_off_and_the_context_stays_usable(model):
    @program
    async def body(c: Context) -> str:
        c.user("go on")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                c.tool(forever)
        return c.gen(max_tokens=9)

    assert body.using(model)() == "go on"


def test_a_gen_that_asyncio_breaks_off_leaves_a_usable_branch():
    tiny = fc.load("test:tiny")

    @program
    async def body(c: Context) -> int:
        c.user("go on")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                c.gen(max_tokens=1900, min_tokens=1900)
        c.gen(max_tokens=3, min_tokens=3)
        return len(c.last.tokens)

    assert body.using(tiny)() == 3
    tiny.check_integrity()
    assert tiny.stats()["blocks_referenced"] == 0
    tiny.close()


def test_a_plain_body_calls_async_programs_and_goes_on(model):
    @program
    async def inner(c: Context) -> int:
        await asyncio.sleep(0)
        return 1

    @program
    def outer(c: Context) -> int:
        return sum(inner() + c.tool(lambda: 1) for _ in range(3))

    assert outer.using(model)() == 6


def test_a_timeout_reaches_an_async_program_called_in_an_async_body(model):
    ended = []

    @program
    async def inner(c: Context):
        try:
            await forever()
        finally:
            ended.append("inner")

    @program
    async def outer(c: Context):
        inner()

    with pytest.raises(fc.ProgramTimeout):
        outer.using(model, timeout=0.02)()
    assert ended == ["inner"]


def test_an_async_body_that_swallows_its_cancellation_is_cancelled_again(model, monkeypatch):
    monkeypatch.setattr("furcate.lang.task.RECANCEL_S", 0.01)
    swallowed = []

    @program
    async def body(c: Context):
        for _ in range(3):
            try:
                await forever()
            except asyncio.CancelledError:
                swallowed.append(1)

    with pytest.raises(fc.ProgramTimeout):
        body.using(model, timeout=0.01)()
    assert len(swallowed) == 3


def test_a_body_that_swallows_every_cancellation_is_given_up(model):
    @program
    def body(c: Context):
        while True:
            try:
                c.tool(forever)
            except BaseException:
                continue

    with pytest.raises(fc.ProgramTimeout):
        body.using(model, timeout=0.01)()


def test_an_async_tool_cleans_up_undisturbed(model):
    cleaned = threading.Event()

    async def tool():
        try:
            await forever()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            cleaned.set()

    with pytest.raises(fc.ProgramTimeout):
        program(lambda c: c.tool(tool)).using(model, timeout=0.01)()
    assert cleaned.wait(10)


# ---- programs called from programs
async def _async_call(c: Context) -> list[str]:
    return [await say.aio("a"), *await asyncio.gather(say.aio("b"), say.aio("c"))]


CALLS = {
    "call": lambda c: [say(t) for t in "abc"],
    "run": lambda c: [say.run(t).value for t in "abc"],
    "aio": _async_call,
    "map": lambda c: list(say.map(list("abc")).ok),
    "tool's thread": lambda c: [c.tool(say, t) for t in "abc"],
    "async tool": lambda c: [c.tool(say.aio, t) for t in "abc"],
    "stream": lambda c: ["".join(e.text for e in say.stream(t) if e.kind == "text") for t in "abc"],
}


@pytest.mark.parametrize("how", CALLS)
def test_a_called_program_has_the_callers_model_usage_budget_and_record(model, how):
    caller = program(CALLS[how]).using(model)
    run = caller.run()
    assert run.value == ["a", "b", "c"]
    assert run.usage.generated == 3
    assert [n.kind for n in run.graph.nodes].count("Call") == (1 if how == "map" else 3)
    with pytest.raises(fc.BudgetExceeded):
        caller.using(budget=Budget(tokens=30))()


@pytest.mark.parametrize("how", CALLS)
def test_a_called_program_draws_by_the_callers_seed(how):
    @program
    def draws(c: Context, text: str) -> str:
        c.user(text)
        return c.gen(max_tokens=12, temperature=1.0)

    tiny = fc.load("test:tiny")

    async def async_call(c: Context) -> list[str]:
        return [await draws.aio("a"), *await asyncio.gather(draws.aio("b"), draws.aio("c"))]

    bodies = {
        "call": lambda c: [draws(t) for t in "abc"],
        "run": lambda c: [draws.run(t).value for t in "abc"],
        "aio": async_call,
        "map": lambda c: list(draws.map(list("abc")).ok),
        "tool's thread": lambda c: [c.tool(draws, t) for t in "abc"],
        "async tool": lambda c: [c.tool(draws.aio, t) for t in "abc"],
        "stream": lambda c: ["".join(e.text for e in draws.stream(t) if e.kind == "text") for t in "abc"],
    }
    caller = program(bodies[how]).using(tiny, seed=3)
    assert caller() == caller()
    tiny.close()


@pytest.mark.parametrize("how", ["call", "aio", "map", "tool's thread", "stream"])
def test_a_called_program_ends_with_its_caller(model, how):
    ended = threading.Event()

    @program
    async def inner(c: Context):
        try:
            await forever()
        finally:
            ended.set()

    async def by_aio(c: Context):
        await inner.aio()

    bodies = {
        "call": lambda c: inner(),
        "aio": by_aio,
        "map": lambda c: inner.map([{}, {}]),
        "tool's thread": lambda c: c.tool(inner),
        "stream": lambda c: list(inner.stream()),
    }
    with pytest.raises(fc.ProgramTimeout) as caught:
        program(bodies[how]).using(model, timeout=0.05)()
    assert ended.wait(10)
    assert caught.value.run is not None


def test_what_nobody_waits_for_ends_with_its_caller(model):
    begun, ended = [], threading.Event()

    @program
    async def inner(c: Context):
        begun.append(1)
        try:
            await forever()
        finally:
            ended.set()

    @program
    async def outer(c: Context):
        stream = inner.stream()
        while not begun:
            await asyncio.sleep(0)
        return stream

    outer.using(model)()
    assert ended.wait(10)


def test_a_called_programs_own_timeout_lets_the_caller_go_on(model):
    @program
    def branches(c: Context):
        c.fork(2, lambda b, i: b.tool(forever))

    @program
    async def outer(c: Context) -> str:
        for inner in (branches, sleeper):
            with pytest.raises(fc.ProgramTimeout) as caught:
                inner.using(timeout=0.01)()
            assert caught.value.run is not None
            with pytest.raises(fc.ProgramTimeout):
                await inner.using(timeout=0.01).aio()
        c.user("on")
        return c.gen(max_tokens=3)

    assert outer.using(model)() == "on"


def test_the_callers_timeout_is_not_lost_in_the_called_programs(model):
    @program
    def inner(c: Context):
        try:
            c.tool(forever)
        finally:
            c._execution.parent.time_out()  # the caller's time is over while the called program's end is under way

    @program
    def outer(c: Context):
        try:
            inner.using(timeout=0.01)()
        except fc.ProgramTimeout:
            return "swallowed"

    with pytest.raises(fc.ProgramTimeout, match="outer ran longer"):
        outer.using(model, timeout=60)()


def test_a_timeout_is_not_swallowed_by_except_exception(model):
    tries = []

    @program
    def body(c: Context):
        try:
            c.tool(forever)
        except Exception:
            tries.append(1)

    with pytest.raises(fc.ProgramTimeout):
        body.using(model, timeout=0.01)()
    assert not tries


def test_a_timeout_of_nothing_has_its_run(model):
    with pytest.raises(fc.ProgramTimeout) as caught:
        sleeper.using(model, timeout=0)()
    assert caught.value.run is not None


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    "call", [lambda: say.map(["x"]), lambda: list(say.stream("x")), lambda: Chat().say("x"), lambda: say("x")]
)
def test_a_blocking_call_on_the_interpreters_loop_says_what_to_do(model, call):
    async def tool():
        return call()

    with fc.using(model), pytest.raises(fc.FurcateError, match="async tool"):
        program(lambda c: c.tool(tool))()


# ---- threads
def test_tools_that_wait_for_programs_do_not_starve_the_tools_of_those(model):
    @program
    def inner(c: Context) -> int:
        return c.tool(lambda: 1)

    @program
    def outer(c: Context, i: int) -> int:
        return c.tool(inner)

    assert sum(outer.using(model).map(range(80)).ok) == 80


def test_abandoned_tools_do_not_starve_the_next(model):
    release = threading.Event()
    try:
        with pytest.raises(fc.ProgramTimeout):
            program(lambda c: c.fork(40, lambda b, i: b.tool(release.wait))).using(model, timeout=0.1)()
        assert program(lambda c: c.tool(lambda: 5)).using(model, timeout=20)() == 5
    finally:
        release.set()


def test_tools_run_in_a_forked_child(model):
    tool = program(lambda c: c.tool(lambda: 5)).using(model)
    assert tool() == 5
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(tool())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


def test_thirty_two_threads_and_six_loops_at_once(model):
    ready = say.using(model)

    def loop(k: int) -> list[str]:
        async def main() -> list[str]:
            return await asyncio.gather(*(ready.aio(f"{k}.{i}") for i in range(20)))

        return asyncio.run(main())

    texts = [str(i) for i in range(320)]
    with concurrent.futures.ThreadPoolExecutor(38) as threads:
        loops = [threads.submit(loop, k) for k in range(6)]
        assert list(threads.map(ready, texts)) == texts
        assert [job.result() for job in loops] == [[f"{k}.{i}" for i in range(20)] for k in range(6)]


def test_a_cancelled_await_ends_the_run_before_it_returns(model):
    ended, begun = [], []

    @program
    async def body(c: Context):
        begun.append(1)
        try:
            await forever()
        finally:
            ended.append(1)

    async def main():
        task = asyncio.create_task(body.using(model).aio())
        while not begun:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended
        assert await say.using(model).aio("next") == "next"

    asyncio.run(main())


def test_a_loop_that_is_closed_under_a_run_does_no_harm(model):
    async def main():
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
        await sleeper.using(model).aio()

    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    loop.run_forever()
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()


# ---- streams
def test_a_stream_that_is_left_cancels_its_run(model):
    ended = threading.Event()

    @program
    def talks(c: Context):
        try:
            while True:
                c.user("x")
                c.gen(max_tokens=3)
        finally:
            ended.set()

    for _ in talks.using(model).stream():
        break
    assert ended.wait(10)
    ended.clear()

    async def main():
        stream = talks.using(model).astream()
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(main())
    assert ended.wait(10)


def test_more_streams_than_an_executor_has_threads(model):
    waiting: list[int] = []

    async def others():
        while len(waiting) < 41:
            await asyncio.sleep(0)

    @program
    def talks(c: Context, i: int) -> int:
        waiting.append(i)
        c.tool(others)
        return i

    async def one(i: int) -> int:
        stream = talks.using(model).astream(i)
        assert [e.kind async for e in stream] == ["tool"]
        return stream.run.value

    async def main() -> list[int]:
        return await asyncio.gather(*map(one, range(41)))

    assert asyncio.run(main()) == list(range(41))


# ---- processes
PRELUDE = """
import asyncio, sys, threading, time
import furcate as fc
from furcate import Chat, Context, program
from furcate.testing import Scripted
async def forever(): print("go", flush=True); await asyncio.Event().wait()
def asleep(): print("go", flush=True); time.sleep(600)
kept = []
@program
def body(c: Context, i: int = 0):
    BODY
body = body.using(Scripted())
"""


def python(body: str, main: str) -> subprocess.Popen[str]:
    source = PRELUDE.replace("BODY", body) + main
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("body", "main"),
    [
        ("c.tool(asleep)", "body()"),
        ("c.fork(2, lambda b, i: b.tool(forever))", "body()"),
        ("c.tool(forever)", "body.map(range(300))"),
        ("c.tool(forever)", "list(body.stream())"),
        ("c.tool(forever)", "asyncio.run(body.aio())"),
        ("asleep()", "body()"),
    ],
)
def test_ctrl_c_ends_a_process_with_keyboard_interrupt(body, main):
    process = python(body, main)
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(
    ("body", "main"),
    [
        ("c.tool(asleep)", "try: body.using(timeout=0.2)()\nexcept fc.ProgramTimeout: pass"),
        ("c.tool(forever)", "stream = body.stream(); events = iter(stream)"),
        ("asleep()", "stream = body.stream()"),
        (
            "c.user('x'); kept.extend([c, *c.split(2)]); print('go', flush=True); c.gen(max_tokens=1900)",
            "model = fc.load('test:tiny'); stream = body.using(model).stream(); next(iter(stream))",
        ),
    ],
)
def test_a_process_ends_with_runs_contexts_and_models_alive(body, main):
    process = python(body, main)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
