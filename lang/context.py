"""The Context: an append-only sequence of token ids with a KV lineage, and the language's statements on it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from typing_extensions import TypeForm, Unpack

from ..runtime.metrics import Usage
from ..runtime.requests import Branch
from . import forking, generation, selection, tools
from .chat import spell
from .choice import Choice, How
from .errors import BranchError, ContextBusy, ContextClosed, FurcateError, InvalidMark
from .execution import NOTHING_USED, Execution, total
from .interpreter import interpreter
from .operation import GenOptions, Mark, OpRecord
from .run import Event
from .task import Task, require_task
from .turns import Message, Role, Turns
from .until import Until

if TYPE_CHECKING:
    from .types import OutputType

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - the name the field uses for an item's type
R = TypeVar("R")
P = ParamSpec("P")


class Context:
    """What a program writes on. Statements append text, expressions return ordinary values.

    Made by the interpreter: a program receives one as its first argument, a branch its own. It works only inside the
    body that it was made for, and is closed when that body ends.
    """

    __slots__ = (
        "__weakref__",
        "_branch",
        "_busy",
        "_closed",
        "_execution",
        "_holder",
        "_last",
        "_marks",
        "_node",
        "_open_text",
        "_ordinal",
        "_turns",
        "_usage",
        "path",
        "seed_path",
    )

    def __init__(
        self, execution: Execution, branch: Branch, turns: Turns, *, path: str, seed_path: str, node: int | None = None
    ) -> None:
        self._execution = execution
        self._branch = branch
        self._turns = turns
        self.path = path
        """Where the context stands in its run: ``judge/fork[2]``."""
        self.seed_path = seed_path
        self._node = node
        self._open_text = branch.length  # where the text that was appended last, and may be re-split, begins
        self._ordinal = 0
        self._usage = NOTHING_USED
        self._last: OpRecord | None = None
        self._marks: list[Mark] = []
        self._busy = ""
        self._holder: Task | None = None  # of a branch body: no other task may use its context
        self._closed = ""
        execution.watch(self)

    def __repr__(self) -> str:
        return f"<Context {self.path}: {'closed' if self._closed else f'{self._branch.length} tokens'}>"

    def __del__(self) -> None:
        if not getattr(self, "_closed", "never built"):
            interpreter().discard(self._branch)

    # ---- text
    def __iadd__(self, text: str) -> Self:
        """Append raw text to the open turn, or to the raw sequence."""
        self._append_text(text, depth=2)
        return self

    def text(self, text: str) -> None:
        """The same as ``c += text``, as an expression."""
        self._append_text(text, depth=2)

    def system(self, text: str) -> None:
        """A system turn, by the model's chat template. Raises NoChatTemplate without one."""
        self._role("system", text)

    def user(self, text: str) -> None:
        """A user turn, by the model's chat template. Raises NoChatTemplate without one."""
        self._role("user", text)

    @overload
    def assistant(self, text: str) -> None: ...
    @overload
    def assistant(self) -> AbstractContextManager[None]: ...
    def assistant(self, text: str | None = None) -> AbstractContextManager[None] | None:
        """An assistant turn that the program writes itself; without text, ``with c.assistant():`` for one in pieces."""
        self._role("assistant", text if text is not None else "")
        return None if text is not None else nullcontext()

    # ---- generation
    @overload
    def gen(self, *, regex: str | None = ..., **options: Unpack[GenOptions]) -> str: ...
    @overload
    def gen(self, type: OutputType[T], /, **options: Unpack[GenOptions]) -> T: ...
    @overload
    def gen(self, type: TypeForm[T], /, **options: Unpack[GenOptions]) -> T: ...
    def gen(  # type: ignore[misc]  # mypy finds no room for a positional default beside Unpack
        self, type: Any = str, /, *, regex: str | None = None, **options: Any
    ) -> Any:
        """Generate a value of ``type`` and append its text.

        After a user turn this opens the assistant turn. The value is decoded under a constraint, so it always parses.
        Raises UnboundedGeneration without ``max_tokens`` where the type has no finite length, ContextOverflow before
        any forward pass where the tokens cannot fit, Truncated where ``max_tokens`` ends a value that may not end
        there, BackendError where the model fails.
        """
        return generation.generate(self, type, regex, options)

    @overload
    def select(
        self, choices: Sequence[T], /, *, how: How = ..., name: str = ..., end: str | None = ...
    ) -> Choice[T]: ...
    @overload
    def select(
        self, choices: TypeForm[T], /, *, how: How = ..., name: str = ..., end: str | None = ...
    ) -> Choice[T]: ...
    def select(self, choices: Any, /, *, how: How = "sum", name: str = "", end: str | None = None) -> Choice[Any]:
        """Score every choice in one pass over their token trie, append the best, return the whole distribution.

        how: ``sum`` of the log-probabilities of the choice's tokens and of the terminator that would follow;
        ``mean`` per token; ``pmi`` minus the score without the context; ``greedy`` the product of the probabilities
        of each step among the choices that are still possible. The terminator is the end of the turn in a chat; in
        raw text it is ``end``, by default none. Raises InvalidChoices for no choices or two with the same text.
        """
        return selection.select(self, choices, how, name, end)

    # ---- branches
    @overload
    def fork(
        self,
        items: int,
        fn: Callable[[Context, int], Coroutine[Any, Any, R]],
        /,
        *,
        until: Until[R] | None = ...,
        errors: Literal["raise"] = ...,
    ) -> list[R]: ...
    @overload
    def fork(
        self,
        items: int,
        fn: Callable[[Context, int], R],
        /,
        *,
        until: Until[R] | None = ...,
        errors: Literal["raise"] = ...,
    ) -> list[R]: ...
    @overload
    def fork(
        self,
        items: Iterable[I],
        fn: Callable[[Context, I], Coroutine[Any, Any, R]],
        /,
        *,
        until: Until[R] | None = ...,
        errors: Literal["raise"] = ...,
    ) -> list[R]: ...
    @overload
    def fork(
        self,
        items: Iterable[I],
        fn: Callable[[Context, I], R],
        /,
        *,
        until: Until[R] | None = ...,
        errors: Literal["raise"] = ...,
    ) -> list[R]: ...
    @overload
    def fork(
        self, items: int, fn: Callable[[Context, int], R], /, *, until: Until[R] | None = ..., errors: Literal["return"]
    ) -> list[R | BranchError]: ...
    @overload
    def fork(
        self,
        items: Iterable[I],
        fn: Callable[[Context, I], R],
        /,
        *,
        until: Until[R] | None = ...,
        errors: Literal["return"],
    ) -> list[R | BranchError]: ...
    def fork(
        self,
        items: Any,
        fn: Callable[..., Any],
        /,
        *,
        until: Until[Any] | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[Any]:
        """Run ``fn(branch, item)`` on a branch for each item, concurrently; results in the order of the items.

        items: a number of branches, or a sequence (a bare ``str`` is a TypeError). until: called with the values
        finished so far, in branch order, after each finish; when it returns true the other branches are cancelled and
        the finished values are the result. errors: ``raise`` cancels the other branches and raises BranchError of the
        first failed one; ``return`` leaves each failure in its place. The parent cannot be used meanwhile.
        """
        return forking.fork(self, items, fn, until, errors)

    def split(self, n: int, /) -> list[Context]:
        """``n`` branches as handles, for trees whose shape depends on results. This context stays usable.

        A handle that is closed, or that nothing refers to any more, gives its KV back.
        """
        return forking.split(self, n)

    def scratch(self) -> AbstractContextManager[Context]:
        """``with c.scratch() as t:`` a branch that is thrown away."""
        return forking.scratch(self)

    def mark(self) -> Mark:
        """A mark at the present end of the context."""
        self._enter("mark")
        mark = self._take_mark()
        self._marks.append(mark)
        return mark

    def rewind(self, mark: Mark, /) -> None:
        """Drop everything after ``mark``: tokens, turns, messages; not usage. Invalidates later marks.

        Raises InvalidMark for a mark of another context or one that an earlier rewind has dropped.
        """
        self._enter("rewind")
        if mark.owner is not self or mark not in self._marks:
            reason = "belongs to another context" if mark.owner is not self else "was dropped by an earlier rewind"
            raise InvalidMark(f"the mark {reason}; take a new one with {self.path.rsplit('/', 1)[-1]}.mark()")
        del self._marks[self._marks.index(mark) + 1 :]
        self._return_to(mark)

    @overload
    def tool(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def tool(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def tool(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call host code, sync or async, off the interpreter's thread; other branches and programs go on."""
        return tools.call(self, fn, args, kwargs)

    def steps(self, n: int, /) -> range:
        """``range(n)`` that the compiler can see: a bounded loop."""
        return range(n)

    # ---- read-outs
    @property
    def tokens(self) -> Sequence[int]:
        """All token ids of the context, oldest first."""
        self._require_open()
        return self._branch.tokens()

    @property
    def transcript(self) -> str:
        """The whole text, special tokens spelled out."""
        self._require_open()
        return spell(self._execution.model.tokenizer, self._branch.tokens())

    @property
    def messages(self) -> Sequence[Message]:
        """The turns so far, the open one included; empty in raw text."""
        return self._turns.messages()

    @property
    def usage(self) -> Usage:
        """What the operations on this context used, branches not included."""
        return self._usage

    @property
    def last(self) -> OpRecord:
        """What the last ``gen`` or ``select`` did. Raises FurcateError before the first."""
        if self._last is None:
            raise FurcateError("c.last: there was no gen or select on this context yet")
        return self._last

    def close(self) -> None:
        """Give the context's KV back. Idempotent; using it afterwards raises ContextClosed."""
        self.end("it was closed with close()")

    def end(self, reason: str) -> None:
        """Give the KV back; ``reason`` is what later uses are told."""
        if not self._closed:
            self._closed = reason
            self._branch.release()

    # ---- inside
    def _require_open(self) -> None:
        if self._closed:
            raise ContextClosed(f"{self.path} cannot be used: {self._closed}")

    def _enter(self, operation: str) -> Task:
        """The running task, if the context may be used now."""
        self._require_open()
        task = require_task(f"c.{operation}")
        task.check()
        if self._holder is not None and self._holder is not task:
            raise ContextBusy(f"{self.path} cannot be used for {operation} while another branch's body runs on it")
        if self._busy:
            raise ContextBusy(
                f"{self.path} cannot be used for {operation} while {self._busy}. In a branch use the branch's own "
                "context (the function's first argument)."
            )
        return task

    def _take_mark(self) -> Mark:
        """A mark that is on no list of marks."""
        begin = max(self._open_text, self._branch.length - selection.RESPLIT_TOKENS)
        tail = tuple(self._branch.tokens()[begin:])
        return Mark(self, self._branch.length, self._turns.copy(), self._open_text, tail)

    def _return_to(self, mark: Mark) -> None:
        """Make tokens and turns what they were at ``mark``."""
        begin = mark.length - len(mark.tail)
        if tuple(self._branch.tokens()[begin : mark.length]) == mark.tail:
            self._branch.truncate(mark.length)
        else:  # a select has split the last word before the mark again
            self._branch.truncate(begin)
            self._branch.append(mark.tail)
        self._turns = mark.turns.copy()
        self._open_text = mark.open_text

    def _next_ordinal(self) -> int:
        self._ordinal += 1
        return self._ordinal

    def _append_ids(self, ids: Sequence[int]) -> None:
        bos = self._execution.model.tokenizer.bos_id
        if bos is not None and self._branch.length == 0 and (not ids or ids[0] != bos):
            ids = [bos, *ids]
        if ids:
            self._branch.append(ids)

    def _append_plain(self, text: str) -> None:
        """Tokenise and append text that may be re-split at the next boundary."""
        ids = self._execution.model.tokenizer.encode(text)
        self._append_ids(ids)
        self._open_text = self._branch.length - len(ids)

    def _append_text(self, text: str, *, depth: int) -> None:
        task = self._enter("text")
        if not isinstance(text, str):
            raise TypeError(f'only text can be appended to a context, not {type(text).__name__}: use f"{{value}}"')
        self._execution.place("Text", _short(text), self, depth=depth, task=task)
        if not self._turns.held:  # a held system text is appended with the first user turn
            self._append_plain(text)
        self._turns.say(text)

    def _role(self, role: Role, text: str) -> None:
        task = self._enter(role)
        if not isinstance(text, str):
            raise TypeError(f'c.{role}() takes text, not {type(text).__name__}: use f"{{value}}"')
        self._execution.place("Text", f"{role}: {_short(text)}", self, depth=2, task=task, attrs={"role": role})
        segment, content, merged = self._turns.open(role, text)
        if merged:
            self._execution.emit(
                Event("merged turns", role, self.path, f"the chat template refuses two {role} turns in a row")
            )
        header = segment.encode(self._execution.model.tokenizer)
        ids = segment.encode(self._execution.model.tokenizer, content) if content else header
        if ids:
            self._append_ids(ids)
        self._open_text = self._branch.length - max(0, len(ids) - len(header))

    def _open_assistant(self) -> None:
        """Open the assistant turn for a gen or select, where a chat needs it."""
        segment = self._turns.open_for_generation()
        if segment is not None:
            self._append_ids(segment.encode(self._execution.model.tokenizer))
            self._open_text = self._branch.length
        elif self._branch.length == 0:
            self._append_ids(())

    def _charge(self, usage: Usage, node: int) -> None:
        self._usage = total(self._usage, usage)
        self._execution.recorder.charge(node, usage)
        self._execution.charge(usage)


def _short(text: str, limit: int = 40) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
