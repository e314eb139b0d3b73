"""The cyclic garbage collector at rest while something imports: torch and transformers make about a million objects
that all stay, and collecting among them again and again takes 1.2 of 4.5 s of a load. Imports nothing heavy."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Within it nothing is collected; afterwards the collector is as it was."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
