"""``map``: one program over many rows, a bounded number in flight, results kept as they come."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import pydantic
import pydantic_core
from tqdm import tqdm

from ..runtime.metrics import Usage
from ..runtime.requests import Ticket
from .budget import Budget, Ledger
from .errors import Cancelled, FurcateError
from .execution import Execution
from .interpreter import current_task, interpreter
from .return_type import return_type
from .run import Failed, Results, Run

if TYPE_CHECKING:
    from .program import Program

ROWS_IN_FLIGHT = 256
"""Rows that run at once: enough to fill every batch, few enough that contexts of waiting rows cost nothing."""


def run(program: Program[Any, Any], rows: Iterable[Any], **options: Any) -> Results[Any]:
    """Run one ``map``; see ``Program.map``."""
    job = _Map(program, list(rows), **options)
    task = current_task()
    if task is not None and task.local:
        return task.wait(job.start())
    future: Future[Results[Any]] = interpreter().submit(job.start)
    try:
        return future.result()
    except BaseException:
        if not future.done():  # Ctrl-C
            interpreter().call(lambda: job.stop(Cancelled("interrupted")))
            future.exception()
        raise


async def run_async(program: Program[Any, Any], rows: Iterable[Any], **options: Any) -> Results[Any]:
    """``run`` from asyncio; cancelling the await stops every row."""
    job = _Map(program, list(rows), **options)
    future: Future[Results[Any]] = interpreter().submit(job.start)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        interpreter().call(lambda: job.stop(Cancelled("the awaiting task was cancelled")))
        raise


def arguments(row: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a row becomes arguments: a dict is keywords, a tuple positional, anything else the sole argument."""
    if isinstance(row, dict):
        return (), {str(name): value for name, value in row.items()}
    if isinstance(row, tuple):
        return row, {}
    return (row,), {}


class _Map:
    """One map in progress. Interpreter's thread only, but for its construction."""

    def __init__(
        self,
        program: Program[Any, Any],
        rows: Sequence[Any],
        *,
        progress: bool = False,
        on_error: Literal["keep", "raise"] = "raise",
        out: str | PathLike[str] | None = None,
        resume: bool = False,
        budget: Budget | None = None,
    ) -> None:
        if on_error not in ("keep", "raise"):
            raise ValueError(f"map: on_error={on_error!r} must be 'keep' or 'raise'")
        if resume and out is None:
            raise ValueError("map: resume=True needs out=, the file to resume from")
        self.program = program
        self.rows = rows
        self.on_error = on_error
        self.values: dict[int, Any] = {}
        self.failed: dict[int, Failed] = {}
        self.usage = Usage()
        self.running: dict[int, Execution] = {}
        self.ticket: Ticket[Results[Any]] = Ticket(cancel=lambda: self.stop(Cancelled("the map was cancelled")))
        self.stopped: BaseException | None = None
        self.ledger = Ledger(budget) if budget is not None else None
        self.context = contextvars.copy_context()
        self.seed = program.fix_seed()
        if out is not None and resume:
            self._read_finished(Path(out))
        self.todo = iter([i for i in range(len(rows)) if i not in self.values])
        self.file: IO[str] | None = None
        if out is not None:
            self.file = Path(out).open("a" if resume else "w", encoding="utf-8")  # noqa: SIM115 - closed in _settle
        self.bar = tqdm(
            total=len(rows), initial=len(self.values), unit="row", disable=not (progress and sys.stderr.isatty())
        )

    def start(self) -> Ticket[Results[Any]]:
        """Start the first rows; the ticket gets the results."""
        for _ in range(ROWS_IN_FLIGHT):
            if not self._start_next():
                break
        self._settle()
        return self.ticket

    def stop(self, error: BaseException) -> None:
        """Cancel the rows that run and start no more."""
        if self.stopped is None:
            self.stopped = error
            for execution in list(self.running.values()):
                execution.cancel(Cancelled("another row of the map failed, or the map was cancelled"))
            self._settle()

    def _start_next(self) -> bool:
        index = next(self.todo, None)
        if index is None or self.stopped is not None:
            return False
        args, kwargs = arguments(self.rows[index])
        try:
            execution = self.context.copy().run(
                lambda: self.program.prepare(args, kwargs, ledger=self.ledger, seed=self.seed + index)
            )
        except Exception as error:
            self._row_failed(index, error)
            return True
        self.running[index] = execution
        task = self.program.spawn(execution, args, kwargs, self.context.copy())
        task.outcome.add_done_callback(lambda: interpreter().call(lambda: self._row_ended(index, task.outcome)))
        return True

    def _row_ended(self, index: int, outcome: Ticket[Run[Any]]) -> None:
        execution = self.running.pop(index)
        self.usage += execution.usage
        try:
            value = outcome.result().value
        except Exception as error:
            self._row_failed(index, error)
        except BaseException as error:
            if self.stopped is None:
                self.stop(error)
        else:
            self.values[index] = value
            self._write(index, {"value": pydantic_core.to_jsonable_python(value, fallback=str)})
            self.bar.update()
        self._start_next()
        self._settle()

    def _row_failed(self, index: int, error: Exception) -> None:
        self.failed[index] = Failed(index, self.rows[index], error)
        self._write(index, {"error": f"{type(error).__name__}: {error}"})
        self.bar.update()
        if self.on_error == "raise":
            self.stop(error)

    def _settle(self) -> None:
        if self.running or self.ticket.done:
            return
        if self.stopped is None and self._start_next():
            self._settle()
            return
        self.bar.close()
        if self.file is not None:
            self.file.close()
        results = Results(
            [self.values[i] for i in sorted(self.values)], [self.failed[i] for i in sorted(self.failed)], self.usage
        )
        if self.stopped is None:
            self.ticket.resolve(results)
        else:
            first = self.failed[min(self.failed)].error if self.failed else self.stopped
            if isinstance(first, FurcateError):
                first.results = results  # type: ignore[attr-defined]  # what had finished, for whoever catches it
            self.ticket.resolve(error=first)

    # ---- the file
    def _write(self, index: int, outcome: Mapping[str, Any]) -> None:
        if self.file is not None:
            line = {"index": index, "row": _digest(self.rows[index]), **outcome}
            self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self.file.flush()

    def _read_finished(self, path: Path) -> None:
        if not path.exists():
            return
        rebuild = _rebuilder(self.program)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # a line cut off when the earlier run was killed: its row runs again
            index = entry.get("index")
            if not isinstance(index, int) or index >= len(self.rows) or "value" not in entry:
                continue
            if entry.get("row") != _digest(self.rows[index]):
                raise FurcateError(
                    f"{path}:{number}: row {index} is not the row of the run that wrote this file. Use another out= "
                    "file, or the same rows."
                )
            self.values[index] = rebuild(entry["value"])


def _digest(row: Any) -> str:
    text = json.dumps(pydantic_core.to_jsonable_python(row, fallback=repr), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _rebuilder(program: Program[Any, Any]) -> Callable[[Any], Any]:
    """JSON back to the program's return type, where it is annotated; as it is where not."""
    wanted = return_type(program.__wrapped__)
    if wanted is None:
        return lambda value: value
    try:
        return pydantic.TypeAdapter(wanted).validate_python
    except pydantic.PydanticUserError:  # a type that pydantic cannot build
        return lambda value: value
