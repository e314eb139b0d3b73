"""``@program``: a plain typed function becomes something that can be run, mapped, compiled and checked."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from os import PathLike
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from . import mapping
from .backends.base import Model
from .budget import Budget, Ledger
from .checking import check_program
from .checks import Finding
from .compiler import compile_program
from .context import Context
from .errors import Cancelled, FurcateError, NoSource, ProgramTimeout
from .execution import Body, Execution, Settings
from .forking import body_code, nested_body
from .graph import Graph
from .interpreter import Task, current_task, interpreter
from .load import load, require_model
from .run import Event, Results, Run
from .stream import Stream
from .turns import Turns

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - the name the field uses for an item's type
R_co = TypeVar("R_co", covariant=True)
I_contra = TypeVar("I_contra", contravariant=True)

Rows = Iterable[Mapping[str, Any]] | Iterable[tuple[Any, ...]]


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
        self._plan: Graph | None = None
        self._plan_error: FurcateError | None = None
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
            return cast("R_co", self._nested(task, args, kwargs))
        return self.run(*args, **kwargs).value

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Run[R_co]:
        """Run the program; returns value, usage, recorded graph, events and seed."""
        _refuse_on_interpreter_loop(self.name, "run")
        task = current_task()
        if task is not None and task.local:
            return self._nested_run(task, args, kwargs)
        execution, future = self.start(args, kwargs)
        return _wait(execution, future)

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the program from asyncio; other tasks of the loop go on. Cancelling the await cancels the run."""
        execution, future = self.start(args, kwargs)
        return cast("R_co", (await _wait_async(execution, future)).value)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R_co]:
        """Run the program and iterate over its events while it runs; ``.run`` holds the Run afterwards."""
        stream: Stream[R_co] = Stream()
        stream.begin(*self.start(args, kwargs, sink=stream.put))
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
    def map(self: Any, rows: Iterable[Any], **options: Any) -> Results[Any]:
        """Run the program on every row, many at once; values in the order of the rows.

        A row that is a dict is keyword arguments, a tuple positional, anything else the sole argument. on_error:
        ``raise`` (default) stops at the first failed row and raises its error; ``keep`` collects failures in
        ``.failed``. out: a JSONL file that each finished row is written to at once; resume: skip what it already
        holds. budget: for all rows together. Row i runs with seed + i.
        """
        return mapping.run(self, rows, **options)

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
    async def amap(self: Any, rows: Iterable[Any], **options: Any) -> Results[Any]:
        """``map`` from asyncio."""
        return await mapping.run_async(self, rows, **options)

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
        chosen = load(model) if isinstance(model, str) else model
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
        if self._plan is None:
            self._plan = compile_program(self._fn, self.name)
        return self._plan

    def check(self, model: Model | str | None = None) -> list[Finding]:
        """What is wrong, or likely to be, found on the graph; with a model also what that model cannot do."""
        chosen = load(model) if isinstance(model, str) else model
        return check_program(self, chosen)

    # ---- inside
    def plan(self) -> Graph | None:
        """The compiled graph for a run, or None where there is no source."""
        if self._plan is None and self._plan_error is None:
            try:
                self.compile()
            except NoSource as error:
                self._plan_error = error
        return self._plan

    def start(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        sink: Callable[[Event], None] | None = None,
    ) -> tuple[Execution, Future[Run[Any]]]:
        """Begin a run from any thread: the execution, and a future of its Run. Bad arguments raise TypeError here."""
        execution = self.prepare(args, kwargs, sink=sink)
        context = contextvars.copy_context()
        host = interpreter()
        return execution, host.submit(lambda: self.spawn(execution, args, kwargs, context).outcome)

    def prepare(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        sink: Callable[[Event], None] | None = None,
        ledger: Ledger | None = None,
        seed: int | None = None,
    ) -> Execution:
        """An execution for a run with these arguments."""
        self.__signature__.bind(*args, **kwargs)  # a wrong argument is the caller's error, raised at the caller's line
        model = self._settings.model if isinstance(self._settings.model, Model) else require_model()
        chosen = seed if seed is not None else self.fix_seed()
        return Execution(self.name, model, self._settings, chosen, sink=sink, ledger=ledger)

    def fix_seed(self) -> int:
        """The seed of the next run: the one that was set, or a fresh one."""
        return self._settings.seed if self._settings.seed is not None else default_seed()

    def spawn(
        self, execution: Execution, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: contextvars.Context
    ) -> Task:
        """Start a prepared run. Interpreter's thread only."""
        host = interpreter()
        timer = None
        if execution.settings.timeout is not None:
            timer = host.loop.call_later(
                execution.settings.timeout, lambda: execution.cancel(_timeout_error(self.name, execution))
            )
        plan = self.plan() if getattr(execution.model, "plan", True) else None

        def body() -> Run[Any]:
            try:
                value = self._body(task, execution, args, kwargs)
                return execution.snapshot(value)
            except BaseException as error:
                execution.attach(error)
                raise
            finally:
                execution.finish()
                execution.tasks.discard(task)
                if timer is not None:
                    timer.cancel()

        task = host.spawn(body, context)
        task.local = [Body(body_code(self._fn), plan, None, None, "", execution)]
        task.on_slow = lambda held: execution.emit(
            Event("slow", self.name, "", f"a body held the interpreter for {held:.2f} s: use c.tool for host code")
        )
        execution.tasks.add(task)
        return task

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

    def _nested(self, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._nested_run(task, args, kwargs, depth=1).value

    def _nested_run(self, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, depth: int = 0) -> Run[Any]:
        self.__signature__.bind(*args, **kwargs)
        outer: Body = task.local[-1]
        caller: Execution = outer.execution
        settings = self._settings.over(Settings(temperature=caller.settings.temperature))
        model = settings.model if isinstance(settings.model, Model) else caller.model
        place = caller.place("Call", self.name, None, depth=2 + depth, task=task)
        outer.calls += 1
        seed = settings.seed if settings.seed is not None else caller.seed
        execution = Execution(self.name, model, settings, seed, parent=caller)
        timer = None
        if self._settings.timeout is not None:
            timer = task.interpreter.loop.call_later(
                self._settings.timeout, lambda: task.cancel(_timeout_error(self.name, execution))
            )
        plan = self.plan() if getattr(model, "plan", True) else None
        body = Body(
            body_code(self._fn), plan, None, place.node, f"{outer.seed_path}/call{outer.calls}", execution=execution
        )
        try:
            with nested_body(task, body):
                return execution.snapshot(self._body(task, execution, args, kwargs))
        except ProgramTimeout as error:
            if task.cancel_error is error and caller.root.cancel_error is not error:
                task.cancel_error = None  # the nested program's own time limit: the caller may go on
            raise
        finally:
            execution.finish()
            if timer is not None:
                timer.cancel()


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


def default_seed() -> int:
    """The seed of a run that was given none: FURCATE_SEED, or random."""
    given = os.environ.get("FURCATE_SEED")
    return int(given) if given else random.getrandbits(63)


def _timeout_error(name: str, execution: Execution) -> ProgramTimeout:
    return ProgramTimeout(f"{name} ran longer than its timeout of {execution.settings.timeout} s")


def _refuse_on_interpreter_loop(name: str, verb: str) -> None:
    """A blocking call on the interpreter's own thread, outside a body, would wait for itself."""
    host = interpreter()
    if current_task() is None and host.is_own_thread():
        raise FurcateError(
            f"{name}.{verb} was called from an async tool, which runs on the interpreter's loop and would wait for "
            f"itself. Use `await {name}.aio(...)` there."
        )


def _wait(execution: Execution, future: Future[Run[Any]]) -> Run[Any]:
    try:
        return future.result()
    except BaseException as error:
        if not future.done():  # Ctrl-C in the waiting thread, not an outcome of the run
            stop = Cancelled("interrupted")
            interpreter().call(lambda: execution.cancel(stop))
            _settled(future)
            execution.attach(error)
        raise


def _settled(future: Future[Any]) -> None:
    """Wait until the run has ended, whatever its outcome."""
    future.exception()


async def _wait_async(execution: Execution, future: Future[Run[Any]]) -> Run[Any]:
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        interpreter().call(lambda: execution.cancel(Cancelled("the awaiting task was cancelled")))
        raise
