"""A run in progress: its model, settings, seed, tasks, recorded graph, usage and events."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..runtime.hints import NO_HINTS, Hints
from ..runtime.metrics import Usage
from ..runtime.requests import SampleKey
from .backends.base import Model
from .budget import Budget, Ledger
from .chat import ChatFormat
from .errors import Cancelled, ProgramTimeout
from .graph import Graph, Node, NodeKind, Site
from .recorder import Recorder
from .run import Event, Run
from .sites import call_sites
from .task import Task, current_task

if TYPE_CHECKING:
    from .context import Context

logger = logging.getLogger("furcate")

NOTHING_USED = Usage()

_run_numbers = itertools.count(1)
_formats: weakref.WeakKeyDictionary[Model, ChatFormat] = weakref.WeakKeyDictionary()


def total(before: Usage, more: Usage) -> Usage:
    """The sum; of nothing and something without making a new one: most contexts do one thing."""
    return more if before is NOTHING_USED else before + more


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``Program.using`` sets; None inherits from the caller, or is the default."""

    model: Model | str | None = None
    seed: int | None = None
    temperature: float | None = None
    budget: Budget | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        """A wrong setting is refused where it is set."""
        for name in ("temperature", "timeout"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
                raise TypeError(f"using: {name} is a number, not {value!r}")
            if value is not None and not float(value) >= 0:
                raise ValueError(f"using: {name}={value} must be at least 0")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, Integral)):
            raise TypeError(f"using: seed is a whole number, not {self.seed!r}")

    def over(self, inherited: Settings) -> Settings:
        """These settings, with what they leave open taken from ``inherited``."""
        own = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        return replace(inherited, **own)


@dataclass(slots=True)
class Body:
    """The function whose frame a chain of call sites starts from: a program's, or a branch's."""

    code: CodeType | None
    plan: Graph | None
    scope: int | None
    """Planned Fork node of a branch body; None in the program's own body."""
    node: int | None
    """Recorded node whose region the body's operations belong to."""
    seed_path: str
    execution: Execution
    calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Numbers of the nested programs that it calls: part of their seed paths."""


_calling: contextvars.ContextVar[Body | None] = contextvars.ContextVar("furcate_body", default=None)


def calling_body() -> Body | None:
    """The body that a program is being called from: of the running task, or the one that started this tool or
    asyncio task. None outside of programs, or where that program has ended."""
    task = current_task()
    if task is not None:
        return task.local[-1] if task.local else None
    body = _calling.get()
    return None if body is None or body.execution.finished else body


def enter_body(body: Body) -> contextvars.Token[Body | None]:
    """Let the tools and asyncio tasks that are started from here know the body that they belong to."""
    return _calling.set(body)


@contextmanager
def nested_body(task: Task, body: Body) -> Iterator[None]:
    """Make ``body`` the task's current one while a nested program runs on its greenlet."""
    task.local.append(body)
    token = _calling.set(body)
    try:
        yield
    finally:
        _calling.reset(token)
        task.local.pop()


@dataclass(slots=True)
class Place:
    """An operation's place: in the source, in the plan, in the record."""

    site: Site | None
    node: int
    planned: Node | None

    @property
    def where(self) -> str:
        return f"{self.site.file}:{self.site.line}" if self.site else "<unknown>"

    def hints(self) -> Hints:
        """What the plan knows of this operation, for the engine."""
        if self.planned is None:
            return NO_HINTS
        attrs = self.planned.attrs
        return Hints(
            token_bound=attrs.get("bound"),
            last_use=bool(attrs.get("last_use", False)),
            coming_fork=int(attrs.get("coming_fork") or 0),
        )


class Execution:
    """One run of one program. Interpreter's thread only, but for what ``events`` receives."""

    __slots__ = (
        "__weakref__", "cancel_error", "children", "contexts", "events", "finished", "format", "ledgers", "model",
        "name", "number", "parent", "recorder", "root", "seed", "settings", "sink", "tasks", "timed_out", "usage",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        model: Model,
        settings: Settings,
        seed: int,
        *,
        parent: Execution | None = None,
        sink: Callable[[Event], None] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.settings = settings
        self.seed = seed
        self.parent = parent
        self.root: Execution = parent.root if parent is not None else self
        self.number: int = parent.number if parent is not None else next(_run_numbers)
        self.format = chat_format(model)
        self.recorder: Recorder = parent.recorder if parent is not None else Recorder(name)
        self.events: list[Event] = parent.events if parent is not None else []
        self.sink: Callable[[Event], None] | None = _both(sink, parent.sink if parent is not None else None)
        self.ledgers: Sequence[Ledger] = (
            *(parent.ledgers if parent is not None else ()),
            *([ledger] if ledger is not None else []),
            *([Ledger(settings.budget)] if settings.budget is not None else []),
        )
        self.usage = NOTHING_USED
        self.tasks: set[Task] = set()
        self.contexts: set[weakref.ref[Context]] = set()
        self.children: set[Execution] = set()
        self.finished = False
        self.cancel_error: Cancelled | None = None
        self.timed_out: ProgramTimeout | None = None
        if parent is not None:
            parent.children.add(self)

    # ---- what ran
    def place(
        self,
        kind: NodeKind,
        label: str,
        context: Context | None,
        *,
        depth: int,
        task: Task,
        attrs: dict[str, Any] | None = None,
        chain: bool = True,
    ) -> Place:
        """Record an operation; ``depth`` is the number of frames between the caller and the user's frame."""
        body: Body = task.local[-1]
        return self.place_at(kind, label, context, call_sites(depth + 1, body.code), body, attrs=attrs, chain=chain)

    def place_at(
        self,
        kind: NodeKind,
        label: str,
        context: Context | None,
        sites: tuple[Site, ...],
        body: Body,
        *,
        attrs: dict[str, Any] | None = None,
        chain: bool = True,
    ) -> Place:
        """``place`` for an operation of ``body`` whose call sites are known."""
        site = sites[-1] if sites else None
        planned: Node | None = None
        if body.plan is not None:
            number = body.plan.find(body.scope, sites)
            if number is not None:
                planned = body.plan.nodes[number]
            else:
                where = f"{site.file}:{site.line}" if site else "?"
                self.emit(Event("break", label, context.path if context is not None else self.name, where))
        node = self.recorder.add(
            kind, label, site, parent=body.node, planned=planned.id if planned is not None else None, attrs=attrs
        )
        if context is not None and chain:
            self.recorder.connect(context._node, node, "context")
            context._node = node
        return Place(site, node, planned)

    def emit(self, event: Event) -> None:
        """Keep an event, and show it to a stream."""
        self.events.append(event)
        if self.sink is not None:
            self.sink(event)

    def charge(self, usage: Usage) -> None:
        """Add what an operation used to this run and the runs around it, and to every budget that covers it."""
        execution: Execution | None = self
        while execution is not None:
            execution.usage = total(execution.usage, usage)
            execution = execution.parent
        for ledger in self.ledgers:
            ledger.charge(usage)

    def check_budget(self) -> None:
        """Raise BudgetExceeded before an operation that no budget is left for."""
        for ledger in self.ledgers:
            ledger.check()

    def key(self, seed_path: str, ordinal: int, seed: int | None = None, sample: int = 0) -> SampleKey:
        """The random stream of an operation (DESIGN: seeds): (run seed, branch path, ordinal, sample index)."""
        digest = hashlib.blake2b(f"{seed_path}#{ordinal}#{sample}".encode(), digest_size=8).digest()
        return SampleKey((self.seed if seed is None else seed) & (2**64 - 1), int.from_bytes(digest, "little"))

    def watch(self, context: Context) -> None:
        """Close ``context`` at the end of the run, if it is still there."""
        self.contexts.add(weakref.ref(context, self.contexts.discard))

    # ---- its end
    def cancel(self, error: Cancelled) -> None:
        """Stop every task of the run, and of the programs it has called, at its next, or current, operation."""
        if self.finished or self.cancel_error is not None:
            return
        self.cancel_error = error
        for task in list(self.tasks):
            task.cancel(error)
        for child in list(self.children):
            child.cancel(error)

    def stop_with_parent(self) -> None:
        """A run that starts when its caller is already being stopped, or has ended, is stopped too."""
        if self.parent is not None and (self.parent.cancel_error is not None or self.parent.finished):
            self.cancel(self.parent.cancel_error or Cancelled(f"{self.parent.name}, which had called it, has ended"))

    def time_out(self) -> None:
        """Stop the run because its time is over: inside it is cancelled, its caller gets ProgramTimeout."""
        if self.cancel_error is None:
            message = f"{self.name} ran longer than its timeout of {self.settings.timeout} s"
            self.timed_out = ProgramTimeout(message)
            self.cancel(Cancelled(message))

    def verdict(self, error: BaseException | None) -> BaseException | None:
        """What leaves the program when its body has ended with ``error``: ProgramTimeout where its time was over,
        also if the body has swallowed that."""
        if error is None:
            return self.timed_out or self.cancel_error
        if self.timed_out is not None and isinstance(error, Cancelled | asyncio.CancelledError):
            self.timed_out.__cause__ = error
            return self.timed_out
        return error

    def finish(self) -> None:
        """Close every context of the run, give their KV back, and stop what it has called and not waited for."""
        self.finished = True
        for child in list(self.children):
            child.cancel(Cancelled(f"{self.name}, which had called it, has ended"))
        if self.parent is not None:
            self.parent.children.discard(self)
        for reference in list(self.contexts):
            context = reference()
            if context is not None:
                context.end("its program has ended")

    def snapshot(self, value: Any) -> Run[Any]:
        """The run as the user sees it."""
        return Run(value, self.usage, self.recorder.graph(), tuple(self.events), self.seed)

    def attach(self, error: BaseException) -> None:
        """Hang the partial run on an error on its way to the caller; the outermost run stays."""
        with contextlib.suppress(AttributeError, TypeError):  # exceptions with slots
            error.run = self.snapshot(None)  # type: ignore[attr-defined]  # set on foreign errors too


def _both(own: Callable[[Event], None] | None, outer: Callable[[Event], None] | None) -> Callable[[Event], None] | None:
    """Events of a run that a program streams go to that stream, and to the one of the program's own run."""
    if own is None or outer is None:
        return own or outer

    def show(event: Event) -> None:
        own(event)
        outer(event)

    return show


def chat_format(model: Model) -> ChatFormat:
    """The chat format of a model, made once; warns where its template is not prefix-stable."""
    known = _formats.get(model)
    if known is None:
        known = _formats[model] = ChatFormat(model.tokenizer)
        reason = known.unstable()
        if reason is not None:
            logger.warning("%s: %s. Turns are appended as they were first rendered.", model.name, reason)
    return known
