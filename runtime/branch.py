"""The engine's branch handle: keeps the caller's view of the tokens and posts commands; nothing here computes."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import ContextOverflow, EmptyPrompt
from .failures import overflow
from .generation import Generation
from .requests import Branch, GenRequest, GenResult, ScoreRequest, ScoreResult, Ticket
from .scoring import Scoring
from .sequence import Sequence
from .token_log import TokenLog

if TYPE_CHECKING:
    from .engine import Engine


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a call."""

    work: Generation | Scoring


@dataclass(frozen=True, slots=True)
class Fork:
    """Let ``children`` hold what ``source`` holds."""

    source: Sequence
    children: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """Give back what is resident from ``length`` on."""

    sequence: Sequence
    length: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Cancel a call."""

    work: Generation | Scoring


@dataclass(frozen=True, slots=True)
class Release:
    """Give a branch's KV back and cancel its call."""

    sequence: Sequence
    work: Generation | Scoring | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Close the engine."""


def _ended(added: SequenceOf[int]) -> None:
    """What a call that has ended tells its branch: nothing more."""


Command = Submit | Fork | Trim | Withdraw | Release | Stop


class EngineBranch:
    """A branch of an engine. A handle that becomes unreachable releases itself."""

    __slots__ = ("__weakref__", "_engine", "_log", "_released", "_sequence", "_work")

    def __init__(self, engine: Engine, sequence: Sequence, log: TokenLog | None = None) -> None:
        self._engine = engine
        self._sequence = sequence
        self._log = TokenLog() if log is None else log
        self._work: Generation | Scoring | None = None
        self._released = False

    @property
    def length(self) -> int:
        return len(self._log)

    def tokens(self) -> SequenceOf[int]:
        return self._log.read()

    def append(self, ids: SequenceOf[int]) -> None:
        """Add token ids. Raises ValueError for an id outside the vocabulary."""
        self._ready()
        size = self._engine.vocabulary.size
        if ids and not (min(ids) >= 0 and max(ids) < size):
            raise ValueError(f"token ids must be in 0..{size - 1}")
        self._log.append(ids)

    def truncate(self, length: int) -> None:
        """Drop tokens from ``length`` on. Raises ValueError beyond the end."""
        self._ready()
        self._log.truncate(length)
        self._engine.post(Trim(self._sequence, length))

    def fork(self, n: int) -> list[Branch]:
        """n branches that share everything so far. Raises ValueError for a negative n."""
        self._ready()
        if n < 0:
            raise ValueError(f"cannot fork {n} branches")
        sequences = tuple(self._engine.new_sequence(self._sequence.namespace) for _ in range(n))
        self._engine.post(Fork(self._sequence, sequences))
        return [EngineBranch(self._engine, sequence, self._log.fork()) for sequence in sequences]

    def generate(self, request: GenRequest) -> Ticket[GenResult]:
        """Generate from the tip. The ticket fails with ContextOverflow at once where the call can never fit, with
        UnsatisfiableConstraint, EngineFailed, EngineClosed or RequestCancelled. Raises EmptyPrompt for an empty
        branch, ValueError for a negative ``max_tokens``."""
        self._ready()
        if request.max_tokens < 0:
            raise ValueError("max_tokens must not be negative")
        if not len(self._log) and request.max_tokens:
            raise EmptyPrompt("the branch is empty, so there is nothing to continue: append a token first")
        engine = self._engine
        work: Generation
        ticket: Ticket[GenResult] = Ticket(cancel=lambda: engine.post(Withdraw(work)))
        refusal = self._overflow(request.max_tokens, request.label)
        if refusal is not None:
            ticket.resolve(error=refusal)
            return ticket
        work = Generation(
            request,
            ticket,
            self._sequence,
            self._log.read(),
            vocabulary=engine.vocabulary,
            encode=engine.encode,
        )
        self._start(work)
        return ticket

    def score(self, request: ScoreRequest) -> Ticket[ScoreResult]:
        """Score continuations of the tip; fails like ``generate``."""
        self._ready()
        if not len(self._log) and any(request.sequences):
            raise EmptyPrompt("the branch is empty, so nothing predicts the first token: append a token first")
        engine = self._engine
        work: Scoring
        ticket: Ticket[ScoreResult] = Ticket(cancel=lambda: engine.post(Withdraw(work)))
        longest = max((len(tokens) for tokens in request.sequences), default=0)
        refusal = self._overflow(longest, request.label)
        if refusal is not None:
            ticket.resolve(error=refusal)
            return ticket
        work = Scoring(request, ticket, self._sequence, self._log.read())
        self._start(work)
        return ticket

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._engine.post(Release(self._sequence, self._work))

    def _overflow(self, added: int, label: str) -> ContextOverflow | None:
        """``added`` tokens on top of what is there; the last of them needs no KV."""
        engine = self._engine
        return overflow(
            len(self._log),
            added,
            max(0, added - 1),
            max_context=engine.max_context,
            num_blocks=engine.num_blocks,
            label=label,
        )

    def _start(self, work: Generation | Scoring) -> None:
        work.on_end = self._end
        self._work = work
        self._engine.post(Submit(work))
        if self._engine.closed:
            self._engine.settle()

    def _end(self, added: SequenceOf[int]) -> None:
        """The pending call has ended and added these tokens; the engine says so before the ticket resolves."""
        self._log.append(added)
        if self._work is not None:
            self._work.on_end = _ended  # whoever keeps the ticket must not keep the branch
        self._work = None

    def _ready(self) -> None:
        if self._released:
            raise RuntimeError("the branch was released")
        if self._work is not None:
            raise RuntimeError("a request of this branch is still pending: one at a time")

    def __del__(self) -> None:
        self.release()
