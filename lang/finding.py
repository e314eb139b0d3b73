"""One finding of the static checks, and how it is shown."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, or likely to be, with its place, its reason and its mend."""

    code: str
    """``F001`` and so on; the table is in ``furcate.lang.checks``."""
    level: Level
    message: str
    """What is wrong, and why."""
    mend: str
    """What to write instead."""
    file: str
    line: int
    """1-based."""
    column: int
    """0-based, in UTF-8 bytes, as ``ast`` counts."""

    def render(self) -> str:
        """``file:line:column``, the source line with a caret, the reason and the mend; columns are shown from 1."""
        shown = source_line(self.file, self.line)
        before = shown.encode()[: self.column].decode(errors="replace")
        lines = [f"{self.file}:{self.line}:{len(before) + 1}: {self.level} {self.code}: {self.message}"]
        if shown.strip():
            indent = len(shown) - len(shown.lstrip())
            padding = "".join(c if c == "\t" else " " for c in before[indent:])
            lines += [f"    {shown.strip()}", f"    {padding}^"]
        return "\n".join([*lines, f"  mend: {self.mend}"])


def source_line(file: str, line: int) -> str:
    """A line of a source file without its end, "" where it cannot be read."""
    return linecache.getline(file, line).rstrip("\r\n")
