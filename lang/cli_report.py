"""What the command line prints of a run: its value, the text of its branches and its token figures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from pydantic_core import to_json

from ..runtime.metrics import Usage
from .choice import Choice
from .run import Event


def value_text(value: Any) -> str:
    """A program's value as text: a string as it is, a choice with its probabilities, the rest as indented JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Choice):
        return "\n".join([str(value.value), *(f"  {p:6.1%}  {choice}" for choice, p in value.probs.items())])
    return value_json(value, indent=2)


def value_json(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON; what JSON has no form for (a parse tree, an error) becomes its ``str``."""
    return to_json(_plain(value), indent=indent, fallback=str).decode()


def transcript(events: Sequence[Event]) -> str:
    """What every operation wrote, in the order in which they finished, under its branch; then the run's remarks."""
    lines = []
    for event in events:
        if event.kind in ("gen", "select", "tool"):
            text = event.text.replace("\n", "\n    ")
            lines.append(f"{event.branch}/{event.node}\n    {text}")
    remarks = [event for event in events if event.kind not in ("gen", "select", "tool", "text")]
    for event in remarks:
        lines.append(f"({event.kind}, {' '.join(filter(None, (event.branch, event.node)))}: {event.text})")
    return "\n".join(lines)


def usage_fields(usage: Usage) -> dict[str, int]:
    """The counts of ``usage`` by name, in tokens (``copied_blocks`` in blocks, ``forward_passes`` in engine steps)."""
    counts = {f.name: getattr(usage, f.name) for f in fields(usage) if f.name != "missed_because"}
    return {**counts, "computed": usage.computed}


def usage_text(usage: Usage, stats: Mapping[str, int]) -> str:
    """The token figures of a run and the engine's counters, with what sharing saved.

    "without sharing" is what the same calls compute when each prefills its whole prompt: prompt + decoded.
    """
    alone = usage.prompt + usage.decoded
    saved = f", {1 - usage.computed / alone:.0%} less" if alone else ""
    lines = [
        f"prompt     {usage.prompt:7}  = cached {usage.cached} + shared {usage.shared} + prefilled {usage.prefilled}",
        f"computed   {usage.computed:7}  = prefilled {usage.prefilled} + decoded {usage.decoded}"
        f"   (without sharing {alone}{saved})",
        f"generated  {usage.generated:7}  of which forced by the output type: {usage.forced}",
        f"recomputed {usage.recomputed:7}  after eviction or preemption",
        f"steps      {usage.forward_passes:7}  summed over the calls; copied blocks: {usage.copied_blocks}",
    ]
    if any(stats.values()):
        counters = ", ".join(f"{name} {count}" for name, count in stats.items())
        lines.append(textwrap.fill(f"engine     {counters}", width=90, subsequent_indent=" " * 11))
    return "\n".join(lines)


def section(title: str, body: str) -> str:
    """``body`` under a ruled title."""
    return f"-- {title} {'-' * max(0, 76 - len(title))}\n{body.rstrip()}\n\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Choice):
        probs = {str(choice): p for choice, p in value.probs.items()}
        return {"value": value.value, "index": value.index, "probs": probs}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
