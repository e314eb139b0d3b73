"""``Chat``: a conversation whose KV stays, so that each turn prefills only what is new."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, overload

from typing_extensions import TypeForm, Unpack

from ..runtime.metrics import Usage
from ..runtime.requests import Ticket
from .backends.base import Model
from .context import Context
from .errors import Cancelled, FurcateError
from .execution import Body, Execution, Settings
from .interpreter import current_task, interpreter
from .load import load, require_model
from .operation import GenOptions
from .program import default_seed
from .run import Event, Run
from .stream import Stream
from .turns import Message, Turns

T = TypeVar("T")

DEFAULT_MAX_TOKENS = 512
"""Bound of a reply where ``max_tokens`` is not given."""


class Chat:
    """A conversation. Turns are said one after the other, from any thread or loop."""

    def __init__(self, *, system: str | None = None, model: Model | str | None = None) -> None:
        self._model = load(model) if isinstance(model, str) else model if model is not None else require_model()
        self._system = system
        self._execution = Execution("chat", self._model, Settings(), default_seed())
        self._context: Context | None = None
        self._usage = Usage()
        self._busy = False

    @overload
    def say(self, text: str, /, **options: Unpack[GenOptions]) -> str: ...
    @overload
    def say(self, text: str, type: TypeForm[T], /, **options: Unpack[GenOptions]) -> T: ...
    def say(self, text: str, type: Any = str, /, **options: Any) -> Any:
        """Say ``text`` as the user and return the model's reply, a ``type``. Options as in ``Context.gen``."""
        if current_task() is not None:
            raise FurcateError("chat.say was called inside a program: use the program's own context there")
        return self._start(text, type, options, None)[1].result().value

    async def asay(self, text: str, type: Any = str, /, **options: Unpack[GenOptions]) -> Any:
        """``say`` from asyncio."""
        execution, future = self._start(text, type, options, None)
        try:
            return (await asyncio.wrap_future(future)).value
        except asyncio.CancelledError:
            interpreter().call(lambda: execution.cancel(Cancelled("the awaiting task was cancelled")))
            raise

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

    def close(self) -> None:
        """Give the conversation's KV back. Idempotent."""
        context = self._context
        if context is not None:
            interpreter().call(context.close)

    def _start(
        self, text: str, type: Any, options: Any, sink: Callable[[Event], None] | None
    ) -> tuple[Execution, Future[Run[Any]]]:
        options.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
        surroundings = contextvars.copy_context()
        turn = Execution("chat", self._model, Settings(), self._execution.seed, sink=sink)

        def begin() -> Ticket[Run[Any]]:
            if self._busy:
                raise FurcateError("the chat is still answering: wait for the reply, or use another Chat")
            self._busy = True
            task = interpreter().spawn(lambda: self._turn(turn, text, type, options), surroundings)
            task.local = [Body(None, None, None, None, "", turn)]
            turn.tasks.add(task)
            return task.outcome

        return turn, interpreter().submit(begin)

    def _turn(self, turn: Execution, text: str, type: Any, options: Any) -> Run[Any]:
        """One turn; a turn that fails is taken back, so that the conversation can go on."""
        context = self._context
        if context is None:
            context = self._context = Context(
                self._execution, self._model.root(), Turns(self._execution.format), path="chat", seed_path=""
            )
            if self._system is not None:
                context.system(self._system)
        context._execution = turn
        mark = context.mark()
        try:
            context.user(text)
            value = context.gen(type, **options)
        except BaseException:
            if turn.cancel_error is None:
                context.rewind(mark)
            raise
        finally:
            self._usage = turn.usage
            self._busy = False
            context._execution = self._execution
        return turn.snapshot(value)
