"""``@program``: a plain typed function becomes something that can be run, mapped, compiled and checked."""

from __future__ import annotations

import contextvars
import functools
import inspect
import logging
from asyncio import TimerHandle
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import fields
from os import PathLike
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from ..runtime.requests import Ticket
from . import mapping
from .backends.base import Model
from .budget import Budget, Ledger
from .checking import check_program
from .checks import Finding
from .compiler import compile_program
from .context import Context
from .errors import NoSource
from .execution import Body, Execution, Settings, enter_body, nested_body
from .forking import body_code
from .graph import Graph
from .interpreter import interpreter
from .load import as_model, require_model
from .nesting import Caller, calling
from .outcome import refuse_on_loop, wait, wait_async
from .run import Event, Results, Run
from .seed import default_seed
from .stream import Stream
from .task import Task, current_task
from .turns import Turns

logger = logging.getLogger("furcate")

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - the name the field uses for an item's type
R_co = TypeVar("R_co", covariant=True)
I_contra = TypeVar("I_contra", contravariant=True)

Rows = Iterable[Mapping[str, Any]] | Iterable[tuple[Any, ...]]
_SETTINGS = tuple(field.name for field in fields(Settings))


class _Unary(Protocol[I_contra, R_co]):
    """A program of one argument."""

    def __call__(self, row: I_contra, /) -> R_co: ...


class Program(Generic[P, R_co]):
    """A function whose first parameter is a Context, made runnable by ``@program``.

    Settings live in ``using``, never among the program's own arguments.
    """

    def __init__(self, fn: Callable[..., Any], settings: Settings | None = None) -> None:
        self._fn = fn
        self._settings = settings if settings is not None else Settings()
        self._plan = _Plan()
        self.__wrapped__ = fn
        functools.update_wrapper(self, fn)
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        self.__signature__ = _without_context(fn)

    def __repr__(self) -> str:
        return f"<Program {self.name}{self.__signature__}>"

    # ---- running
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the program and return its value.

        In another program's body it runs on a fresh context, with the caller's model, seed path, budget and deadline.
        """
        task = current_task()
        if task is not None and task.local:
            return cast("R_co", self._nested(task, args, kwargs)[1])
        return self._run(args, kwargs).value

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Run[R_co]:
        """Run the program; returns value, usage, recorded graph, events and seed."""
        task = current_task()
        if task is not None and task.local:
            execution, value = self._nested(task, args, kwargs)
            return execution.snapshot(value)
        return self._run(args, kwargs)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run the program from asyncio; other tasks of the loop go on. Cancelling the await cancels the run."""
        return self._aio(calling(), args, kwargs)

    async def _aio(self, caller: Caller | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R_co:
        execution, outcome = self.start(args, kwargs, caller=caller)
        return cast("R_co", (await wait_async(outcome, execution.cancel)).value)

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Run[R_co]:
        refuse_on_loop(self.name, f"await {self.name}.aio(...)")
        execution, outcome = self.start(args, kwargs, caller=calling())
        return wait(outcome, execution.cancel)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R_co]:
        """Run the program and iterate over its events while it runs; ``.run`` holds the Run afterwards."""
        stream: Stream[R_co] = Stream()
        stream.begin(*self.start(args, kwargs, sink=stream.put, caller=calling()))
        return stream

    def astream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R_co]:
        """The same for ``async for``."""
        return self.stream(*args, **kwargs)

    @overload
    def map(
        self: _Unary[I, R], rows: Iterable[I], *, progress: bool = ..., on_error: Literal["keep", "raise"] = ...,
        out: str | PathLike[str] | None = ..., resume: bool = ..., budget: Budget | None = ...,
    ) -> Results[R]: ...  # fmt: skip
    @overload
    def map(
        self, rows: Rows, *, progress: bool = ..., on_error: Literal["keep", "raise"] = ...,
        out: str | PathLike[str] | None = ..., resume: bool = ..., budget: Budget | None = ...,
    ) -> Results[R_co]: ...  # fmt: skip
    def map(
        self: Any, rows: Iterable[Any], *, progress: bool = False, on_error: Literal["keep", "raise"] = "raise",
        out: str | PathLike[str] | None = None, resume: bool = False, budget: Budget | None = None,
    ) -> Results[Any]:  # fmt: skip
        """Run the program on every row, many at once; values in the order of the rows.

        A row that is a dict is keyword arguments, a tuple positional, anything else the sole argument. on_error:
        ``raise`` (default) stops at the first failed row and raises its error; ``keep`` collects failures in
        ``.failed``. out: a JSONL file that each finished row is written to at once; resume: skip what it already
        holds, without which a file that holds something is refused. budget: for all rows together. progress: a tqdm
        bar on a terminal. Row i runs with seed + i.
        """
        return mapping.run(
            self, rows, calling(), progress=progress, on_error=on_error, out=out, resume=resume, budget=budget
        )

    @overload
    async def amap(
        self: _Unary[I, R], rows: Iterable[I], *, progress: bool = ..., on_error: Literal["keep", "raise"] = ...,
        out: str | PathLike[str] | None = ..., resume: bool = ..., budget: Budget | None = ...,
    ) -> Results[R]: ...  # fmt: skip
    @overload
    async def amap(
        self, rows: Rows, *, progress: bool = ..., on_error: Literal["keep", "raise"] = ...,
        out: str | PathLike[str] | None = ..., resume: bool = ..., budget: Budget | None = ...,
    ) -> Results[R_co]: ...  # fmt: skip
    def amap(
        self: Any, rows: Iterable[Any], *, progress: bool = False, on_error: Literal["keep", "raise"] = "raise",
        out: str | PathLike[str] | None = None, resume: bool = False, budget: Budget | None = None,
    ) -> Coroutine[Any, Any, Results[Any]]:  # fmt: skip
        """``map`` from asyncio."""
        return mapping.run_async(
            self, rows, calling(), progress=progress, on_error=on_error, out=out, resume=resume, budget=budget
        )

    def using(
        self,
        model: Model | str | None = None,
        *,
        seed: int | None = None,
        temperature: float | None = None,
        budget: Budget | None = None,
        timeout: float | None = None,
    ) -> Program[P, R_co]:
        """The same program with settings. temperature: default of its ``gen`` calls; timeout: seconds per run."""
        chosen = as_model(model) if model is not None else None
        made: Program[P, R_co] = Program(
            self._fn, Settings(chosen, seed, temperature, budget, timeout).over(self._settings)
        )
        made._plan = self._plan
        return made

    # ---- looking
    def compile(self) -> Graph:
        """The execution graph, read from the source; needs no inputs and no model, and runs nothing.

        Raises NoSource where there is no source (a REPL, ``exec``, a lambda); such a program still runs.
        """
        if self._plan.graph is None:
            self._plan.graph = compile_program(self._fn, self.name)
        return self._plan.graph

    def check(self, model: Model | str | None = None) -> list[Finding]:
        """What is wrong, or likely to be, found on the graph; with a model also what that model cannot do."""
        return check_program(self, as_model(model) if model is not None else None)

    # ---- inside
    def plan(self) -> Graph | None:
        """The compiled graph for a run, or None where there is no source: the run is right without one."""
        if self._plan.graph is None and self._plan.error is None:
            try:
                self.compile()
            except NoSource as error:
                self._plan.error = error
            except Exception as error:
                self._plan.error = error
                logger.warning("%s runs without a plan: compiling it failed", self.name, exc_info=error)
        return self._plan.graph

    def plan_for(self, model: Model) -> Graph | None:
        """``plan``, unless the model was loaded with ``plan=False``."""
        return self.plan() if getattr(model, "plan", True) else None

    def start(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        sink: Callable[[Event], None] | None = None,
        caller: Caller | None = None,
    ) -> tuple[Execution, Ticket[Run[Any]]]:
        """Begin a run from any thread: the execution, and a ticket of its Run. Bad arguments raise TypeError here."""
        execution = self.prepare(args, kwargs, sink=sink, caller=caller)
        self.plan_for(execution.model)  # reads the source and compiles types: others should not wait for that
        context = contextvars.copy_context()

        def begin() -> Any:
            node = caller.place(self.name) if caller is not None else None
            return self.spawn(execution, args, kwargs, context, caller, node).outcome

        return execution, interpreter().submit(begin)

    def prepare(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        sink: Callable[[Event], None] | None = None,
        ledger: Ledger | None = None,
        seed: int | None = None,
        caller: Caller | None = None,
    ) -> Execution:
        """An execution for a run with these arguments; under a caller, with what it passes on."""
        self._require_arguments(args, kwargs)
        outer = caller.body.execution if caller is not None else None
        settings, model = self._settings, self._settings.model
        if outer is not None:
            settings = settings.over(Settings(temperature=outer.settings.temperature))
            model = model if isinstance(model, Model) else outer.model
        return Execution(
            self.name,
            model if isinstance(model, Model) else require_model(),
            settings,
            seed if seed is not None else self.fix_seed(caller),
            parent=outer,
            sink=sink,
            ledger=ledger,
        )

    def _require_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A wrong argument is the caller's error: TypeError at the caller's line, before anything runs."""
        try:
            self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            settings = [name for name in kwargs if name in _SETTINGS and name not in self.__signature__.parameters]
            hint = f"; {settings[0]} is a setting: {self.name}.using({settings[0]}=...)" if settings else ""
            raise TypeError(f"{self.name}{self.__signature__}: {error}{hint}") from None

    def fix_seed(self, caller: Caller | None = None) -> int:
        """The seed of the next run: the one that was set, or the caller's, or a fresh one."""
        if self._settings.seed is not None:
            return self._settings.seed
        return caller.body.execution.seed if caller is not None else default_seed()

    def spawn(
        self,
        execution: Execution,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        context: contextvars.Context,
        caller: Caller | None = None,
        node: int | None = None,
    ) -> Task:
        """Start a prepared run as a task of its own; node: the recorded Call. Interpreter's thread only."""
        host = interpreter()
        outer = self._new_body(execution, caller, node)
        context.run(enter_body, outer)

        def run() -> Run[Any]:
            task.check()  # cancelled before it began
            return execution.snapshot(self._body(task, execution, args, kwargs))

        def end(error: BaseException | None) -> BaseException | None:
            error = execution.verdict(error)
            execution.finish()
            execution.tasks.discard(task)
            if timer is not None:
                timer.cancel()
            if error is not None:
                execution.attach(error)
            return error

        task = host.spawn(run, context)
        task.local = [outer]
        task.on_end = end
        task.on_slow = lambda held: execution.emit(
            Event("slow", self.name, "", f"a body held the interpreter for {held:.2f} s: use c.tool for host code")
        )
        execution.tasks.add(task)
        timer = self._timer(execution)
        execution.stop_with_parent()
        return task

    def _new_body(self, execution: Execution, caller: Caller | None, node: int | None) -> Body:
        return Body(
            body_code(self._fn),
            self.plan_for(execution.model),
            None,
            node,
            caller.seed_path if caller is not None else "",
            execution,
        )

    def _timer(self, execution: Execution) -> TimerHandle | None:
        """Ends the run when its own time limit has passed."""
        if self._settings.timeout is None:
            return None
        return interpreter().loop.call_later(self._settings.timeout, execution.time_out)

    def _body(self, task: Task, execution: Execution, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        context = Context(
            execution,
            execution.model.root(),
            Turns(execution.format),
            path=execution.name,
            seed_path=task.local[-1].seed_path,
            node=task.local[-1].node,
        )
        try:
            value = task.settle(self._fn(context, *args, **kwargs))
            end = execution.recorder.add("Return", self.name, None, parent=task.local[-1].node)
            execution.recorder.connect(context._node, end, "context")
            return value
        finally:
            context.end("its program has ended")

    def _nested(self, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Execution, Any]:
        """Run on the caller's own greenlet: a plain call of a program in a program's body."""
        caller = calling()
        assert caller is not None, "a task with a body has a caller"
        task.check()
        execution = self.prepare(args, kwargs, caller=caller)
        body = self._new_body(execution, caller, caller.place(self.name))
        execution.tasks.add(task)
        timer = self._timer(execution)
        value, raised = None, None
        try:
            with nested_body(task, body):
                value = self._body(task, execution, args, kwargs)
        except BaseException as error:
            raised = error
        execution.finish()
        if timer is not None:
            timer.cancel()
        if execution.timed_out is not None:
            # only the nested program's own time is over: the caller may go on, unless it was cancelled meanwhile
            task.uncancel(execution.cancel_error)
            task.check()
        verdict = execution.verdict(raised)
        if verdict is not None:
            execution.attach(verdict)
            try:
                raise verdict
            finally:
                del raised, verdict  # an error that its own frame holds would keep the frame's contexts
        return execution, value


class _Plan:
    """The compiled graph, made on first use; a program and its copies by ``using`` have one."""

    def __init__(self) -> None:
        self.graph: Graph | None = None
        self.error: Exception | None = None


@overload
def program(fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Program[P, R]: ...
@overload
def program(fn: Callable[Concatenate[Context, P], R], /) -> Program[P, R]: ...
def program(fn: Callable[..., Any], /) -> Program[Any, Any]:
    """Make a program of a function, plain or async, whose first parameter is a Context."""
    if not callable(fn):
        raise TypeError(f"@program decorates a function whose first parameter is a Context, not {type(fn).__name__}")
    return Program(fn)


def _without_context(fn: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError(f"@program: the first parameter of {fn!r} must be the Context")
    return signature.replace(parameters=parameters[1:])
