"""Waiting for a run from outside the interpreter: from a thread, from asyncio; interrupted, the run is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from .errors import Cancelled, FurcateError
from .interpreter import interpreter
from .task import current_task
from .tool_threads import tool_threads

R = TypeVar("R")

SETTLE_S = 2.0
"""Whoever is interrupted waits at most this long for the run to give everything back: a body may hold its thread."""


def refuse_on_loop(what: str, instead: str) -> None:
    """A blocking call on the interpreter's own thread, outside a body, would wait for itself: raise FurcateError."""
    if current_task() is None and interpreter().is_own_thread():
        raise FurcateError(
            f"{what} was called from an async tool, which runs on the interpreter's loop and would wait for itself. "
            f"Use `{instead}` there."
        )


def wait(future: Future[R], stop: Callable[[Cancelled], None]) -> R:
    """The outcome of a run, waited for on this thread. ``stop`` is called on the interpreter's if this is broken off,
    by Ctrl-C for one."""
    try:
        with tool_threads().waiting():
            return future.result()
    except BaseException:
        if not future.done():
            interpreter().call(lambda: stop(Cancelled("interrupted")))
            with suppress(TimeoutError):
                future.exception(SETTLE_S)
        raise


async def wait_async(future: Future[R], stop: Callable[[Cancelled], None]) -> R:
    """``wait`` from asyncio; cancelling the await stops the run."""
    try:
        await _ended(future)
    except asyncio.CancelledError:
        interpreter().call(lambda: stop(Cancelled("the awaiting task was cancelled")))
        with suppress(TimeoutError):
            await asyncio.wait_for(_ended(future), SETTLE_S)
        raise
    return future.result()


async def _ended(future: Future[R]) -> None:
    """Until the future is done. ``asyncio.wrap_future`` cannot carry every outcome: StopIteration is lost in it."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def release() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def tell(_: Future[R]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(release)

    future.add_done_callback(tell)
    await waiter
