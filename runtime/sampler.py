"""The next token of every row of a step. A row's draw never depends on the other rows or on their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .constraints.protocol import Bitmask
from .errors import EngineFailed
from .random import gumbel
from .requests import SampleKey, Sampling
from .vocabulary import Vocabulary

GUMBEL_SPAN = 27.0
"""More than the greatest noise minus the least: 22.9 and -3.1 from 32 random bits. What lies further below the best
logit cannot be drawn."""


HEAD = 1024
"""Likeliest tokens among which top-p is looked for first."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What decides the next token of one row, beside its logits."""

    sampling: Sampling
    key: SampleKey
    position: int
    """Index that the token will have in its branch."""
    context: Sequence[int]
    """All ids of the branch, prompt and generated: what the repetition penalty applies to."""
    generated: Sequence[int]
    """Ids that this operation generated: what presence and frequency penalties apply to."""
    mask: Bitmask | None
    """Ids that a constraint allows, end ids never among them; None without a constraint: every id that has text, and
    the vocabulary's end-of-sequence ids."""
    allow: frozenset[int]
    """End ids that are allowed now, beside the mask."""
    forbid: frozenset[int]
    """Ids that are forbidden now, e.g. end ids before ``min_tokens``. Wins over ``mask`` and ``allow``."""
    logprobs: int | None
    """How many of the likeliest tokens to report; None or 0 = none."""


@dataclass(frozen=True, slots=True)
class Sample:
    token: int
    logprob: float
    """Of the token, under the model's own distribution: temperature 1, before penalties and masks."""
    top: Mapping[int, float] | None
    """The ``logprobs`` likeliest ids under the same distribution, likeliest first; None if ``logprobs`` was None."""


class Sampler:
    """Draws one token per row. Order: bias and penalties, mask, temperature, top-k, top-p, min-p, draw.

    Temperature 0 takes the likeliest, ties to the lowest id. Otherwise the draw is Gumbel-max over Philox noise.
    Of the special ids only end-of-sequence ids, and those that a row's ``allow`` names, are ever drawn.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._size = vocabulary.size
        self._free = np.array([token is not None for token in vocabulary.token_bytes], dtype=np.bool_)
        self._free[list(vocabulary.eos_ids)] = True

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sample]:
        """One sample per row of ``logits`` ([rows, vocabulary] fp32), which is left as it was.

        Raises EngineFailed where a row's logits hold NaN or infinity, or no token is allowed; ValueError where the
        shapes do not agree.
        """
        if logits.shape != (len(rows), self._size):
            raise ValueError(f"logits are {tuple(logits.shape)}, but there are {len(rows)} rows of {self._size} ids")
        if not rows:
            return []
        best = logits.amax(dim=-1).tolist()
        for i, value in enumerate(best):
            if not np.isfinite(value):
                raise EngineFailed(f"the model's logits are not finite in row {i}: their maximum is {value}")
        return [self._sample_row(logits[i], row, i) for i, row in enumerate(rows)]

    def _sample_row(self, raw: torch.Tensor, row: SampleRow, index: int) -> Sample:
        adjusted = _adjusted(raw, row)
        ids = torch.from_numpy(np.flatnonzero(self._allowed(row))).to(raw.device)
        scores = adjusted[ids]
        if len(ids) == 0 or bool((scores == -torch.inf).all()):
            raise EngineFailed(f"no token is allowed in row {index}: its constraint, bans and biases exclude all")
        greedy = row.sampling.temperature == 0
        token = int(ids[_first_best(scores)]) if greedy else _draw(ids, scores, row)
        normaliser = torch.logsumexp(raw, dim=-1)
        return Sample(token, float(raw[token] - normaliser), _top(raw, normaliser, row.logprobs))

    def _allowed(self, row: SampleRow) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """[vocabulary] whether an id may be drawn."""
        if row.mask is None:
            allowed = self._free.copy()
        else:
            bits = np.unpackbits(row.mask.view(np.uint8), count=self._size, bitorder="little")
            allowed = bits.astype(np.bool_)
        allowed[list(row.allow)] = True
        allowed[list(row.forbid)] = False
        return allowed


def _adjusted(raw: torch.Tensor, row: SampleRow) -> torch.Tensor:
    """The logits after repetition, presence and frequency penalties and bias, in that order; ``raw`` if none apply."""
    sampling = row.sampling
    penalises = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    if sampling.repetition_penalty == 1 and not penalises and not sampling.logit_bias:
        return raw
    logits = raw.clone()
    if sampling.repetition_penalty != 1 and row.context:
        seen = torch.tensor(sorted(set(row.context)), dtype=torch.int64, device=raw.device)
        old = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(old < 0, old * penalty, old / penalty)  # CTRL, arXiv 1909.05858, as in transformers
    if penalises and row.generated:
        counts = Counter(row.generated)
        ids = torch.tensor(list(counts), dtype=torch.int64, device=raw.device)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=raw.device)
        logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * times
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < len(logits):
            raise EngineFailed(f"logit_bias names the id {token}; the vocabulary has {len(logits)}")
        logits[token] += bias
    return logits


def _draw(ids: torch.Tensor, scores: torch.Tensor, row: SampleRow) -> int:
    """One of ``ids`` from the softmax of ``scores / temperature``, filtered."""
    sampling = row.sampling
    # Divide the distance from the best, so that the smallest temperature cannot overflow.
    scaled = (scores - scores.max()).to(torch.float64) / sampling.temperature
    near = scaled >= -GUMBEL_SPAN if sampling.top_p >= 1 else scaled > -torch.inf
    ids, scaled = ids[near], scaled[near]
    if 0 < sampling.top_k < len(ids):
        keep = _top_k(scaled, sampling.top_k)
        ids, scaled = ids[keep], scaled[keep]
    if sampling.top_p < 1:
        keep = _top_p(scaled, sampling.top_p)
        ids, scaled = ids[keep], scaled[keep]
    if sampling.min_p > 0:
        keep = scaled >= np.log(sampling.min_p)  # relative to the likeliest, whose scaled score is 0
        ids, scaled = ids[keep], scaled[keep]
    noise = gumbel(ids, seed=row.key.seed, stream=row.key.stream, position=row.position)
    return int(ids[_first_best(scaled + noise)])


def _top_k(scaled: torch.Tensor, k: int) -> torch.Tensor:
    """Ascending indices of the k greatest, ties to the lowest index."""
    threshold = torch.topk(scaled, k).values[-1]
    above = scaled > threshold
    ties = torch.nonzero(scaled == threshold).flatten()[: k - int(above.sum())]
    above[ties] = True
    return torch.nonzero(above).flatten()


def _top_p(scaled: torch.Tensor, p: float) -> torch.Tensor:
    """Ascending indices of the fewest likeliest whose probabilities reach ``p``: at least one."""
    probabilities = torch.softmax(scaled, dim=-1)
    within = _head(probabilities, p)
    ordered, order = torch.sort(probabilities[within], descending=True, stable=True)
    before = torch.cumsum(ordered, dim=-1) - ordered
    keep = before < p
    keep[0] = True
    return torch.sort(within[order[keep]]).values


def _head(probabilities: torch.Tensor, p: float) -> torch.Tensor:
    """Ascending indices of a set that holds all that top-p can keep: sorting a head is cheaper than sorting all."""
    if len(probabilities) > HEAD:
        threshold = torch.topk(probabilities, HEAD).values[-1]
        within = torch.nonzero(probabilities >= threshold).flatten()
        if float(probabilities[within].sum()) > p + 1e-9:  # rounding must not decide which path is taken
            return within
    return torch.arange(len(probabilities), device=probabilities.device)


def _first_best(scores: torch.Tensor) -> int:
    """Index of the maximum, the lowest one among equals (``argmax`` promises no order on every device)."""
    return int(torch.nonzero(scores == scores.max())[0])


def _top(raw: torch.Tensor, normaliser: torch.Tensor, count: int | None) -> dict[int, float] | None:
    if count is None:
        return None
    values, ids = torch.topk(raw, min(count, len(raw)))
    return dict(zip(ids.tolist(), (values - normaliser).tolist(), strict=True))
