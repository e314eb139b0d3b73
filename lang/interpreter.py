"""The interpreter: one thread, one event loop, a greenlet for each program body and each branch body.

An operation that must wait for the engine, a tool or a child switches its greenlet away; nothing else runs in
parallel, so the language's own state needs no locks. An ``async def`` body runs as a real asyncio task whose steps are
taken inside its greenlet: its awaits run on the loop, and its ``c.*`` calls stay plain calls that switch away.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

import greenlet

from ..runtime.requests import Branch, Ticket
from .errors import Cancelled, FurcateError

R = TypeVar("R")

SLOW_BODY_S = 0.1
"""A body that holds the interpreter longer than this is reported in its run's events."""


class Task(greenlet.greenlet):
    """The greenlet of one body. Owned by the interpreter's thread."""

    def __init__(self, interpreter: Interpreter, body: Callable[[], Any], context: contextvars.Context) -> None:
        super().__init__(self._run_body, parent=interpreter.hub)
        self.gr_context = context
        self.interpreter = interpreter
        self.body = body
        self.outcome: Ticket[Any] = Ticket()
        self.cancel_error: BaseException | None = None
        self.on_slow: Callable[[float], None] | None = None
        self.waits = 0  # number of the current wait: a wake-up of an earlier one is stale
        self.waiting: Ticket[Any] | None = None
        self.driver: _Driver | None = None  # set while the body is a coroutine
        self.local: Any = None  # what the language keeps per task

    def _run_body(self) -> None:
        try:
            if self.cancel_error is not None:
                raise self.cancel_error
            value = self.settle(self.body())
        except BaseException as error:
            self.outcome.resolve(error=error)
        else:
            self.outcome.resolve(value)

    def settle(self, value: Any) -> Any:
        """What a body returned, awaited if it is a coroutine."""
        if not isinstance(value, Coroutine):
            return value
        if self.driver is None:
            return self._drive(value)
        inner = self.interpreter.spawn(lambda: value)  # a plain call of an async program inside an async body
        inner.local = self.local
        return self.wait(inner.outcome)

    def wait(self, ticket: Ticket[R]) -> R:
        """Suspend until ``ticket`` is resolved; returns or raises its outcome, or raises the task's cancellation."""
        if self.cancel_error is not None:
            ticket.cancel()
            raise self.cancel_error
        if not ticket.done:
            self.waits += 1
            number = self.waits
            self.waiting = ticket
            ticket.add_done_callback(lambda: self.interpreter.wake(self, number))
            self.interpreter.hub.switch(_PARKED)
            self.waiting = None
            if self.cancel_error is not None:
                ticket.cancel()
                raise self.cancel_error
        return ticket.result()

    def wait_quietly(self, ticket: Ticket[Any]) -> None:
        """Suspend until ``ticket`` is resolved, even if this task is cancelled meanwhile; ignores the outcome."""
        while not ticket.done:
            self.waits += 1
            number = self.waits
            ticket.add_done_callback(lambda number=number: self.interpreter.wake(self, number))  # type: ignore[misc]
            self.interpreter.hub.switch(_PARKED)

    def cancel(self, error: BaseException) -> None:
        """Make the task's current and every later operation raise ``error``. Interpreter's thread only."""
        if self.cancel_error is not None or self.outcome.done:
            return
        self.cancel_error = error
        if self.waiting is not None:
            self.waiting.cancel()
        if self.driver is not None and self.driver.task is not None and self.waiting is None:
            self.driver.task.cancel()
        self.interpreter.wake(self, self.waits)

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an ``async def`` body inside this greenlet, its steps taken by an asyncio task."""
        self.driver = _Driver(self, coroutine)
        command = self.interpreter.hub.switch(_PARKED_FOR_DRIVER)
        try:
            while True:
                verb, argument = command
                try:
                    yielded = coroutine.send(argument) if verb == "send" else coroutine.throw(argument)
                except StopIteration as stop:
                    return stop.value
                except asyncio.CancelledError:
                    raise (self.cancel_error or Cancelled("the task was cancelled")) from None
                command = self.interpreter.hub.switch(("yield", yielded))
        finally:
            self.driver = None


_PARKED = ("parked", None)
_PARKED_FOR_DRIVER = ("driver", None)


class _Driver(Coroutine[Any, Any, None]):
    """What asyncio steps for an ``async def`` body: each step is taken inside the body's greenlet."""

    def __init__(self, task: Task, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.greenlet = task
        self.coroutine = coroutine
        self.task: asyncio.Task[None] | None = None
        self.resume: asyncio.Future[None] | None = None  # set while the body waits in a c.* call

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.task = loop.create_task(self, context=self.greenlet.gr_context)

    def send(self, value: Any) -> Any:
        return self._step(("send", value))

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        return self._step(("throw", error if value is None else value))

    def _step(self, command: tuple[str, Any]) -> Any:
        if self.resume is not None:
            self.resume = None
            outcome = self.greenlet.switch()
        else:
            outcome = self.greenlet.switch(command)
        if self.greenlet.dead or outcome is None:
            raise StopIteration(None)
        kind, payload = outcome
        if kind == "yield":
            return payload
        self.resume = asyncio.get_running_loop().create_future()
        self.resume._asyncio_future_blocking = True
        return self.resume

    def close(self) -> None:
        self.coroutine.close()

    def __await__(self) -> Generator[Any, None, None]:
        raise RuntimeError("stepped by its asyncio task only")


class Interpreter:
    """Owner of the thread, the loop and the ready queue."""

    def __init__(self) -> None:
        self.hub: greenlet.greenlet
        self.loop: asyncio.AbstractEventLoop
        self.clock = time.monotonic
        self._ready: deque[tuple[Task | None, int | Callable[[], None]]] = deque()
        self._scheduled = False
        self._lock = threading.Lock()
        started = threading.Event()
        self.thread = threading.Thread(target=self._main, args=(started,), name="furcate-interpreter", daemon=True)
        self.thread.start()
        started.wait()

    def _main(self, started: threading.Event) -> None:
        self.hub = greenlet.getcurrent()
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        started.set()
        self.loop.run_forever()

    # ---- any thread
    def is_own_thread(self) -> bool:
        """Whether the caller runs on the interpreter's thread."""
        return threading.current_thread() is self.thread

    def wake(self, task: Task, number: int) -> None:
        """Resume ``task`` if it is still in its wait ``number``."""
        self._enqueue(task, number)

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` soon on the interpreter's thread."""
        self._enqueue(None, function)

    def _enqueue(self, task: Task | None, item: int | Callable[[], None]) -> None:
        self._ready.append((task, item))
        with self._lock:
            if self._scheduled:
                return
            self._scheduled = True
        self.loop.call_soon_threadsafe(self._drain)

    def discard(self, branch: Branch) -> None:
        """Release the KV of a context that nobody can reach any more. Safe from a finalizer."""
        self._enqueue(None, branch.release)

    def submit(self, start: Callable[[], Ticket[R]]) -> Future[R]:
        """Run ``start`` on the interpreter's thread; the future gets the outcome of the ticket it returns."""
        future: Future[R] = Future()

        def begin() -> None:
            try:
                ticket = start()
            except BaseException as error:
                future.set_exception(error)
                return
            ticket.add_done_callback(lambda: _transfer(ticket, future))

        self.call(begin)
        return future

    # ---- the interpreter's thread
    def _drain(self) -> None:
        with self._lock:
            self._scheduled = False
        for _ in range(len(self._ready)):  # what is added meanwhile waits for the next turn of the loop
            task, item = self._ready.popleft()
            if task is None:
                item()  # type: ignore[operator]  # a function where there is no task
            elif not task.dead and task.waits == item:
                task.waits += 1
                self._switch_to(task)
        if self._ready:
            with self._lock:
                if self._scheduled:
                    return
                self._scheduled = True
            self.loop.call_soon(self._drain)

    def _switch_to(self, task: Task) -> None:
        if task.driver is not None:
            if task.driver.resume is not None and not task.driver.resume.done():
                task.driver.resume.set_result(None)
            return
        began = self.clock()
        outcome = task.switch()
        held = self.clock() - began
        if held > SLOW_BODY_S and task.on_slow is not None:
            task.on_slow(held)
        if outcome is _PARKED_FOR_DRIVER and task.driver is not None:
            task.driver.start(self.loop)

    def spawn(self, body: Callable[[], Any], context: contextvars.Context | None = None) -> Task:
        """A new task, started at the next turn of the loop."""
        task = Task(self, body, context if context is not None else contextvars.copy_context())
        self.wake(task, task.waits)
        return task


def _transfer(ticket: Ticket[R], future: Future[R]) -> None:
    try:
        result = ticket.result()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


_current: Interpreter | None = None
_guard = threading.Lock()


def interpreter() -> Interpreter:
    """The process's interpreter, started on first use; a forked child starts its own."""
    global _current  # noqa: PLW0603 - the one thread that a process's programs share
    if _current is None:
        with _guard:
            if _current is None:
                _current = Interpreter()
    return _current


def _forget() -> None:
    global _current, _guard  # noqa: PLW0603 - the parent's thread does not exist in a forked child
    _current = None
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def current_task() -> Task | None:
    """The task whose body is running on this thread, if any."""
    task = greenlet.getcurrent()
    return task if isinstance(task, Task) else None


def require_task(what: str) -> Task:
    """The running task; an error that says what to do where there is none."""
    task = current_task()
    if task is None:
        raise FurcateError(
            f"{what} was called outside the body of a running program. A context works only on the greenlet of its "
            "program: call it in the @program function, in a helper that the program calls, or in a branch of c.fork; "
            "not from a thread, a tool or an asyncio task that the program has started."
        )
    return task
