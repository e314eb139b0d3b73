"""What crosses from the language to the engine: branch handles, requests, tickets, results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from .constraints.protocol import Constraint
from .hints import NO_HINTS, Hints
from .metrics import Usage

R = TypeVar("R")
FinishReason = Literal["stop", "length", "constraint", "choice"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. ``temperature`` 0 is greedy: penalties and bias apply, filters do not."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names the random stream of one operation: a draw is a function of (seed, stream, position, token id) only."""

    seed: int
    """Run seed, 64 bits."""
    stream: int
    """64-bit hash of (branch path, ordinal of the operation on its context, sample index)."""


@dataclass(frozen=True, slots=True)
class GenRequest:
    """Generate on a branch from its tip. Generated tokens are appended to the branch; the end token is not."""

    max_tokens: int
    sampling: Sampling
    key: SampleKey
    end_ids: frozenset[int]
    """Ids that end generation (end of turn, end of sequence); masked until ``min_tokens`` and, under a constraint,
    until the text may end."""
    min_tokens: int = 0
    stop: tuple[bytes, ...] = ()
    """Stop strings, UTF-8. The branch is truncated to the last whole token before the earliest match (at a UTF-8
    boundary); what is left between is ``GenResult.leftover``."""
    constraint: Constraint | None = None
    logprobs: int | None = None
    """None = off; 0 = of the chosen token; k = also of the k likeliest."""
    on_tokens: Callable[[Sequence[int]], None] | None = None
    """Called from the engine's thread with newly accepted ids; must not block."""
    hints: Hints = NO_HINTS
    program: int = 0
    """Program run that the request belongs to: unit of fairness and preemption."""
    label: str = ""
    """Branch path and operation, for messages: ``judge/fork[2]/gen``."""


@dataclass(frozen=True, slots=True)
class GenResult:
    tokens: tuple[int, ...]
    """Ids that were appended to the branch."""
    finish_reason: FinishReason
    usage: Usage
    complete: bool = True
    """Under a constraint: whether the text may end where it ended. True without one."""
    leftover: bytes = b""
    """Text between the last kept token and the stop string."""
    stop: bytes | None = None
    """The stop string that matched."""
    logprobs: tuple[float, ...] | None = None
    """[tokens] log-probability of each token under the model's own distribution at temperature 1."""
    top_logprobs: tuple[Mapping[int, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Score continuations of the branch's tip; nothing is appended. Sequences may share prefixes (a token trie)."""

    sequences: tuple[tuple[int, ...], ...]
    hints: Hints = NO_HINTS
    program: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class ScoreResult:
    logprobs: tuple[tuple[float, ...], ...]
    """[sequences][tokens] log-probability of each token given the branch and the tokens before it."""
    usage: Usage


class Ticket(Generic[R]):
    """A result on its way. Callbacks run on the thread that resolves the ticket, or at once if it is resolved."""

    __slots__ = ("_callbacks", "_cancel", "_error", "_lock", "_result", "done")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self.done = False
        self._result: R | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._cancel = cancel

    def resolve(self, result: R | None = None, error: BaseException | None = None) -> bool:
        """Set the outcome; the first call wins. Returns whether this call was it."""
        with self._lock:
            if self.done:
                return False
            self._result, self._error, self.done = result, error, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return True

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def result(self) -> R:
        """The outcome of a resolved ticket: returns it or raises it."""
        if not self.done:
            raise RuntimeError("the ticket is not resolved yet")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set together with done

    def on_cancel(self, cancel: Callable[[], None]) -> None:
        """Set what ``cancel`` asks for, where it can only be known after the ticket is made."""
        self._cancel = cancel

    def cancel(self) -> None:
        """Ask for the work to stop; the ticket then resolves with an error within one engine step, or has finished."""
        if self._cancel is not None and not self.done:
            self._cancel()

    def wait(self, timeout_s: float | None = None) -> R:
        """Block the calling thread for the outcome (tests and scripts; the interpreter uses callbacks)."""
        event = threading.Event()
        self.add_done_callback(event.set)
        if not event.wait(timeout_s):
            raise TimeoutError("the ticket was not resolved in time")
        return self.result()


class RequestCancelled(Exception):
    """The ticket's own ``cancel`` was honoured."""


class Branch(Protocol):
    """A handle on a sequence of token ids with a KV lineage.

    Every call returns at once and may be made from any one thread at a time; calls on the branches of one engine take
    effect in the order made. ``append``, ``fork`` and ``truncate`` compute nothing: KV is made when ``generate`` or
    ``score`` needs it. One request at a time per branch. Using a released branch raises RuntimeError.
    """

    @property
    def length(self) -> int:
        """Tokens in the branch, those of a finished ``generate`` included."""

    def tokens(self) -> Sequence[int]:
        """All token ids, oldest first."""

    def append(self, ids: Sequence[int]) -> None: ...

    def truncate(self, length: int) -> None:
        """Drop tokens from ``length`` on."""

    def fork(self, n: int) -> list[Branch]:
        """n branches that share everything so far; this branch stays usable."""

    def generate(self, request: GenRequest) -> Ticket[GenResult]: ...

    def score(self, request: ScoreRequest) -> Ticket[ScoreResult]: ...

    def release(self) -> None:
        """Give the branch's KV back; cancels a pending request. Idempotent."""
