"""Static checks: what is wrong, or likely to be, with a program, found on its graph without a model or inputs.

| code | level | finding |
| --- | --- | --- |
| F001 | error | a ``gen`` without ``max_tokens`` whose type has no finite length |
| F002 | warning, note in a chat | a choice that is the prefix of another |
| F003 | warning | a loop without a provable end that calls the model |
| F004 | warning | text that differs on every run ahead of a long constant: nothing after it is shared between runs |
| F005 | warning | the text of a special token written out: it is plain text, not the token |
| F006 | error | a context used inside its own fork |
| F007 | error | a pattern or type that no text satisfies, or that cannot be enforced |
| F008 | error, warning | more tokens than the model's context holds, for certain or along the longest path |
| F009 | warning | a model's result that is assigned and never read |
| F010 | error | ``c += ...`` on a context of an enclosing function: Python takes ``c`` as a new local name |
| F011 | warning | branches that are all the same: greedy, over a number, and the number is not used |
| F012 | error | a branch function, helper or program called with arguments that it does not take |
| F013 | error | an option that ``gen`` does not have |

``# furcate: ignore[F003]`` (or ``ignore[F003, F009]``) on the line suppresses a finding there.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .check_rules import RULES, CheckInput
from .finding import Finding, source_line
from .graph import Graph

__all__ = ["Finding", "check_graph"]

_IGNORE = re.compile(r"#\s*furcate:\s*ignore\[([^\]]*)\]")


def check_graph(
    graph: Graph, *, max_context: int | None = None, count_tokens: Callable[[str], int] | None = None
) -> list[Finding]:
    """Every finding on a planned graph, each once, in the order of the source.

    max_context: tokens that the model's context holds; without it nothing is too long. count_tokens: tokens of a text;
    without it constant text counts nothing.
    """
    given = CheckInput(graph, max_context, count_tokens)
    found = dict.fromkeys(finding for rule in RULES for finding in rule(given))
    kept = [finding for finding in found if not _ignored(finding)]
    return sorted(kept, key=lambda finding: (finding.file, finding.line, finding.column, finding.code))


def _ignored(finding: Finding) -> bool:
    marked = _IGNORE.search(source_line(finding.file, finding.line))
    return marked is not None and finding.code in re.split(r"[\s,]+", marked.group(1))
