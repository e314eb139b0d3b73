"""Models without an engine: branches are token logs, and a request is answered at once on the calling thread."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ...runtime.errors import ContextOverflow
from ...runtime.metrics import Usage
from ...runtime.models.byte_tokenizer import ByteTokenizer
from ...runtime.requests import Branch, FinishReason, GenRequest, GenResult, ScoreRequest, ScoreResult, Ticket
from ...runtime.stops import StopMatch, StopMatcher
from ...runtime.token_log import TokenLog
from ...runtime.tokenizer import Tokenizer
from ...runtime.vocabulary import Vocabulary
from .base import Model

MAX_CONTEXT = 1_000_000
"""Default context limit, tokens."""


class LocalModel(Model):
    """Base of models that answer by themselves. Safe across threads if ``answer`` and ``judge`` are."""

    def __init__(self, name: str, tokenizer: Tokenizer | None = None, max_context: int = MAX_CONTEXT) -> None:
        """tokenizer: by default the 256 bytes."""
        self.name = name
        self.tokenizer = tokenizer if tokenizer is not None else ByteTokenizer()
        self.max_context = max_context

    def root(self, namespace: str = "") -> Branch:
        """A fresh, empty branch. There is no KV, so nothing is shared within a namespace."""
        return LocalBranch(self, TokenLog())

    @abstractmethod
    def answer(self, prompt: Sequence[int], request: GenRequest) -> GenResult:
        """The result of ``request`` on a branch that holds ``prompt``. What it raises goes through the ticket."""

    @abstractmethod
    def judge(self, prompt: Sequence[int], request: ScoreRequest) -> ScoreResult:
        """The scores of ``request`` on a branch that holds ``prompt``. What it raises goes through the ticket."""


class LocalBranch:
    """A token log with a model behind it. Implements ``Branch``; forks share what they have in common."""

    __slots__ = ("_log", "_model", "_released")

    def __init__(self, model: LocalModel, log: TokenLog) -> None:
        self._model = model
        self._log = log
        self._released = False

    @property
    def length(self) -> int:
        """Tokens in the branch."""
        return len(self._held())

    def tokens(self) -> Sequence[int]:
        """All token ids, oldest first."""
        return self._held().read()

    def append(self, ids: Sequence[int]) -> None:
        """Add ``ids`` at the end."""
        self._held().append(ids)

    def truncate(self, length: int) -> None:
        """Drop tokens from ``length`` on."""
        self._held().truncate(length)

    def fork(self, n: int) -> list[Branch]:
        """n branches that share everything so far; this branch stays usable."""
        log = self._held()
        return [LocalBranch(self._model, log.fork()) for _ in range(n)]

    def generate(self, request: GenRequest) -> Ticket[GenResult]:
        """Answered before it returns; generated tokens are appended."""
        prompt = self._held().read()
        ticket: Ticket[GenResult] = Ticket()
        try:
            self._require_room(len(prompt), request.max_tokens, request.label)
            result = self._model.answer(prompt, request)
        except Exception as error:  # whatever the model raised belongs to the ticket, as with an engine
            ticket.resolve(error=error)
            return ticket
        self._log.append(result.tokens)
        if request.on_tokens is not None and result.tokens:
            request.on_tokens(result.tokens)
        ticket.resolve(result)
        return ticket

    def score(self, request: ScoreRequest) -> Ticket[ScoreResult]:
        """Answered before it returns."""
        prompt = self._held().read()
        ticket: Ticket[ScoreResult] = Ticket()
        try:
            longest = max((len(sequence) for sequence in request.sequences), default=0)
            self._require_room(len(prompt), longest, request.label)
            ticket.resolve(self._model.judge(prompt, request))
        except Exception as error:  # as in generate
            ticket.resolve(error=error)
        return ticket

    def release(self) -> None:
        """Drop the tokens. Idempotent."""
        self._released = True
        self._log = TokenLog()

    def _held(self) -> TokenLog:
        if self._released:
            raise RuntimeError("this branch was released")
        return self._log

    def _require_room(self, held: int, more: int, label: str) -> None:
        limit = self._model.max_context
        if held + more > limit:
            raise ContextOverflow(
                f"{label or 'the request'} needs {held + more} tokens of context ({held} there and {more} new), but "
                f"{self._model.name} holds {limit}",
                needed=held + more,
                limit=limit,
            )


def usage_of(prompt: Sequence[int], generated: Sequence[int] = ()) -> Usage:
    """What a call costs without KV: all of the prompt is prefilled."""
    return Usage(
        prompt=len(prompt),
        prefilled=len(prompt),
        decoded=len(generated),
        generated=len(generated),
        missed_because={"new": len(prompt)} if prompt else {},
    )


def result_of(
    prompt: Sequence[int],
    ids: Sequence[int],
    request: GenRequest,
    vocabulary: Vocabulary,
    finish_reason: FinishReason,
) -> GenResult:
    """The result when a model says ``ids``: cut at the first stop string, complete if the constraint may end there."""
    kept, match = _cut_at_stop(vocabulary, ids, request.stop)
    leftover = b"" if match is None else match.leftover
    reported: dict[str, Any] = {}
    if request.logprobs is not None:
        reported["logprobs"] = (0.0,) * len(kept)  # what a stand-in says is certain
        if request.logprobs > 0:
            reported["top_logprobs"] = tuple({token: 0.0} for token in kept)
    return GenResult(
        tokens=kept,
        finish_reason=finish_reason if match is None else "stop",
        usage=usage_of(prompt, kept),
        complete=_complete(request, vocabulary, kept, leftover),
        leftover=leftover,
        stop=None if match is None else match.stop,
        **reported,
    )


def _complete(request: GenRequest, vocabulary: Vocabulary, kept: Sequence[int], leftover: bytes) -> bool:
    """Whether the constraint may end after ``kept`` and ``leftover``."""
    if request.constraint is None:
        return True
    state = request.constraint.initial()
    single = {token: i for i, token in enumerate(vocabulary.token_bytes) if token is not None and len(token) == 1}
    for token in (*kept, *(single[leftover[i : i + 1]] for i in range(len(leftover)))):
        state = request.constraint.advance(state, token)
    return request.constraint.may_end(state)


def _cut_at_stop(
    vocabulary: Vocabulary, ids: Sequence[int], stops: Sequence[bytes]
) -> tuple[tuple[int, ...], StopMatch | None]:
    """``ids`` up to the last whole token before the first stop string, and what matched."""
    matcher = StopMatcher(stops)
    for token in ids:
        match = matcher.feed(vocabulary.token_bytes[token] or b"")
        if match is not None:
            return tuple(ids[: match.kept]), match
    return tuple(ids), None
