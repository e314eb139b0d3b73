"""What an operation takes and leaves behind: the options of ``gen``, the record of the last one, marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from ..runtime.metrics import Usage
from ..runtime.requests import FinishReason
from .turns import Turns

if TYPE_CHECKING:
    from .context import Context


class GenOptions(TypedDict, total=False):
    """Options of ``gen``, beside its type and ``regex``."""

    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    logprobs: bool | int
    name: str


@dataclass(frozen=True, slots=True)
class OpRecord:
    """What the last ``gen`` or ``select`` on a context did."""

    text: str
    tokens: Sequence[int]
    logprobs: Sequence[float] | None
    """[tokens] natural logarithms, where they were asked for; of a select, those of the chosen text."""
    finish_reason: FinishReason
    usage: Usage
    top_logprobs: Sequence[Mapping[int, float]] | None = None
    """[tokens] the likeliest ids at each position, where ``logprobs`` was a number."""


@dataclass(frozen=True, eq=False, slots=True)
class Mark:
    """A point of a context to which it can be rewound."""

    owner: Context
    length: int
    turns: Turns
    open_text: int
    tail: tuple[int, ...]
    """Last tokens before the mark that a later ``select`` may split again."""
