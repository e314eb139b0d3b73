"""A model that says anything that is valid: it finds the values a program does not expect."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ...runtime.constraints.protocol import Constraint, State
from ...runtime.errors import UnsatisfiableConstraint
from ...runtime.requests import FinishReason, GenRequest, GenResult, ScoreRequest, ScoreResult
from .local import LocalModel, result_of, usage_of
from .scripted import allowed_ids

WORDS = ("the", "a", "of", "and", "river", "stone", "seven", "light", "maybe", "quick", "tree", "blue", "42", "paper,")
"""What unconstrained text is made of."""

MOST_STATES = 20_000
"""States whose continuations are remembered, per constraint."""


class _Ways(NamedTuple):
    """The continuations of one state."""

    ids: npt.NDArray[np.int64]
    """[n] allowed ids, ascending."""
    needs: npt.NDArray[np.int64]
    """[n] bytes of the shortest completion after each."""
    after: tuple[State, ...]
    """[n] the state after each."""


class RandomValid(LocalModel):
    """A model that draws uniformly among what its constraint allows, and always ends a value within ``max_tokens``.

    A draw is a function of the model's seed and the request's key, so results do not depend on scheduling. Plain text
    is a few random words, which run into the stop string half the time. Scores of ``select`` are random, a function of
    the seed, the context and the choices. Raises UnsatisfiableConstraint where the shortest value has more bytes than
    ``max_tokens``.
    """

    def __init__(self, seed: int = 0, /) -> None:
        super().__init__("test:random")
        self.seed = seed
        self._ways: WeakKeyDictionary[Constraint, dict[State, _Ways]] = WeakKeyDictionary()

    def answer(self, prompt: Sequence[int], request: GenRequest) -> GenResult:
        """A random value of the request's constraint, or a few words without one."""
        rng = random.Random(f"{self.seed}/{request.key.seed}/{request.key.stream}")
        if request.constraint is None:
            ids = self.tokenizer.encode(_words(rng, request.stop))
            reason: FinishReason = "length" if len(ids) > request.max_tokens else "stop"
            return result_of(prompt, ids[: request.max_tokens], request, self.tokenizer.vocabulary, reason)
        ids, reason = self._draw(rng, request, request.constraint)
        return result_of(prompt, ids, request, self.tokenizer.vocabulary, reason)

    def judge(self, prompt: Sequence[int], request: ScoreRequest) -> ScoreResult:
        """Random log-probabilities; tokens that choices share get the same in each."""
        context = hashlib.blake2b(repr((self.seed, list(prompt))).encode(), digest_size=16).hexdigest()
        logprobs = tuple(
            tuple(
                math.log(random.Random(f"{context}/{sequence[: i + 1]}").uniform(0.05, 0.95))
                for i in range(len(sequence))
            )
            for sequence in request.sequences
        )
        return ScoreResult(logprobs, usage_of(prompt))

    def _draw(self, rng: random.Random, request: GenRequest, constraint: Constraint) -> tuple[list[int], FinishReason]:
        state = constraint.initial()
        if constraint.min_bytes(state) > request.max_tokens:
            raise UnsatisfiableConstraint(
                f"{request.label}: the shortest valid value has {constraint.min_bytes(state)} bytes, more than"
                f" max_tokens={request.max_tokens}"
            )
        ids: list[int] = []
        text = b""
        while len(ids) < request.max_tokens:
            ways = self._ways_on(constraint, state)
            options = np.flatnonzero(ways.needs <= request.max_tokens - len(ids) - 1).tolist()
            if request.stop:
                options = [i for i in options if not self._runs_into(text, int(ways.ids[i]), request.stop)]
            may_end = constraint.may_end(state)
            if not options:
                return ids, "constraint" if may_end and not len(ways.ids) else "length"
            pick = rng.randrange(len(options) + (1 if may_end and len(ids) >= request.min_tokens else 0))
            if pick == len(options):
                return ids, "stop"
            token = int(ways.ids[options[pick]])
            state = ways.after[options[pick]]
            ids.append(token)
            text += self.tokenizer.vocabulary.token_bytes[token] or b""
        return ids, "length" if len(self._ways_on(constraint, state).ids) else "constraint"

    def _runs_into(self, text: bytes, token: int, stops: Sequence[bytes]) -> bool:
        longer = text + (self.tokenizer.vocabulary.token_bytes[token] or b"")
        return any(stop in longer for stop in stops)

    def _ways_on(self, constraint: Constraint, state: State) -> _Ways:
        known = self._ways.setdefault(constraint, {})
        ways = known.get(state)
        if ways is None:
            ids = allowed_ids(constraint.mask(state))
            after = tuple(constraint.advance(state, token) for token in ids)
            needs = np.array([constraint.min_bytes(q) for q in after], dtype=np.int64)
            ways = _Ways(np.array(ids, dtype=np.int64), needs, after)
            if len(known) < MOST_STATES:
                known[state] = ways
        return ways


def _words(rng: random.Random, stops: Sequence[bytes]) -> str:
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))
    if stops and rng.random() < 0.5:
        text += rng.choice(stops).decode("utf-8") + rng.choice(("", " " + rng.choice(WORDS)))
    return text
