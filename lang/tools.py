"""Host code called from a program: on a thread of a bounded pool, or on the interpreter's loop if it is async."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..runtime.requests import Ticket
from .errors import Cancelled
from .run import Event
from .tool_threads import tool_threads

if TYPE_CHECKING:
    from .context import Context


def call(context: Context, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one ``c.tool``; see ``Context.tool``. An error of the tool is raised as it is, at the program's line."""
    task = context._enter("tool")
    if not callable(fn):
        raise TypeError(f"c.tool calls a function, not {type(fn).__name__}: c.tool(fn, *args)")
    name = getattr(fn, "__name__", type(fn).__name__)
    context._execution.place("Tool", name, context, depth=2, task=task)
    context._busy = f"the tool {name} is running"
    surroundings = contextvars.copy_context()
    try:
        if inspect.iscoroutinefunction(fn):
            value = task.wait(_start_async(task.interpreter.loop, fn, args, kwargs, surroundings))
        else:
            # cancelled, a running tool is abandoned and its result dropped: a thread cannot be stopped
            value = task.wait(tool_threads().submit(lambda: surroundings.run(fn, *args, **kwargs)))
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
        if not job.cancelling():  # a second one would break into the tool's cleaning up
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
