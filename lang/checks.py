"""Findings over a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .graph import Graph


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, or likely to be, with its place and its mend."""

    code: str
    level: Literal["error", "warning", "note"]
    message: str
    mend: str
    file: str
    line: int
    column: int

    def render(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}: {self.level} {self.code}: {self.message}\n  {self.mend}\n"


def check_graph(
    graph: Graph, *, max_context: int | None = None, count_tokens: Callable[[str], int] | None = None
) -> list[Finding]:
    """Every finding, in the order of the source."""
    return []
