"""How the command line fails: its exit codes, and an error as a person reads it."""

from __future__ import annotations

import sysconfig
from types import TracebackType

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: done; a program, row or check failed; the command line is wrong; Ctrl-C."""


_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


class UsageError(Exception):
    """The command line asks for something that cannot be had; the message says what there is instead."""


def describe(error: BaseException) -> str:
    """``error`` in a few lines: kind, message, the user's own line that it came from, and its cause."""
    lines = [f"error: {type(error).__name__}: {error}"]
    place = _place(error.__traceback__)
    if place:
        lines.append(f"  at {place}")
    cause = error.__cause__
    if cause is not None and str(cause) not in str(error):
        lines.append(f"  because of {type(cause).__name__}: {cause}")
    lines.append("  (--debug shows the traceback)")
    return "\n".join(lines) + "\n"


def _place(trace: TracebackType | None) -> str | None:
    """The innermost frame that is the user's own: not this package's, an installed one's or the standard library's."""
    place = None
    own = __name__.partition(".")[0]
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        foreign = code.co_filename.startswith(("<frozen", _STANDARD_LIBRARY)) or "site-packages" in code.co_filename
        if not foreign and module.partition(".")[0] not in {own, "__main__"}:
            place = f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return place
