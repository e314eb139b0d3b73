"""Token accounting: what a call, a branch or a run cost, and where its prompt came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call, or the sum over a branch or a run.

    ``prompt = cached + shared + prefilled``; ``computed = prefilled + decoded``.
    """

    prompt: int = 0
    """Tokens of context at the call."""
    cached: int = 0
    """Prompt tokens whose KV was there: from the branch's own lineage or the radix tree."""
    shared: int = 0
    """Prompt tokens whose KV came by fork, or was computed for a sibling in the same step."""
    prefilled: int = 0
    """Prompt tokens that this call computed."""
    decoded: int = 0
    """Generated tokens whose KV this call computed."""
    generated: int = 0
    """Tokens that the call added to the context (sampled and forced)."""
    forced: int = 0
    """Generated tokens that were appended without sampling, since only one continuation existed."""
    recomputed: int = 0
    """Tokens computed again after preemption or eviction of a live branch."""
    copied_blocks: int = 0
    """Blocks copied on write."""
    forward_passes: int = 0
    """Engine steps in which the call had a row."""
    missed_because: Mapping[str, int] = field(default_factory=dict)
    """Prefilled tokens by reason: ``new`` (never seen), ``evicted``, ``preempted``."""

    @property
    def computed(self) -> int:
        """Tokens that went through the model for this call."""
        return self.prefilled + self.decoded

    def __add__(self, other: Usage) -> Usage:
        reasons = dict(self.missed_because)
        for reason, count in other.missed_because.items():
            reasons[reason] = reasons.get(reason, 0) + count
        sums = {
            f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "missed_because"
        }
        return Usage(**sums, missed_because=reasons)
