"""From a step's logits to what its calls read: which row is whose, and the draw for all rows at once."""

from __future__ import annotations

import math
from typing import Protocol

import torch

from .errors import InvalidLogits
from .generation import Generation
from .sampler import Sample, SampleRow
from .step import Placement


class Draw(Protocol):
    """The sampler as the engine sees it; ``runtime.sampler.Sampler`` is one."""

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> list[Sample]:
        """One draw per row of ``logits`` ``[rows, vocab]``."""


def rows_of(placed: Placement, logits: torch.Tensor | None, index: dict[int, int]) -> dict[int, torch.Tensor]:
    """Logits ``[vocab]`` after each wanted position that the step has reached, ascending. ``logits`` is ``[outputs,
    vocab]``, None in a step without rows; ``index`` tells the output of a row."""
    found = dict(placed.known_logits)
    if logits is not None:
        found.update((position, logits[index[row]]) for position, row in placed.logit_rows.items())
    return dict(sorted(found.items()))


def gather(logits: torch.Tensor | None, rows: list[int], extra: list[torch.Tensor]) -> torch.Tensor:
    """``[rows + extra, vocab]``, without a copy where the rows are all of ``logits`` as they stand."""
    if logits is None or not rows:
        return torch.stack(extra)
    picked = logits if len(rows) == len(logits) and rows == list(range(len(rows))) else logits[rows]
    return torch.cat([picked, torch.stack(extra)]) if extra else picked


def draw(sampler: Draw, works: list[Generation], logits: torch.Tensor) -> list[Sample | Exception]:
    """Draw for all rows of ``logits`` ``[calls, vocab]`` at once; if that fails, one by one, so that only the calls at
    fault fail. InvalidLogits stands for a draw from what are not numbers."""
    rows = [work.sample_row() for work in works]
    outcomes: list[Sample | Exception] = []
    try:
        outcomes.extend(sampler.sample(logits, rows))
    except Exception:
        for i, row in enumerate(rows):
            try:
                outcomes.extend(sampler.sample(logits[i : i + 1], [row]))
            except Exception as error:
                outcomes.append(InvalidLogits(str(error)) if bool(logits[i].isnan().any()) else error)
    return [
        InvalidLogits("the model's logits are not numbers")
        if isinstance(outcome, Sample) and math.isnan(outcome.logprob)
        else outcome
        for outcome in outcomes
    ]
