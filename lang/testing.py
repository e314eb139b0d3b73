"""Tests of programs: models without weights, and questions about what a type admits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import TypeForm

from ..runtime.constraints.protocol import Constraint, State
from ..runtime.models.byte_tokenizer import ByteTokenizer
from ..runtime.tokenizer import Tokenizer
from .backends.base import Model
from .backends.random_valid import RandomValid
from .backends.scripted import Scripted, allowed_ids
from .load import as_model
from .types import OutputType, resolve

__all__ = ["RandomValid", "Scripted", "admits", "allowed_tokens"]


def admits(type: OutputType[Any] | TypeForm[Any], text: str, model: Model | str | None = None, /) -> bool:
    """Whether ``gen(type)`` may give exactly ``text``, spelt in the tokens of ``model`` (by default, in bytes).

    Raises as ``resolve`` does, and UnsatisfiableConstraint if no text is admitted at all.
    """
    output: OutputType[Any] = resolve(type)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return False
    if model is None:
        return output.admits(data)
    tokenizer = _tokenizer(model)
    constraint = output.constraint(tokenizer.vocabulary)
    if constraint is None:
        return True
    try:
        return constraint.may_end(_after(constraint, tokenizer.encode(text)))
    except ValueError:
        return False


def allowed_tokens(
    type: OutputType[Any] | TypeForm[Any], prefix: Sequence[int], model: Model | str | None = None, /
) -> Sequence[int]:
    """The ids that may follow the ids ``prefix`` in a ``gen(type)`` on ``model`` (by default, on bytes), ascending.

    End-of-sequence ids are not among them. Raises ValueError if ``prefix`` itself is not allowed.
    """
    vocabulary = _tokenizer(model).vocabulary
    output: OutputType[Any] = resolve(type)
    constraint = output.constraint(vocabulary)
    if constraint is None:
        return [i for i, token in enumerate(vocabulary.token_bytes) if token and i not in vocabulary.eos_ids]
    return allowed_ids(constraint.mask(_after(constraint, prefix)))


def _tokenizer(model: Model | str | None) -> Tokenizer:
    if model is None:
        return ByteTokenizer()
    return as_model(model).tokenizer


def _after(constraint: Constraint, ids: Sequence[int]) -> State:
    state = constraint.initial()
    for token in ids:
        state = constraint.advance(state, token)
    return state
