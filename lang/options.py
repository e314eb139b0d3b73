"""Options of ``gen``: checked before anything is written on the context, and put into the engine's terms."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from ..runtime.requests import Sampling

_SAMPLING = tuple(field.name for field in fields(Sampling))
_OPTIONS = (*_SAMPLING, "max_tokens", "min_tokens", "stop", "seed", "logprobs", "name")
_LEAST: dict[str, float] = {"max_tokens": 0, "min_tokens": 0, "top_k": 0, "seed": -math.inf}
"""Options that are whole numbers, and the least that each may be."""


def check_options(options: Mapping[str, Any], vocabulary_size: int) -> None:
    """Raise TypeError for an option that is unknown or of the wrong type, ValueError for one out of range."""
    for option in options:
        if option not in _OPTIONS:
            near = difflib.get_close_matches(option, (*_OPTIONS, "regex"), n=1)
            hint = f"; did you mean {near[0]}=?" if near else f"; there are {', '.join(_OPTIONS)} and regex"
            raise TypeError(f"c.gen has no option {option!r}{hint}")
    for option, least in _LEAST.items():
        value = options.get(option)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"c.gen: {option} is a whole number, not {value!r}")
        if int(value) < least:
            raise ValueError(f"c.gen: {option}={value} must be at least {least}")
    fewest, most = options.get("min_tokens") or 0, options.get("max_tokens")
    if most is not None and fewest > most:
        raise ValueError(f"c.gen: min_tokens={fewest} is more than max_tokens={most}")
    _check_bias(options.get("logit_bias"), vocabulary_size)


def _check_bias(bias: Any, vocabulary_size: int) -> None:
    if bias is None:
        return
    if not isinstance(bias, Mapping):
        raise TypeError(f"c.gen: logit_bias maps token ids to numbers, as in {{42: -5.0}}; it got {bias!r:.80}")
    for token, value in bias.items():
        if not isinstance(token, Integral) or not isinstance(value, Real):
            raise TypeError(f"c.gen: logit_bias maps token ids to numbers, and {token!r}: {value!r} is neither")
        if not 0 <= int(token) < vocabulary_size:
            raise ValueError(f"c.gen: logit_bias: the model has no token {token}; ids are below {vocabulary_size}")
        if math.isnan(value):
            raise ValueError(f"c.gen: logit_bias: the bias of token {token} is not a number")


def sampling_of(options: Mapping[str, Any], default_temperature: float | None) -> Sampling:
    """How the tokens are to be drawn. Raises TypeError or ValueError for an option that says nothing."""
    given = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
    if "temperature" not in given and default_temperature is not None:
        given["temperature"] = default_temperature
    for option in given.keys() - {"logit_bias"}:
        if not isinstance(given[option], Real):
            raise TypeError(f"c.gen: {option} is a number, not {type(given[option]).__name__}")
    sampling = Sampling(**given)
    wrong = (
        ("temperature", sampling.temperature, sampling.temperature >= 0, "at least 0"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "between 0 and 1"),
        ("repetition_penalty", sampling.repetition_penalty, sampling.repetition_penalty > 0, "above 0 (1 = off)"),
        ("presence_penalty", sampling.presence_penalty, math.isfinite(sampling.presence_penalty), "finite"),
        ("frequency_penalty", sampling.frequency_penalty, math.isfinite(sampling.frequency_penalty), "finite"),
    )
    for option, value, fine, wanted in wrong:
        if not fine:
            raise ValueError(f"c.gen: {option}={value} must be {wanted}")
    return sampling


def stops_of(stop: str | Sequence[str] | None) -> tuple[bytes, ...]:
    """Stop strings in UTF-8."""
    if stop is not None and not isinstance(stop, Sequence):
        raise TypeError(f"c.gen: stop is a text or a list of texts, not {type(stop).__name__}")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for text in stops:
        if not isinstance(text, str) or not text:
            raise ValueError(f"c.gen: a stop string is text and not empty, not {text!r}")
    return tuple(text.encode() for text in stops)


def logprobs_of(wanted: bool | int | None) -> int | None:
    """Alternatives to report at each position, 0 for the drawn token alone, None for no log-probabilities."""
    if wanted is None or wanted is False:
        return None
    if wanted is True:
        return 0
    if not isinstance(wanted, Integral):
        raise TypeError(f"c.gen: logprobs is True, or how many of the likeliest tokens to report, not {wanted!r}")
    if wanted < 0:
        raise ValueError(f"c.gen: logprobs={wanted} must be at least 0")
    return int(wanted)
