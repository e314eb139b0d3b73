"""Events of a run while it runs, for ``for`` and ``async for``."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from .errors import Cancelled, FurcateError
from .execution import Execution
from .interpreter import interpreter
from .run import Event, Run

R_co = TypeVar("R_co", covariant=True)


class Stream(Generic[R_co]):
    """The events of one run. Its error, if it fails, is raised where the iteration ends; closing it cancels the run."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._execution: Execution | None = None
        self._future: Future[Run[Any]] | None = None
        self._ended = False

    def put(self, event: Event) -> None:
        """Add an event, from any thread."""
        self._events.put(event)

    def begin(self, execution: Execution, future: Future[Run[Any]]) -> None:
        """Tie the stream to a started run."""
        self._execution, self._future = execution, future
        future.add_done_callback(lambda _: self._events.put(None))

    def __iter__(self) -> Iterator[Event]:
        try:
            while not self._ended:
                event = self._events.get()
                if event is None:
                    self._ended = True
                    self._raise()
                else:
                    yield event
        finally:
            self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        try:
            while not self._ended:
                event = await loop.run_in_executor(None, self._events.get)
                if event is None:
                    self._ended = True
                    self._raise()
                else:
                    yield event
        finally:
            self.close()

    @property
    def run(self) -> Run[R_co]:
        """The finished Run. Raises the run's own error, or FurcateError while it is still running."""
        if self._future is None or not self._future.done():
            raise FurcateError("the stream is not at its end yet: iterate over it first")
        return self._future.result()

    def close(self) -> None:
        """Cancel the run if it is still running. Idempotent."""
        execution, future = self._execution, self._future
        if execution is not None and future is not None and not future.done():
            interpreter().call(lambda: execution.cancel(Cancelled("the stream was closed")))

    async def aclose(self) -> None:
        """``close``, for async code."""
        self.close()

    def _raise(self) -> None:
        if self._future is not None:
            self._future.result()
