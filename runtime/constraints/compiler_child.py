"""The process that compiles risky patterns: reads patterns from its input, writes automata to its output."""

from __future__ import annotations

import io
import sys

import numpy as np

from ..errors import InvalidRegex, UnsatisfiableConstraint
from .byte_dfa import compile_pattern
from .limited import receive, send

MEMORY_LIMIT_BYTES = 3 * 2**30
"""Address space of this process, where the system can limit it."""


def main() -> None:
    """Answer patterns until the input ends."""
    try:
        import resource  # noqa: PLC0415 - not there on every system

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    except (ImportError, ValueError, OSError):
        limited = False  # the time limit of the asking process still holds
    else:
        limited = True
    del limited
    while (pattern := receive(sys.stdin.buffer)) is not None:
        send(sys.stdout.buffer, _answer(pattern.decode()))


def _answer(pattern: str) -> bytes:
    try:
        dfa = compile_pattern(pattern)
    except UnsatisfiableConstraint as error:
        return b"u" + str(error).encode()
    except InvalidRegex as error:
        return b"i" + str(error).encode()
    body = io.BytesIO()
    np.savez(body, table=dfa.table, accepting=dfa.accepting)
    return b"k" + body.getvalue()


if __name__ == "__main__":
    main()
