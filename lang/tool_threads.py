"""Threads for sync host code: a bounded number at work, none of them waited for at exit.

The pool of ``concurrent.futures`` would not do: it joins its threads at exit, so that an abandoned tool keeps the
process; a tool that was abandoned, or that waits for a program, keeps one of its threads from the others.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..runtime.requests import Ticket
from .errors import Cancelled

MAX_THREADS = 32
"""Sync tools that run at once; more wait in the queue. Threads are made as they are needed."""


class Job:
    """One call of host code. ``counts``: whether its thread is one of the bounded number."""

    __slots__ = ("counts", "function", "ticket")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.ticket: Ticket[Any] = Ticket()
        self.counts = False


class ToolThreads:
    """Daemon threads that take jobs from a queue."""

    def __init__(self, limit: int = MAX_THREADS) -> None:
        self._limit = limit
        self._jobs: deque[Job] = deque()
        self._arrival = threading.Condition(threading.RLock())
        self._idle = 0
        self._working = 0  # threads that run a job which counts, or look for one
        self._own = threading.local()

    def submit(self, function: Callable[[], Any]) -> Ticket[Any]:
        """Run ``function`` on a thread. Cancelling the ticket drops the job, or abandons the thread that runs it."""
        job = Job(function)
        job.ticket.on_cancel(lambda: self._abandon(job))
        with self._arrival:
            self._jobs.append(job)
            self._offer()
        return job.ticket

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While a job of this thread waits for a program, another job may run in its stead."""
        job: Job | None = getattr(self._own, "job", None)
        if job is None:
            yield
            return
        self._write_off(job)
        try:
            yield
        finally:
            with self._arrival:
                if not job.ticket.done:
                    job.counts = True
                    self._working += 1

    def _offer(self) -> None:
        """Wake a thread for the queue's jobs, or make one."""
        if self._idle >= len(self._jobs):
            self._arrival.notify()
        elif self._working < self._limit:
            threading.Thread(target=self._work, name="furcate-tool", daemon=True).start()
            self._working += 1

    def _abandon(self, job: Job) -> None:
        with self._arrival:
            if job in self._jobs:
                self._jobs.remove(job)
        job.ticket.resolve(error=Cancelled("the tool was abandoned"))
        self._write_off(job)

    def _write_off(self, job: Job) -> None:
        """Do not count the thread of ``job`` any more; it ends with the job."""
        with self._arrival:
            if job.counts:
                job.counts = False
                self._working -= 1
                if self._jobs:
                    self._offer()

    def _next_job(self) -> Job | None:
        """The next job, waited for; None for a thread that is one too many."""
        with self._arrival:
            while True:
                if self._working > self._limit:
                    self._working -= 1
                    return None
                if self._jobs:
                    break
                self._idle += 1
                self._working -= 1
                self._arrival.wait()
                self._working += 1
                self._idle -= 1
            job = self._jobs.popleft()
            job.counts = True
            return job

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            self._own.job = job
            try:
                outcome, error = job.function(), None
            except BaseException as raised:
                outcome, error = None, raised
            self._own.job = None
            with self._arrival:
                counted, job.counts = job.counts, False
            job.ticket.resolve(outcome, error)
            del job, outcome, error
            if not counted:
                return


_threads = ToolThreads()


def tool_threads() -> ToolThreads:
    """The threads of this process."""
    return _threads


def _forget() -> None:
    global _threads  # noqa: PLW0603 - the threads do not exist in a forked child
    _threads = ToolThreads()


os.register_at_fork(after_in_child=_forget)
