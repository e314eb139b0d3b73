"""The seed of a run that was given none."""

from __future__ import annotations

import os
import random


def default_seed() -> int:
    """``FURCATE_SEED``, or a random one. Raises ValueError where that is no whole number."""
    given = os.environ.get("FURCATE_SEED")
    if not given:
        return random.getrandbits(63)
    try:
        return int(given)
    except ValueError:
        raise ValueError(f"FURCATE_SEED={given!r} is no whole number: set it to one, or unset it") from None
