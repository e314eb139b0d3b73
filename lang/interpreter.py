"""The interpreter: one thread, one event loop, a greenlet for each program body and each branch body.

An operation that must wait for the engine, a tool or a child switches its greenlet away; nothing else runs in
parallel, so the language's own state needs no locks. An ``async def`` body runs as a real asyncio task whose steps are
taken inside its greenlet: its awaits run on the loop, and its ``c.*`` calls stay plain calls that switch away.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import greenlet

from ..runtime.requests import Branch, Ticket
from .task import PARKED_FOR_DRIVER, Task

logger = logging.getLogger("furcate")

R = TypeVar("R")

SLOW_BODY_S = 0.1
"""A body that holds the interpreter longer than this is reported in its run's events."""


class Interpreter:
    """Owner of the thread, the loop and the ready queue."""

    def __init__(self) -> None:
        self.hub: greenlet.greenlet
        self.loop: asyncio.AbstractEventLoop
        self.clock = time.monotonic
        self._ready: deque[tuple[Task | None, int | Callable[[], None]]] = deque()
        self._scheduled = False
        self.abandoned: list[Task] = []
        self._lock = threading.RLock()  # a finalizer may discard a branch while its own thread is in here
        started = threading.Event()
        self.thread = threading.Thread(target=self._main, args=(started,), name="furcate-interpreter", daemon=True)
        self.thread.start()
        started.wait()

    def _main(self, started: threading.Event) -> None:
        self.hub = greenlet.getcurrent()
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        started.set()
        while True:
            try:
                self.loop.run_forever()
            except BaseException as error:
                # SystemExit or KeyboardInterrupt of an asyncio task that a body has started: asyncio hands it to
                # whoever awaits that task, and lets it through here as well. Other programs go on.
                logger.debug("an asyncio task of a program ended with %s", type(error).__name__)

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
        self._schedule()

    def _schedule(self) -> None:
        with self._lock:
            if self._scheduled:
                return
            self._scheduled = True
        self.loop.call_soon_threadsafe(self._drain)

    def discard(self, branch: Branch) -> None:
        """Release the KV of a context that nobody can reach any more. Safe from a finalizer, on any thread."""
        if self.is_own_thread():
            branch.release()  # only posts to the engine; a run that ends now has given everything back
        else:
            self._enqueue(None, branch.release)

    def submit(self, start: Callable[[], Ticket[R]]) -> Ticket[R]:
        """Run ``start`` on the interpreter's thread; returns a ticket with the outcome of the one it returns."""
        outcome: Ticket[R] = Ticket()

        def begin() -> None:
            try:
                ticket = start()
            except BaseException as error:
                outcome.resolve(error=error)
                return
            ticket.add_done_callback(lambda: _pass_on(ticket, outcome))

        self.call(begin)
        return outcome

    # ---- the interpreter's thread
    def _drain(self) -> None:
        with self._lock:
            self._scheduled = False
        try:
            for _ in range(len(self._ready)):  # what is added meanwhile waits for the next turn of the loop
                task, item = self._ready.popleft()
                if task is None:
                    item()  # type: ignore[operator]  # a function where there is no task
                elif not task.dead and task.waits == item:
                    task.waits += 1
                    self._switch_to(task)
        finally:
            if self._ready:
                self._schedule()

    def _switch_to(self, task: Task) -> None:
        if task.driver is not None:
            if task.driver.resume is not None and not task.driver.resume.done():
                task.driver.resume.set_result(None)
            return
        self.enter(task)

    def enter(self, task: Task, command: Any = None) -> Any:
        """Run ``task`` until it switches away; returns what it switched with."""
        began = self.clock()
        outcome = task.switch(command) if task else task.switch()
        held = self.clock() - began
        if held > SLOW_BODY_S and task.on_slow is not None:
            task.on_slow(held)
        if outcome is PARKED_FOR_DRIVER and task.driver is not None:
            task.driver.start(self.loop)
        return outcome

    def spawn(self, body: Callable[[], Any], context: contextvars.Context | None = None) -> Task:
        """A new task, started at the next turn of the loop."""
        task = Task(self, body, context if context is not None else contextvars.copy_context())
        self.wake(task, task.waits)
        return task


def _pass_on(ticket: Ticket[R], outcome: Ticket[R]) -> None:
    try:
        result = ticket.result()
    except BaseException as error:
        outcome.resolve(error=error)
    else:
        outcome.resolve(result)


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
