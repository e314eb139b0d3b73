"""Host code called from a program: on a thread of a bounded pool, or on the interpreter's loop if it is async."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..runtime.requests import Ticket
from .errors import Cancelled
from .run import Event

if TYPE_CHECKING:
    from .context import Context

MAX_THREADS = 32
"""Sync tools that run at once; more wait in the pool's queue. Threads are made as they are needed."""

_pool: ThreadPoolExecutor | None = None


def call(context: Context, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one ``c.tool``; see ``Context.tool``. An error of the tool is raised as it is, at the program's line."""
    task = context._enter("tool")
    name = getattr(fn, "__name__", type(fn).__name__)
    context._execution.place("Tool", name, context, depth=2, task=task)
    context._busy = f"the tool {name} is running"
    surroundings = contextvars.copy_context()
    try:
        if inspect.iscoroutinefunction(fn):
            value = task.wait(_start_async(task.interpreter.loop, fn, args, kwargs, surroundings))
        else:
            value = task.wait(_start_sync(fn, args, kwargs, surroundings))
            if inspect.isawaitable(value):  # a plain function that returns a coroutine
                value = task.wait(_start_async(task.interpreter.loop, _wait_for, (value,), {}, surroundings))
    finally:
        context._busy = ""
    context._execution.emit(Event("tool", name, context.path, ""))
    return value


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


def _start_async(
    loop: asyncio.AbstractEventLoop,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    surroundings: contextvars.Context,
) -> Ticket[Any]:
    job = loop.create_task(fn(*args, **kwargs), context=surroundings)
    ticket: Ticket[Any] = Ticket()

    def cancel() -> None:
        job.cancel()

    ticket.on_cancel(cancel)

    def settle(done: asyncio.Task[Any]) -> None:
        if done.cancelled():
            ticket.resolve(error=Cancelled("the tool was cancelled"))
        elif (error := done.exception()) is not None:
            ticket.resolve(error=error)
        else:
            ticket.resolve(done.result())

    job.add_done_callback(settle)
    return ticket


def _start_sync(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], surroundings: contextvars.Context
) -> Ticket[Any]:
    """A running sync tool cannot be stopped: cancelled, it is abandoned and its result dropped."""
    global _pool  # noqa: PLW0603 - one bounded pool per process
    if _pool is None:
        _pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="furcate-tool")
    job = _pool.submit(lambda: surroundings.run(fn, *args, **kwargs))
    ticket: Ticket[Any] = Ticket()

    def abandon() -> None:
        job.cancel()
        ticket.resolve(error=Cancelled("the tool was abandoned"))

    ticket.on_cancel(abandon)

    def settle(done: Future[Any]) -> None:
        try:
            ticket.resolve(done.result())
        except CancelledError:
            ticket.resolve(error=Cancelled("the tool was cancelled"))
        except BaseException as error:
            ticket.resolve(error=error)

    job.add_done_callback(settle)
    return ticket
