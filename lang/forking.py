"""Branches: ``fork``, ``parallel``, ``split``, ``scratch``, and the group of tasks that runs branch bodies."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from typing_extensions import TypeVarTuple

from ..runtime.requests import Ticket
from .errors import BranchError, Cancelled
from .execution import Body, Execution, Place, enter_body
from .run import Event
from .task import Task, require_task
from .until import Until, branches_needed

if TYPE_CHECKING:
    from .context import Context

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class Job:
    """One branch body to run: a function, its context and its further arguments."""

    fn: Callable[..., Any]
    context: Context
    arguments: tuple[Any, ...]
    close: bool
    """Whether the context ends with the body (a fork's) or is the caller's (a handle)."""
    seed_path: str
    """Of the programs that the body calls."""


def fork(
    parent: Context, items: Any, fn: Callable[..., Any], until: Until[Any] | None, errors: Literal["raise", "return"]
) -> list[Any]:
    """Run one ``fork``; see ``Context.fork``."""
    task = parent._enter("fork")
    _check(fn, errors, "c.fork")
    if isinstance(items, str | bytes):
        raise TypeError(
            "c.fork over a bare string would branch on its characters; give a list, or a number of branches"
        )
    if isinstance(items, bool) or not isinstance(items, int | Iterable):
        raise TypeError(f"c.fork takes a number of branches or a sequence of items, not {type(items).__name__}")
    if isinstance(items, int) and items < 0:
        raise ValueError(f"c.fork: {items} branches")
    arguments = list(range(items)) if isinstance(items, int) else list(items)
    execution = parent._execution
    name = getattr(fn, "__name__", type(fn).__name__)
    place = execution.place(
        "Fork", f"{name} x {len(arguments)}", parent, depth=2, task=task, attrs={"branches": len(arguments)}
    )
    ordinal = parent._next_ordinal()
    children = [
        child(parent, branch, f"fork[{i}]", f"{ordinal}.{i}", place.node)
        for i, branch in enumerate(parent._branch.fork(len(arguments)))
    ]
    parent._busy = f"its fork over {name} is running"
    jobs = [Job(fn, c, (item,), close=True, seed_path=c.seed_path) for c, item in zip(children, arguments, strict=True)]
    try:
        return _run(task, execution, jobs, place, until, errors, what=f"{parent.path}/fork", parent=parent)
    finally:
        parent._busy = ""


@overload
def parallel(
    fn: Callable[[Context, *Ts], Coroutine[Any, Any, R]],
    contexts: Iterable[Context],
    /,
    *args: *Ts,
    until: Until[R] | None = ...,
    errors: Literal["raise"] = ...,
) -> list[R]: ...
@overload
def parallel(
    fn: Callable[[Context, *Ts], R],
    contexts: Iterable[Context],
    /,
    *args: *Ts,
    until: Until[R] | None = ...,
    errors: Literal["raise"] = ...,
) -> list[R]: ...
@overload
def parallel(
    fn: Callable[[Context, *Ts], Coroutine[Any, Any, R]],
    contexts: Iterable[Context],
    /,
    *args: *Ts,
    until: Until[R] | None = ...,
    errors: Literal["return"],
) -> list[R | BranchError]: ...
@overload
def parallel(
    fn: Callable[[Context, *Ts], R],
    contexts: Iterable[Context],
    /,
    *args: *Ts,
    until: Until[R] | None = ...,
    errors: Literal["return"],
) -> list[R | BranchError]: ...
def parallel(  # type: ignore[misc]  # mypy does not match *Ts against *args: Any
    fn: Callable[..., Any],
    contexts: Iterable[Context],
    /,
    *args: Any,
    until: Until[Any] | None = None,
    errors: Literal["raise", "return"] = "raise",
) -> Any:
    """Run ``fn(context, *args)`` on each context, concurrently; results in the order of the contexts.

    The contexts stay usable afterwards. Raises ValueError if one is given twice; ``until`` and ``errors`` as in
    ``Context.fork``.
    """
    task = require_task("parallel")
    _check(fn, errors, "parallel")
    handles = list(contexts)
    for handle in handles:
        if not hasattr(handle, "_enter"):
            raise TypeError(f"parallel takes contexts, such as those of c.split(n), not {type(handle).__name__}")
    if len({id(c) for c in handles}) < len(handles):
        raise ValueError("parallel: the same context is given twice; use c.split(n) for several branches of it")
    for context in handles:
        context._enter("parallel")
    if not handles:
        return []
    execution = handles[0]._execution
    name = getattr(fn, "__name__", type(fn).__name__)
    place = execution.place(
        "Fork",
        f"{name} x {len(handles)}",
        None,
        depth=1,
        task=task,
        attrs={"branches": len(handles), "parallel": True},
    )
    for context in handles:
        execution.recorder.connect(context._node, place.node, "context")
        context._node = place.node
    # a second round on the same handles must not draw what the first one drew
    jobs = [Job(fn, c, args, close=False, seed_path=f"{c.seed_path}/{c._next_ordinal()}.0") for c in handles]
    return _run(task, execution, jobs, place, until, errors, what="parallel", parent=None)


def _check(fn: Any, errors: str, what: str) -> None:
    if not callable(fn):
        raise TypeError(f"{what} runs a function on each branch, not {type(fn).__name__}")
    if errors not in ("raise", "return"):
        raise ValueError(f"{what}: errors={errors!r} must be 'raise' or 'return'")


def split(parent: Context, n: int) -> list[Context]:
    """Run one ``split``; see ``Context.split``."""
    task = parent._enter("split")
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"c.split takes a number of branches, not {type(n).__name__}")
    if n < 0:
        raise ValueError(f"c.split: {n} branches")
    place = parent._execution.place("Split", f"x {n}", parent, depth=2, task=task, attrs={"branches": n})
    ordinal = parent._next_ordinal()
    return [
        child(parent, branch, f"split[{i}]", f"{ordinal}.{i}", place.node)
        for i, branch in enumerate(parent._branch.fork(n))
    ]


def scratch(parent: Context) -> _Scratch:
    """Run one ``scratch``; see ``Context.scratch``."""
    task = parent._enter("scratch")
    place = parent._execution.place("Scratch", "scratch", parent, depth=2, task=task)
    return _Scratch(parent, place, parent._next_ordinal())


class _Scratch:
    def __init__(self, parent: Context, place: Place, ordinal: int) -> None:
        self.parent, self.place, self.ordinal = parent, place, ordinal
        self.child: Context | None = None

    def __enter__(self) -> Context:
        branch = self.parent._branch.fork(1)[0]
        self.child = child(self.parent, branch, "scratch", f"{self.ordinal}.0", self.place.node)
        return self.child

    def __exit__(self, *_: object) -> None:
        if self.child is not None:
            self.child.close()


def child(parent: Context, branch: Any, step: str, seed_step: str, node: int) -> Context:
    """A context on ``branch`` that inherits the parent's open turn."""
    made = type(parent)(
        parent._execution,
        branch,
        parent._turns.copy(),
        path=f"{parent.path}/{step}",
        seed_path=f"{parent.seed_path}/{seed_step}",
        node=node,
    )
    made._open_text = parent._open_text
    return made


def body_code(fn: Callable[..., Any]) -> CodeType | None:
    """The code object whose frame runs when ``fn`` is called, if it is a Python function."""
    inner = inspect.unwrap(getattr(fn, "func", fn))
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    return code if isinstance(code, CodeType) else None


class _Group:
    """Branch bodies that run together: who has finished, who has failed, when enough is known."""

    def __init__(self, number: int, until: Until[Any] | None, keep_errors: bool) -> None:
        self.values: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self.left = number
        self.until = until
        self.keep_errors = keep_errors
        self.until_error: BaseException | None = None
        self.stopping = False
        self.decided: Ticket[None] = Ticket()
        self.ended: Ticket[None] = Ticket()
        if number == 0:
            self.decided.resolve()
            self.ended.resolve()

    def finished(self, index: int, task: Task) -> None:
        """A body has ended. What was cancelled is left out; so is what ends after ``until`` was satisfied."""
        self.left -= 1
        try:
            value = task.outcome.result()
        except BaseException as error:
            also_failed = bool(self.errors) and not self.keep_errors and task.cancel_error is None
            if not self.stopping or also_failed:
                self.errors[index] = error
                if not self.keep_errors or not isinstance(error, Exception):
                    self._decide()
        else:
            if not self.stopping:
                self.values[index] = value
                self._ask_until()
        if self.left == 0:
            self._decide()
            self.ended.resolve()

    def _ask_until(self) -> None:
        if self.until is None:
            return
        try:
            if self.until([self.values[i] for i in sorted(self.values)]):
                self._decide()
        except BaseException as error:
            self.until_error = error
            self._decide()

    def _decide(self) -> None:
        self.stopping = True
        self.decided.resolve()


def _run(
    task: Task,
    execution: Execution,
    jobs: Sequence[Job],
    place: Place,
    until: Until[Any] | None,
    errors: Literal["raise", "return"],
    *,
    what: str,
    parent: Context | None,
) -> list[Any]:
    if branches_needed(until) > len(jobs):
        lack = f"until= needs {branches_needed(until)} branches and there are {len(jobs)}: it is never reached"
        execution.emit(Event("warning", what, parent.path if parent is not None else "", f"{lack} ({place.where})"))
    group = _Group(len(jobs), until, errors == "return")
    outer: Body = task.local[-1]
    tasks: list[Task] = []
    for i, job in enumerate(jobs):
        tasks.append(_spawn(task, execution, job, place, outer))
        tasks[-1].outcome.add_done_callback(lambda i=i, t=tasks[-1]: group.finished(i, t))  # type: ignore[misc]
    try:
        task.wait(group.decided)
    finally:
        reason = task.cancel_error or Cancelled(f"{what}: the result was known, or another branch failed")
        for running in tasks:
            running.cancel(reason)
        task.wait_quietly(group.ended)
        _join(execution, jobs, place, parent, outer)
    if task.cancel_error is not None:
        raise task.cancel_error
    return _outcome(group, jobs, place, until, errors, what)


def _spawn(task: Task, execution: Execution, job: Job, place: Place, outer: Body) -> Task:
    scope = place.planned.id if place.planned is not None else None
    body = Body(
        code=body_code(job.fn),
        plan=outer.plan if scope is not None else None,
        scope=scope,
        node=place.node,
        seed_path=job.seed_path,
        execution=execution,
    )
    surroundings = contextvars.copy_context()
    surroundings.run(enter_body, body)

    def run() -> Any:
        spawned.check()  # cancelled before it began
        return job.fn(job.context, *job.arguments)

    spawned = task.interpreter.spawn(run, surroundings)
    spawned.local = [body]
    spawned.on_slow = task.on_slow
    execution.tasks.add(spawned)
    holder, job.context._holder = job.context._holder, spawned

    def end(error: BaseException | None) -> BaseException | None:
        execution.tasks.discard(spawned)
        job.context._holder = holder
        if job.close:
            job.context.end("its branch has ended")
        return error

    spawned.on_end = end
    return spawned


def _join(execution: Execution, jobs: Sequence[Job], place: Place, parent: Context | None, outer: Body) -> None:
    node = execution.recorder.add("Join", "join", place.site, parent=outer.node)
    for job in jobs:
        execution.recorder.connect(job.context._node, node, "value" if job.close else "context")
        if not job.close:
            job.context._node = node
    if parent is not None:
        execution.recorder.connect(place.node, node, "context")
        parent._node = node


def _outcome(
    group: _Group,
    jobs: Sequence[Job],
    place: Place,
    until: Until[Any] | None,
    errors: Literal["raise", "return"],
    what: str,
) -> list[Any]:
    if group.until_error is not None:
        raise group.until_error
    for error in group.errors.values():
        if not isinstance(error, Exception):  # KeyboardInterrupt, SystemExit, Cancelled: not a branch's own failure
            raise error
    failures = {
        i: _branch_error(i, jobs[i], error, place, what)
        for i, error in sorted(group.errors.items())
        if isinstance(error, Exception)
    }
    if failures and errors == "raise":
        first, *others = failures.values()
        first.others = others
        raise first from first.cause
    results = {**group.values, **failures}
    return [results[i] for i in sorted(results)]


def _branch_error(index: int, job: Job, cause: Exception, place: Place, what: str) -> BranchError:
    error = BranchError(
        f"{what}[{index}] failed ({place.where}): {type(cause).__name__}: {cause}", index=index, cause=cause
    )
    error.__cause__ = cause
    return error
