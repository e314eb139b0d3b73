"""A task: the greenlet of one program or branch body, how it waits, and how it is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import greenlet

from ..runtime.requests import Ticket
from .errors import Cancelled, FurcateError

if TYPE_CHECKING:
    from .interpreter import Interpreter

R = TypeVar("R")

RECANCEL_S = 1.0
"""A cancelled ``async def`` body may await its cleaning up this long before it is cancelled again."""

MOST_REFUSALS = 1000
"""A cancelled body that has swallowed this many cancellations is given up: it would hold the interpreter for ever."""

MOST_AT_A_STRETCH = 256
"""Operations that a body may do without waiting before others have their turn: a model may answer at once, always."""

PARKED = ("parked", None)
PARKED_FOR_DRIVER = ("driver", None)


class Task(greenlet.greenlet):
    """The greenlet of one body. Owned by the interpreter's thread."""

    def __init__(self, interpreter: Interpreter, body: Callable[[], Any], context: contextvars.Context) -> None:
        super().__init__(self._run_body, parent=interpreter.hub)
        self.gr_context = context
        self.interpreter = interpreter
        self.body = body
        self.outcome: Ticket[Any] = Ticket()
        # told the error, if any, before the outcome is known; returns the one that becomes the outcome
        self.on_end: Callable[[BaseException | None], BaseException | None] | None = None
        self.on_slow: Callable[[float], None] | None = None
        self.waits = 0  # number of the current wait: a wake-up of an earlier one is stale
        self.waiting: Ticket[Any] | None = None
        self.driver: Driver | None = None  # set while the body is a coroutine
        self.local: Any = None  # what the language keeps per task
        self._cancels: list[BaseException] = []
        self._refusals = 0
        self._at_a_stretch = 0

    @property
    def cancel_error(self) -> BaseException | None:
        """What every operation of a cancelled task raises: the first cancellation that still holds."""
        return self._cancels[0] if self._cancels else None

    def _run_body(self) -> None:
        try:
            value = self.settle(self.body())
        except BaseException as error:
            self.end(None, error)
        else:
            self.end(value, None)

    def end(self, value: Any, error: BaseException | None) -> None:
        """Make the outcome known. Only the first call counts."""
        if self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            error = on_end(error)
        self.body = _nothing  # it knows its task: a circle that only the collector would find
        self.outcome.resolve(value, error)

    def settle(self, value: Any) -> Any:
        """What a body returned, awaited if it is a coroutine."""
        if not isinstance(value, Coroutine):
            return value
        if self.driver is None:
            return self._drive(value)
        inner = self.interpreter.spawn(lambda: value)  # a plain call of an async program inside an async body
        inner.local = list(self.local)
        inner.outcome.on_cancel(
            lambda: inner.cancel(self.cancel_error or Cancelled("the call of the program was cancelled"))
        )
        return self.wait(inner.outcome, until_ended=True)

    def check(self) -> None:
        """At each operation: raise the task's cancellation, if there is one; give way to others now and then."""
        self._at_a_stretch += 1
        if self._at_a_stretch > MOST_AT_A_STRETCH and not self._cancels:
            turn: Ticket[None] = Ticket()
            turn.resolve()
            thrown = self._park(turn)
            if thrown is not None and not self._cancels:
                raise thrown
        if self._cancels:
            self._refuse()

    def _refuse(self) -> NoReturn:
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            self._give_up()
        raise self._cancels[0]

    def wait(self, ticket: Ticket[R], *, until_ended: bool = False) -> R:
        """Suspend until ``ticket`` is resolved; returns or raises its outcome, or raises the task's cancellation.

        A wait that is broken off cancels the ticket; with ``until_ended`` it goes on, quietly, until that has taken
        effect: what the ticket works on may then be used again.
        """
        broken: BaseException | None = self.cancel_error
        if broken is None and not ticket.done:
            self.waiting = ticket
            thrown = self._park(ticket)
            self.waiting = None
            broken = self.cancel_error or thrown
        if broken is None:
            return ticket.result()
        ticket.cancel()
        if until_ended:
            self.wait_quietly(ticket)
        if self._cancels:
            self._refuse()
        raise broken

    def wait_quietly(self, ticket: Ticket[Any]) -> None:
        """Suspend until ``ticket`` is resolved, even if this task is cancelled meanwhile; ignores the outcome."""
        while not ticket.done:
            self._park(ticket)

    def _park(self, ticket: Ticket[Any]) -> BaseException | None:
        """Switch away until ``ticket`` is resolved or the task is cancelled; returns what asyncio threw meanwhile."""
        self._at_a_stretch = 0
        self.waits += 1
        number = self.waits
        ticket.add_done_callback(lambda: self.interpreter.wake(self, number))
        command = self.interpreter.hub.switch(PARKED)
        return command[1] if command and command[0] == "throw" else None

    def cancel(self, error: BaseException) -> None:
        """Make the task's current and every later operation raise ``error``. Interpreter's thread only."""
        if self.outcome.done or error in self._cancels:
            return
        self._cancels.append(error)
        if len(self._cancels) > 1:
            return
        if self.waiting is not None:
            self.waiting.cancel()
        self._cancel_await()
        self.interpreter.wake(self, self.waits)

    def uncancel(self, error: BaseException | None) -> None:
        """Take one cancellation back: what it was meant for has ended."""
        if error in self._cancels:
            self._cancels.remove(error)

    def _cancel_await(self) -> None:
        """Cancel what an ``async def`` body awaits; again after a while if it swallows that."""
        if self.driver is None or self.outcome.done or not self._cancels:
            return
        if self.driver.task is not None and self.waiting is None:
            self.driver.task.cancel()
        self.interpreter.loop.call_later(RECANCEL_S, self._cancel_await)

    def _give_up(self) -> None:
        """Leave a body that cannot be stopped where it is; whoever waits for it is told so."""
        self.interpreter.abandoned.append(self)  # collected, the greenlet would be thrown into and go on
        self.end(None, self.cancel_error)
        while True:
            self.interpreter.hub.switch(PARKED)

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an ``async def`` body inside this greenlet, its steps taken by an asyncio task."""
        if self._cancels:
            coroutine.close()
            self._refuse()
        driver = self.driver = Driver(self, coroutine)
        command = self.interpreter.hub.switch(PARKED_FOR_DRIVER)
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
            driver.ended = True
            self.driver = None


def _nothing() -> None:
    """What is left of a body that has ended."""


class Driver(Coroutine[Any, Any, None]):
    """What asyncio steps for an ``async def`` body: each step is taken inside the body's greenlet."""

    def __init__(self, task: Task, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.greenlet = task
        self.coroutine = coroutine
        self.task: asyncio.Task[None] | None = None
        self.resume: asyncio.Future[None] | None = None  # set while the body waits in a c.* call
        self.ended = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let asyncio take the first step soon."""
        self.task = loop.create_task(self, context=self.greenlet.gr_context)

    def send(self, value: Any) -> Any:
        return self._step(("send", value))

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        return self._step(("throw", error if value is None else value))

    def _step(self, command: tuple[str, Any]) -> Any:
        self.resume = None
        outcome = self.greenlet.interpreter.enter(self.greenlet, command)
        if self.ended:  # a plain body that called an async program goes on by itself
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
