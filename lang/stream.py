"""Events of a run while it runs, for ``for`` and ``async for``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar

from ..runtime.requests import Ticket
from .errors import Cancelled, FurcateError
from .execution import Execution
from .interpreter import interpreter
from .outcome import refuse_on_loop, resolved
from .run import Event, Run
from .task import current_task
from .tool_threads import tool_threads

R_co = TypeVar("R_co", covariant=True)


class Stream(Generic[R_co]):
    """The events of one run. Its error, if it fails, is raised where the iteration ends; closing it cancels the run."""

    def __init__(self) -> None:
        self._events: deque[Event | None] = deque()
        self._arrivals: list[Ticket[None]] = []
        self._lock = threading.Lock()
        self._execution: Execution | None = None
        self._outcome: Ticket[Run[Any]] | None = None
        self._ended = False

    def put(self, event: Event | None) -> None:
        """Add an event, from any thread; None is the end."""
        with self._lock:
            self._events.append(event)
            arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            arrival.resolve()

    def begin(self, execution: Execution, outcome: Ticket[Run[Any]]) -> None:
        """Tie the stream to a started run."""
        self._execution, self._outcome = execution, outcome
        outcome.add_done_callback(lambda: self.put(None))

    def __iter__(self) -> Iterator[Event]:
        refuse_on_loop("a stream's iterator", "async for")
        try:
            while not self._ended:
                if self._events:
                    yield from self._next()
                    continue
                arrival = self._arrival()
                task = current_task()
                if task is not None:  # in a program's body: other programs go on, this stream's among them
                    task.wait(arrival)
                else:
                    with tool_threads().waiting():
                        arrival.wait()
        finally:
            self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            while not self._ended:
                if self._events:
                    for event in self._next():
                        yield event
                    continue
                await resolved(self._arrival())
        finally:
            self.close()

    @property
    def run(self) -> Run[R_co]:
        """The finished Run. Raises the run's own error, or FurcateError while it is still running."""
        if self._outcome is None or not self._outcome.done:
            raise FurcateError("the stream is not at its end yet: iterate over it first")
        return self._outcome.result()

    def close(self) -> None:
        """Cancel the run if it is still running. Idempotent."""
        execution, outcome = self._execution, self._outcome
        if execution is not None and outcome is not None and not outcome.done:
            interpreter().call(lambda: execution.cancel(Cancelled("the stream was closed")))

    async def aclose(self) -> None:
        """``close``, for async code."""
        self.close()

    def _next(self) -> Iterator[Event]:
        """The event that is there, or the run's error at the end."""
        event = self._events.popleft()
        if event is not None:
            yield event
            return
        self._ended = True
        if self._outcome is not None:
            self._outcome.result()

    def _arrival(self) -> Ticket[None]:
        """Resolved as soon as an event is there."""
        arrival: Ticket[None] = Ticket()
        with self._lock:
            if not self._events:
                self._arrivals.append(arrival)
                return arrival
        arrival.resolve()
        return arrival
