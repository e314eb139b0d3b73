"""What ``select`` returns, and how scores become probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")
How = Literal["sum", "mean", "pmi", "greedy"]
HOWS: tuple[How, ...] = ("sum", "mean", "pmi", "greedy")


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """The choice that scored best, with the whole distribution over the choices."""

    value: T
    index: int
    """Position of ``value`` among the choices."""
    probs: Mapping[T, float]
    """Softmax of the scores; sums to 1."""
    logprobs: Mapping[T, float]
    """Natural logarithms of ``probs``."""
    scores: Mapping[T, float]
    """The scores that ``how`` defines, natural logarithms, not normalised over the choices."""

    def __str__(self) -> str:
        """The text of the value, so that ``f"{choice}"`` writes what was chosen."""
        return choice_text(self.value)

    @property
    def margin(self) -> float:
        """Probability of the best choice minus that of the second; 1.0 for a single choice."""
        ranked = sorted(self.probs.values(), reverse=True)
        return ranked[0] - ranked[1] if len(ranked) > 1 else ranked[0]

    @property
    def entropy(self) -> float:
        """Entropy of ``probs`` in nats."""
        return -sum(p * math.log(p) for p in self.probs.values() if p > 0.0)


def choice_text(value: Any) -> str:
    """The text of a choice: as ``gen`` would write a bare value."""
    if isinstance(value, Enum):
        return choice_text(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def choose(values: Sequence[T], scores: Sequence[float]) -> Choice[T]:
    """The argmax (ties to the first) and the softmax of ``scores`` ``[choices]``."""
    best = max(range(len(values)), key=lambda i: (scores[i], -i))
    top = scores[best]
    total = math.log(sum(math.exp(s - top) for s in scores)) + top
    logprobs = {value: score - total for value, score in zip(values, scores, strict=True)}
    return Choice(
        value=values[best],
        index=best,
        probs={value: math.exp(lp) for value, lp in logprobs.items()},
        logprobs=logprobs,
        scores=dict(zip(values, scores, strict=True)),
    )


def greedy_scores(sequences: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]) -> list[float]:
    """Log of the product of masked step probabilities: at each node of the token trie, only its children compete.

    A sequence that is a prefix of another competes, where it ends, with nothing: see ``select``'s note on prefixes.
    """
    children: dict[tuple[int, ...], dict[int, float]] = {}
    for sequence, steps in zip(sequences, logprobs, strict=True):
        for i, (token, logprob) in enumerate(zip(sequence, steps, strict=True)):
            children.setdefault(tuple(sequence[:i]), {})[token] = logprob
    log_totals = {
        node: max(steps.values()) + math.log(sum(math.exp(v - max(steps.values())) for v in steps.values()))
        for node, steps in children.items()
    }
    return [
        sum(logprob - log_totals[tuple(sequence[:i])] for i, logprob in enumerate(steps))
        for sequence, steps in zip(sequences, logprobs, strict=True)
    ]
