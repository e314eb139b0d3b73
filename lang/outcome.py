"""Waiting for a run from outside the interpreter: from a thread, from asyncio; interrupted, the run is stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from ..runtime.requests import Ticket
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


def wait(outcome: Ticket[R], stop: Callable[[Cancelled], None]) -> R:
    """The outcome of a run, waited for on this thread. ``stop`` is called on the interpreter's if this is broken off,
    by Ctrl-C for one."""
    ended = threading.Event()
    outcome.add_done_callback(ended.set)
    try:
        with tool_threads().waiting():
            ended.wait()
    except BaseException:
        interpreter().call(lambda: stop(Cancelled("interrupted")))
        ended.wait(SETTLE_S)
        raise
    return outcome.result()


async def wait_async(outcome: Ticket[R], stop: Callable[[Cancelled], None]) -> R:
    """``wait`` from asyncio; cancelling the await stops the run."""
    try:
        await resolved(outcome)
    except asyncio.CancelledError:
        interpreter().call(lambda: stop(Cancelled("the awaiting task was cancelled")))
        with suppress(TimeoutError):
            await asyncio.wait_for(resolved(outcome), SETTLE_S)
        raise
    return outcome.result()


async def resolved(ticket: Ticket[R]) -> None:
    """Until the ticket is resolved, on the running loop."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def release() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def tell() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(release)

    ticket.add_done_callback(tell)
    await waiter
