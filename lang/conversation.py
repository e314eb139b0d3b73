"""``Chat``: a conversation whose KV stays, so that each turn prefills only what is new."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar, overload

from typing_extensions import TypeForm, Unpack

from ..runtime.metrics import Usage
from ..runtime.requests import Ticket
from .backends.base import Model
from .context import Context
from .errors import Cancelled, ContextClosed, FurcateError
from .execution import Body, Execution, Settings
from .interpreter import interpreter
from .load import as_model, require_model
from .operation import GenOptions, Mark
from .outcome import refuse_on_loop, wait, wait_async
from .run import Event, Run
from .seed import default_seed
from .stream import Stream
from .task import current_task
from .turns import Message, Turns
from .types import OutputType

T = TypeVar("T")

DEFAULT_MAX_TOKENS = 512
"""Bound of a reply where ``max_tokens`` is not given."""


class Chat:
    """A conversation. Turns are said one after the other, from any thread or loop."""

    def __init__(self, *, system: str | None = None, model: Model | str | None = None) -> None:
        self._model = as_model(model) if model is not None else require_model()
        self._system = system
        self._execution = Execution("chat", self._model, Settings(), default_seed())
        self._context: Context | None = None
        self._usage = Usage()
        self._turn_running: Execution | None = None
        self._closed = False

    @overload
    def say(self, text: str, /, **options: Unpack[GenOptions]) -> str: ...
    @overload
    def say(self, text: str, type: OutputType[T], /, **options: Unpack[GenOptions]) -> T: ...
    @overload
    def say(self, text: str, type: TypeForm[T], /, **options: Unpack[GenOptions]) -> T: ...
    def say(self, text: str, type: Any = str, /, **options: Any) -> Any:
        """Say ``text`` as the user and return the model's reply, a ``type``. Options as in ``Context.gen``."""
        if current_task() is not None:
            raise FurcateError("chat.say was called inside a program: use the program's own context there")
        refuse_on_loop("chat.say", "await chat.asay(...)")
        turn, outcome = self._start(text, type, options, None)
        return wait(outcome, turn.cancel).value

    @overload
    async def asay(self, text: str, /, **options: Unpack[GenOptions]) -> str: ...
    @overload
    async def asay(self, text: str, type: OutputType[T], /, **options: Unpack[GenOptions]) -> T: ...
    @overload
    async def asay(self, text: str, type: TypeForm[T], /, **options: Unpack[GenOptions]) -> T: ...
    async def asay(self, text: str, type: Any = str, /, **options: Any) -> Any:
        """``say`` from asyncio."""
        turn, outcome = self._start(text, type, options, None)
        return (await wait_async(outcome, turn.cancel)).value

    def stream(self, text: str, /, **options: Unpack[GenOptions]) -> Stream[str]:
        """``say``, iterating over the reply's ``text`` events while it is written."""
        stream: Stream[str] = Stream()

        def show(event: Event) -> None:
            if event.kind == "text":
                stream.put(event)

        stream.begin(*self._start(text, str, options, show))
        return stream

    def astream(self, text: str, /, **options: Unpack[GenOptions]) -> Stream[str]:
        """``stream`` for ``async for``."""
        return self.stream(text, **options)

    @property
    def usage(self) -> Usage:
        """What the last turn used."""
        return self._usage

    @property
    def messages(self) -> Sequence[Message]:
        """The turns so far."""
        return self._context.messages if self._context is not None else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the conversation's KV back; a turn that is running is cancelled. Idempotent."""
        if not self._closed:
            self._closed = True
            interpreter().call(self._close)

    def _close(self) -> None:
        if self._turn_running is not None:  # its end gives the KV back
            self._turn_running.cancel(Cancelled("the chat was closed"))
        elif self._context is not None:
            self._context.end("its chat was closed")

    def _start(
        self, text: str, type: Any, options: Any, sink: Callable[[Event], None] | None
    ) -> tuple[Execution, Ticket[Run[Any]]]:
        options.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
        surroundings = contextvars.copy_context()
        turn = Execution("chat", self._model, Settings(), self._execution.seed, sink=sink)

        def begin() -> Ticket[Run[Any]]:
            if self._closed:
                raise ContextClosed("the chat was closed: open another Chat")
            if self._turn_running is not None:
                raise FurcateError("the chat is still answering: wait for the reply, or use another Chat")
            self._turn_running = turn
            task = interpreter().spawn(lambda: self._turn(turn, text, type, options), surroundings)
            task.local = [Body(None, None, None, None, "", turn)]
            task.on_end = lambda error: self._turn_ended(turn, error)
            turn.tasks.add(task)
            return task.outcome

        return turn, interpreter().submit(begin)

    def _turn(self, turn: Execution, text: str, type: Any, options: Any) -> Run[Any]:
        """One turn; a turn that fails is taken back, so that the conversation can go on."""
        context, start = self._begin()
        context._execution = turn
        try:
            context.user(text)
            return turn.snapshot(context.gen(type, **options))
        except BaseException:
            context._return_to(start)
            raise

    def _begin(self) -> tuple[Context, Mark]:
        """The context, made at the first turn, and where it stands."""
        if self._context is None:
            context = Context(
                self._execution, self._model.root(), Turns(self._execution.format), path="chat", seed_path=""
            )
            if self._system is not None:
                context.system(self._system)
            self._context = context
        return self._context, self._context._take_mark()

    def _turn_ended(self, turn: Execution, error: BaseException | None) -> BaseException | None:
        error = turn.verdict(error)
        self._usage = turn.usage
        self._turn_running = None
        turn.finish()
        if error is not None:
            turn.attach(error)
        if self._context is not None:
            self._context._execution = self._execution
            if self._closed:
                self._close()
        return error
