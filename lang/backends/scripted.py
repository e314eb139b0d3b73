"""A model that says what it is told: tests of programs without weights, and faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from ...runtime.constraints.protocol import Bitmask, Constraint
from ...runtime.errors import EngineFailed, UnsatisfiableConstraint
from ...runtime.requests import GenRequest, GenResult, ScoreRequest, ScoreResult
from ...runtime.vocabulary import Vocabulary
from ..chat import spell
from .local import LocalModel, result_of, usage_of

UNLIKELY = -30.0
"""Log-probability of the token at which a choice that was not told parts from the one that was."""

Answers = Callable[[str], str] | Sequence[str | Exception]


class Scripted(LocalModel):
    """A model that gives prepared answers, one for each ``gen`` and each ``select``, without latency.

    ``answers`` is a list, used in order over all branches, or a callable of the prompt's text, special tokens spelled
    out. An exception in the list, or raised by the callable, is raised by the operation. Without answers it says the
    shortest valid value ("" for ``str``) and selects the first choice; ``default`` replaces that, and stands for
    what a list that ran out lacks. An answer to a typed ``gen`` must be text of the type, one to a ``select`` the text
    of a choice; else the operation fails and says so.
    """

    def __init__(self, answers: Answers | None = None, /, *, default: str | None = None) -> None:
        """Raises TypeError for answers that are one string, or hold something else than strings and exceptions."""
        super().__init__("test:scripted")
        if isinstance(answers, str):
            raise TypeError(f"answers is a list of answers, not one string; write [{answers!r}]")
        self._callable = answers if callable(answers) else None
        self._listed = None if answers is None or callable(answers) else list(answers)
        for i, answer in enumerate(self._listed or ()):
            if not isinstance(answer, str | Exception):
                raise TypeError(f"answer {i} is {answer!r}; an answer is text (of a typed value too) or an exception")
        self._default = default
        self._used = 0
        self._lock = threading.Lock()

    def answer(self, prompt: Sequence[int], request: GenRequest) -> GenResult:
        """The next answer as a result: cut at stop strings and at ``max_tokens``."""
        vocabulary = self.tokenizer.vocabulary
        text = self._next(prompt, request.label)
        if text is None:
            text = "" if request.constraint is None else shortest_text(request.constraint, vocabulary)
            if request.constraint is not None and len(self.tokenizer.encode(text)) > request.max_tokens:
                raise UnsatisfiableConstraint(
                    f"{request.label}: the shortest valid value, {text!r}, is longer than"
                    f" max_tokens={request.max_tokens}"
                )
        ids = self.tokenizer.encode(text)
        exhausted = request.constraint is not None and self._walk(ids, text, request.constraint, request.label)
        if len(ids) > request.max_tokens:
            return result_of(prompt, ids[: request.max_tokens], request, vocabulary, "length")
        return result_of(prompt, ids, request, vocabulary, "constraint" if exhausted else "stop")

    def judge(self, prompt: Sequence[int], request: ScoreRequest) -> ScoreResult:
        """All probability on the choice whose text is the next answer."""
        texts = [self.tokenizer.vocabulary.text_of(ids).decode("utf-8", "replace") for ids in request.sequences]
        if request.label.endswith("/unconditional"):  # the second half of how="pmi" is no question of its own
            return ScoreResult(tuple((0.0,) * len(ids) for ids in request.sequences), usage_of(prompt))
        text = self._next(prompt, request.label)
        chosen = 0 if text is None else _matching(text, texts)
        if chosen is None:
            raise EngineFailed(
                f"{request.label}: the scripted answer {text!r} is none of the choices {', '.join(map(repr, texts))}"
            )
        told = request.sequences[chosen]
        logprobs = tuple(
            (0.0,) * len(ids) if i == chosen or ids == told else _unlike(ids, told)
            for i, ids in enumerate(request.sequences)
        )
        return ScoreResult(logprobs, usage_of(prompt))

    def _next(self, prompt: Sequence[int], label: str) -> str | None:
        """The next answer; None where the model is to find one by itself."""
        answer: str | Exception
        if self._callable is not None:
            answer = self._callable(spell(self.tokenizer, prompt))
        elif self._listed is None:
            return self._default
        else:
            with self._lock:
                number = self._used
                self._used += 1
            if number < len(self._listed):
                answer = self._listed[number]
            elif self._default is not None:
                return self._default
            else:
                raise EngineFailed(
                    f"{label}: the script has no answer left: {len(self._listed)} were given, and this is call"
                    f" {number + 1}. Add answers, or give default=."
                )
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, str):
            raise EngineFailed(f"{label}: the script's callable returned {answer!r}; an answer is text")
        return answer

    def _walk(self, ids: Sequence[int], text: str, constraint: Constraint, label: str) -> bool:
        """Check that the constraint admits the whole answer; returns whether nothing could follow it."""
        vocabulary = self.tokenizer.vocabulary
        state = constraint.initial()
        for i, token in enumerate(ids):
            try:
                state = constraint.advance(state, token)
            except ValueError as error:
                before = vocabulary.text_of(ids[:i]).decode("utf-8", "replace")
                raise EngineFailed(
                    f"{label}: the scripted answer {text!r} does not satisfy the constraint: after {before!r} it goes"
                    f" on with {vocabulary.token_bytes[token]!r}"
                ) from error
        if not constraint.may_end(state):
            raise EngineFailed(f"{label}: the scripted answer {text!r} does not satisfy the constraint: it breaks off")
        return not constraint.mask(state).any()


def _matching(text: str, texts: Sequence[str]) -> int | None:
    """The choice that ``text`` names: all of it, or all before an ending that every choice has (a terminator)."""
    if text in texts:
        return texts.index(text)
    found = [
        i
        for i, choice in enumerate(texts)
        if choice.startswith(text) and all(other.endswith(choice[len(text) :]) for other in texts)
    ]
    return found[0] if len(found) == 1 else None


def _unlike(ids: Sequence[int], told: Sequence[int]) -> tuple[float, ...]:
    """Log-probabilities of a choice that is not the one told: unlikely where it parts from it, or where it ends."""
    if not ids:
        return ()
    common = 0
    while common < min(len(ids), len(told)) and ids[common] == told[common]:
        common += 1
    parting = min(common, len(ids) - 1)
    return tuple(UNLIKELY if i == parting else 0.0 for i in range(len(ids)))


def shortest_text(constraint: Constraint, vocabulary: Vocabulary) -> str:
    """The least of the constraint's shortest texts, spelt by single-byte tokens."""
    state = constraint.initial()
    text = bytearray()
    while not constraint.may_end(state):
        wanted = constraint.min_bytes(state) - 1
        for token in sorted(allowed_ids(constraint.mask(state)), key=lambda i: vocabulary.token_bytes[i] or b""):
            data = vocabulary.token_bytes[token] or b""
            if len(data) == 1 and constraint.min_bytes(constraint.advance(state, token)) <= wanted:
                text += data
                state = constraint.advance(state, token)
                break
        else:
            raise EngineFailed(f"the constraint has no way on after {bytes(text)!r}")
    return text.decode("utf-8")


def allowed_ids(mask: Bitmask) -> list[int]:
    """The ids that are set in a packed mask, ascending."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]
