"""Programs called from programs: who is calling, from where, and what the caller passes on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .execution import Body, calling_body
from .graph import Site
from .sites import call_sites

_ENTRANCES = frozenset(str(Path(__file__).with_name(name)) for name in ("nesting.py", "program.py", "mapping.py"))
"""Files whose frames lie between the user's call and this one."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The body that calls a program, and its call.

    The program inherits the body's model, temperature, budgets and end; draws follow from the body's seed path and
    the number of the call.
    """

    body: Body
    sites: tuple[Site, ...]
    seed_path: str

    def place(self, label: str) -> int:
        """Record the call; returns its node. Interpreter's thread only."""
        return self.body.execution.place_at("Call", label, None, self.sites, self.body).node


def calling() -> Caller | None:
    """The call of a program that is being made; None outside of programs."""
    body = calling_body()
    if body is None:
        return None
    depth = 1
    while sys._getframe(depth).f_code.co_filename in _ENTRANCES:
        depth += 1
    return Caller(body, call_sites(depth, body.code), f"{body.seed_path}/call{next(body.calls)}")
