"""One ``generate`` call while it runs: forced text, the draw, stop strings, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf

import torch

from .constraints.protocol import Bitmask, Constraint, State
from .errors import UnsatisfiableConstraint
from .requests import FinishReason, GenRequest, GenResult, Ticket
from .sampler import Sample, SampleRow
from .sequence import Sequence
from .stops import StopMatch, StopMatcher
from .tally import Tally
from .vocabulary import Vocabulary


class Generation:
    """State of one call. ``tokens`` is the branch's whole text, generated tokens included; the engine computes its
    KV, and calls ``accept`` with the token drawn from the logits that ``wanted`` asks for."""

    def __init__(
        self,
        request: GenRequest,
        ticket: Ticket[GenResult],
        sequence: Sequence,
        prompt: list[int],
        *,
        vocabulary: Vocabulary,
        encode: Callable[[str], list[int]] | None,
    ) -> None:
        self.request = request
        self.ticket = ticket
        self.sequence = sequence
        self.tokens = prompt
        self.prompt = len(prompt)
        self.generated: list[int] = []
        self.tally = Tally(len(prompt))
        self.on_end: Callable[[SequenceOf[int]], None] = lambda added: None
        """Told, before the ticket resolves, which tokens the call added to its branch."""
        self.arrival = 0
        """Ordinal in the scheduler's queue."""
        self.admitted = False
        self.num_bypassed = 0
        """Times that a younger call was admitted instead, while this one was at the front of the queue."""
        self.keys: list[int] | None = None
        """Of the prompt's whole blocks, for forecasts."""
        self._vocabulary = vocabulary
        self._encode = encode
        self._constraint: Constraint | None = request.constraint
        self._state: State = None
        self._mask: Bitmask | None = None
        self._may_end = True
        self._stops = bool(request.stop)
        self._matcher = StopMatcher(request.stop)
        self._match: StopMatch | None = None
        self._reason: FinishReason | None = None
        self._delivered = 0
        self._unscored: list[int] = []
        """Positions whose logits are still wanted for the log-probability of the forced token after them."""
        self._logprobs: list[float | None] = []
        self._tops: list[Mapping[int, float]] = []

    @property
    def bound(self) -> int:
        """Most tokens whose KV the call can need: that of the last generated token is left to the next call."""
        return self.prompt + max(0, self.request.max_tokens - 1)

    @property
    def finished(self) -> bool:
        return self._reason is not None

    def begin(self) -> None:
        """Look at what can be known before any forward pass. Raises UnsatisfiableConstraint."""
        if self._constraint is not None:
            self._state = self._constraint.initial()
        self._settle()

    def needs_forward(self) -> bool:
        """Whether anything is left to compute: also with ``max_tokens`` 0, which only makes the prompt resident."""
        return not self.finished or (self.request.max_tokens == 0 and self.sequence.resident < len(self.tokens))

    def wanted(self) -> list[int]:
        """Positions whose logits are wanted, ascending."""
        if self.finished:
            return []
        return [*self._unscored, len(self.tokens) - 1]

    @property
    def steady(self) -> bool:
        """Whether the call wants one row: that of its last token, generated, of which nothing was ever computed."""
        resident = self.sequence.resident
        return (
            len(self.tokens) == resident + 1
            and resident >= self.prompt
            and resident >= self.sequence.known
            and not self._unscored
        )

    def score_forced(self, position: int, logits: torch.Tensor) -> None:
        """Fill in the log-probability of the forced token after ``position``; ``logits`` ``[vocab]``."""
        index = position + 1 - self.prompt
        row = torch.log_softmax(logits.double(), dim=-1)
        self._unscored.remove(position)
        self._logprobs[index] = float(row[self.generated[index]])
        self._tops[index] = _top(row, self.request.logprobs or 0)

    def sample_row(self) -> SampleRow:
        """What the sampler must know to draw the next token."""
        request = self.request
        early = len(self.generated) < request.min_tokens
        return SampleRow(
            sampling=request.sampling,
            key=request.key,
            position=len(self.generated),
            context=self.tokens,
            generated=self.generated,
            mask=self._mask,
            allow=request.end_ids if self._may_end and not early else frozenset(),
            forbid=request.end_ids if early else frozenset(),
            logprobs=request.logprobs,
        )

    def accept(self, sample: Sample) -> None:
        """Take the drawn token. Raises ValueError where the constraint refuses it, UnsatisfiableConstraint."""
        if sample.token in self.request.end_ids:
            self._reason = "stop"
            return
        self._append(sample.token, sample.logprob, sample.top or {})
        self._settle()

    def deliver(self) -> None:
        """Tell ``on_tokens`` of the tokens that nothing can take back any more."""
        if self.request.on_tokens is None:
            return
        upto = self._kept() if self.finished or not self._stops else self._matcher.settled()
        if upto > self._delivered:
            fresh = self.generated[self._delivered : upto]
            self._delivered = upto
            self.request.on_tokens(fresh)

    def result(self) -> GenResult:
        """The outcome of a finished call."""
        if self._reason is None:
            raise RuntimeError("the generation has not finished")
        kept = self._kept()
        self.tally.generated = kept
        with_logprobs = self.request.logprobs is not None
        return GenResult(
            tokens=tuple(self.generated[:kept]),
            finish_reason=self._reason,
            usage=self.tally.usage(),
            complete=self._may_end,
            leftover=self._match.leftover if self._match else b"",
            stop=self._match.stop if self._match else None,
            logprobs=tuple(value or 0.0 for value in self._logprobs[:kept]) if with_logprobs else None,
            top_logprobs=tuple(self._tops[:kept]) if self.request.logprobs else None,
        )

    def _kept(self) -> int:
        return len(self.generated) if self._match is None else self._match.kept

    def _append(self, token: int, logprob: float | None, top: Mapping[int, float]) -> None:
        if self._constraint is not None:
            self._state = self._constraint.advance(self._state, token)
        if logprob is None and self.request.logprobs is not None:
            self._unscored.append(len(self.tokens) - 1)
        self.tokens.append(token)
        self.generated.append(token)
        self._logprobs.append(logprob)
        self._tops.append(top)
        if self._stops:
            self._match = self._matcher.feed(self._vocabulary.token_bytes[token] or b"")

    def _settle(self) -> None:
        """After the text has grown: append what is forced, and find out whether the call ends here."""
        self._may_end = self._constraint is None or self._constraint.may_end(self._state)
        while not self._ended():
            forced = self._forced_tokens()
            if not forced:
                break
            for token in forced:
                self.tally.forced += 1
                self._append(token, None, {})
                self._may_end = self._constraint is None or self._constraint.may_end(self._state)
                if self._match is not None:
                    break
        if self._constraint is None or self.finished:
            return
        self._mask = self._constraint.mask(self._state)
        if self._mask.any():
            return
        if not self._may_end:
            raise UnsatisfiableConstraint(
                f"{self.request.label or 'generate'}: after {len(self.generated)} tokens no token of the vocabulary "
                f"continues a text that satisfies the constraint, and the text may not end there"
            )
        self._reason = "constraint"

    def _ended(self) -> bool:
        if self._match is not None:
            self._reason = "stop"
        elif len(self.generated) >= self.request.max_tokens:
            self._reason = "length"
        return self.finished

    def _forced_tokens(self) -> list[int]:
        """The forced text in canonical tokens but for the last one, whose boundary stays open to the model."""
        if self._constraint is None or self._encode is None:
            return []
        forced = self._constraint.forced(self._state)
        if not forced:
            return []
        try:
            ids = self._encode(forced.decode("utf-8"))
        except UnicodeDecodeError:
            return []
        if self._vocabulary.text_of(ids) != forced or len(self.generated) + len(ids) - 1 > self.request.max_tokens:
            return []
        return ids[:-1]


def _top(row: torch.Tensor, k: int) -> Mapping[int, float]:
    """The ``k`` likeliest tokens of log-probabilities ``[vocab]``, ties to the smaller id."""
    if k <= 0:
        return {}
    order = torch.sort(row, descending=True, stable=True)
    return {int(i): float(v) for v, i in zip(order.values[:k], order.indices[:k], strict=True)}
