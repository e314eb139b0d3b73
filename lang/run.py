"""What a run leaves behind: its value, usage, recorded graph and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..runtime.metrics import Usage
from .graph import Graph

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run: ``text`` (a piece of a reply, in a stream only), ``gen``, ``select``, ``tool``,
    ``break`` (the plan did not have this), ``warning``, ``slow``, ``merged turns``. ``text`` may be ""."""

    kind: str
    node: str = ""
    branch: str = ""
    text: str = ""


@dataclass(frozen=True)
class Run(Generic[R_co]):
    """A finished (or, on an error's ``run``, partial) run of a program."""

    value: R_co
    usage: Usage
    graph: Graph
    events: Sequence[Event]
    seed: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A row of ``map`` that failed."""

    index: int
    row: Any
    error: Exception


@dataclass(frozen=True)
class Results(Generic[R_co]):
    """What ``map`` returns: values of the rows that finished, in row order, and the rows that failed."""

    ok: Sequence[R_co]
    failed: Sequence[Failed] = field(default=())
    usage: Usage = field(default_factory=Usage)
