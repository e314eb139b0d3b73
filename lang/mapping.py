"""``map``: one program over many rows, a bounded number in flight, results kept as they come."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from .interpreter import interpreter
from .nesting import Caller
from .outcome import refuse_on_loop, wait, wait_async
from .return_type import return_type
from .run import Failed, Results, Run
from .task import current_task

if TYPE_CHECKING:
    from .program import Program

ROWS_IN_FLIGHT = 256
"""Rows that run at once: enough to fill every batch, few enough that contexts of waiting rows cost nothing."""


def run(program: Program[Any, Any], rows: Iterable[Any], caller: Caller | None, **options: Any) -> Results[Any]:
    """Run one ``map``; see ``Program.map``."""
    refuse_on_loop(f"{program.name}.map", f"await {program.name}.amap(...)")
    job = _Map(program, _listed(rows), caller, **options)
    task = current_task()
    if task is not None and task.local:
        return task.wait(job.start(), until_ended=True)
    outcome: Ticket[Results[Any]] = interpreter().submit(job.start)
    return wait(outcome, job.stop)


async def run_async(
    program: Program[Any, Any], rows: Iterable[Any], caller: Caller | None, **options: Any
) -> Results[Any]:
    """``run`` from asyncio; cancelling the await stops every row."""
    job = _Map(program, _listed(rows), caller, **options)
    outcome: Ticket[Results[Any]] = interpreter().submit(job.start)
    return await wait_async(outcome, job.stop)


def _listed(rows: Iterable[Any]) -> list[Any]:
    if isinstance(rows, str | bytes):
        raise TypeError("map over a bare string would run on its characters; give a list of rows")
    if isinstance(rows, Mapping):
        raise TypeError("map over one mapping would run on its keys; give a list of rows, [row] for a single one")
    return list(rows)


def arguments(row: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a row becomes arguments: a dict is keywords, a tuple positional, anything else the sole argument."""
    if isinstance(row, Mapping):
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
        caller: Caller | None,
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
        self.caller = caller
        self.node: int | None = None
        self.on_error = on_error
        self.values: dict[int, Any] = {}
        self.failed: dict[int, Failed] = {}
        self.usage = Usage()
        self.running: dict[int, Execution] = {}
        self.ticket: Ticket[Results[Any]] = Ticket(cancel=lambda: self.stop(Cancelled("the map was cancelled")))
        self.stopped: BaseException | None = None
        self.ledger = Ledger(budget) if budget is not None else None
        self.context = contextvars.copy_context()
        self.seed = program.fix_seed(caller)
        if out is not None and resume:
            self._read_finished(Path(out))
        elif out is not None and Path(out).is_file() and Path(out).stat().st_size:
            raise FurcateError(
                f"map: {out} holds the results of an earlier run. Give resume=True to go on with it, or another file."
            )
        self.todo = iter([i for i in range(len(rows)) if i not in self.values])
        self.file: IO[str] | None = None
        if out is not None:
            self.file = Path(out).open("a" if resume else "w", encoding="utf-8")  # noqa: SIM115 - closed in _end
            if resume and _breaks_off(Path(out)):
                self.file.write("\n")
        self.bar = tqdm(
            total=len(rows), initial=len(self.values), unit="row", disable=not (progress and sys.stderr.isatty())
        )

    def start(self) -> Ticket[Results[Any]]:
        """Start the first rows; the ticket gets the results."""
        if self.caller is not None:
            self.node = self.caller.place(self.program.name)
        self._go_on()
        return self.ticket

    def stop(self, error: BaseException) -> None:
        """Cancel the rows that run and start no more."""
        if self.stopped is None:
            self.stopped = error
            for execution in list(self.running.values()):
                execution.cancel(Cancelled("another row of the map failed, or the map was cancelled"))
            self._go_on()

    def _go_on(self) -> None:
        """Start rows while there is room; end the map where none runs any more."""
        while self.stopped is None and len(self.running) < ROWS_IN_FLIGHT and self._start_next():
            pass
        if not self.running and not self.ticket.done:
            self._end()

    def _start_next(self) -> bool:
        index = next(self.todo, None)
        if index is None:
            return False
        args, kwargs = arguments(self.rows[index])
        try:
            execution = self.context.copy().run(
                lambda: self.program.prepare(
                    args, kwargs, ledger=self.ledger, seed=self.seed + index, caller=self.caller
                )
            )
        except Exception as error:
            self._row_failed(index, error)
            return True
        self.running[index] = execution
        task = self.program.spawn(execution, args, kwargs, self.context.copy(), self.caller, self.node)
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
            self.stop(error)
        else:
            self.values[index] = value
            if self.file is not None:
                self._write(index, lambda: {"value": pydantic_core.to_jsonable_python(value, fallback=str)})
            self.bar.update()
        self._go_on()

    def _row_failed(self, index: int, error: Exception) -> None:
        with contextlib.suppress(AttributeError, TypeError):  # some exceptions take no notes
            error.add_note(f"in row {index} of {self.program.name}.map: {_short(self.rows[index])}")
        self.failed[index] = Failed(index, self.rows[index], error)
        self._write(index, lambda: {"error": f"{type(error).__name__}: {error}"})
        self.bar.update()
        if self.on_error == "raise":
            self.stop(error)

    def _end(self) -> None:
        self.bar.close()
        if self.file is not None:
            try:
                self.file.close()
            except OSError as error:
                self.stopped = self.stopped or error
        results = Results(
            [self.values[i] for i in sorted(self.values)], [self.failed[i] for i in sorted(self.failed)], self.usage
        )
        if self.stopped is None:
            self.ticket.resolve(results)
            return
        reason = self.stopped
        if any(failed.error is reason for failed in self.failed.values()):
            reason = self.failed[min(self.failed)].error
        if isinstance(reason, FurcateError):
            reason.results = results  # type: ignore[attr-defined]  # what had finished, for whoever catches it
        self.ticket.resolve(error=reason)

    # ---- the file
    def _write(self, index: int, outcome: Callable[[], Mapping[str, Any]]) -> None:
        """Append a row's outcome; what cannot be written stops the map."""
        if self.file is None:
            return
        try:
            line = {"index": index, "row": _digest(self.rows[index]), **outcome()}
            self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self.file.flush()
        except Exception as error:  # a full disk, or a value that has no JSON
            self.stop(error)

    def _read_finished(self, path: Path) -> None:
        if not path.exists():
            return
        rebuild = _rebuilder(self.program)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # a line cut off when the earlier run was killed: its row runs again
            index = entry.get("index") if isinstance(entry, dict) else None
            if type(index) is not int or not 0 <= index < len(self.rows) or "value" not in entry:
                continue
            if entry.get("row") != _digest(self.rows[index]):
                raise FurcateError(
                    f"{path}:{number}: row {index} is not the row of the run that wrote this file. Use another out= "
                    "file, or the same rows."
                )
            try:
                self.values[index] = rebuild(entry["value"])
            except pydantic.ValidationError:
                continue  # written by an earlier version of the program: its row runs again


def _breaks_off(path: Path) -> bool:
    """Whether the file's last line has no end: the earlier run was killed while it wrote."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _short(row: Any, limit: int = 100) -> str:
    text = repr(row)
    return text if len(text) <= limit else text[: limit - 3] + "..."


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
