"""Token accounting: what a call, a branch or a run cost, and where its prompt came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call, or the sum over a branch or a run.

    ``prompt = cached + shared + prefilled``; ``computed = prefilled + decoded + repeated``.
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
    repeated: int = 0
    """Tokens that the call computed a second time after it had been preempted; part of ``recomputed``, and neither
    prefilled nor decoded once more."""
    copied_blocks: int = 0
    """Blocks copied on write."""
    forward_passes: int = 0
    """Engine steps in which the call had a row."""
    missed_because: Mapping[str, int] = field(default_factory=dict)
    """Prefilled tokens by reason: ``new`` (never seen), ``evicted``, ``flushed``, ``preempted``."""

    @property
    def computed(self) -> int:
        """Tokens whose KV was computed for this call. A call whose context is wholly cached computes none, though the
        logits of its last position may be read again (``forward_passes`` counts those steps)."""
        return self.prefilled + self.decoded + self.repeated

    def __add__(self, other: Usage) -> Usage:
        reasons = dict(self.missed_because)
        for reason, count in other.missed_because.items():
            reasons[reason] = reasons.get(reason, 0) + count
        sums = {
            f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "missed_because"
        }
        return Usage(**sums, missed_because=reasons)

    def as_dict(self) -> dict[str, Any]:
        """The counts that are not zero, by name."""
        counts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "missed_because"}
        given = {name: count for name, count in counts.items() if count}
        return {**given, "missed_because": dict(self.missed_because)} if self.missed_because else given

    def as_openai(self) -> dict[str, Any]:
        """``usage`` of a chat completion: cached tokens are part of the prompt's."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached + self.shared},
        }

    def as_anthropic(self) -> dict[str, int]:
        """``usage`` of a message: the three input counts add up to the prompt. All that is prefilled is written to the
        cache, so nothing is left for ``input_tokens``."""
        return {
            "input_tokens": self.prompt - self.cached - self.shared - self.prefilled,
            "cache_creation_input_tokens": self.prefilled,
            "cache_read_input_tokens": self.cached + self.shared,
            "output_tokens": self.generated,
        }

    def as_deepseek(self) -> dict[str, int]:
        """``usage`` with hits and misses, which add up to the prompt."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_cache_hit_tokens": self.cached + self.shared,
            "prompt_cache_miss_tokens": self.prefilled,
        }

    def as_otel(self) -> dict[str, int]:
        """Span attributes by the GenAI semantic conventions, in which cached tokens are part of the input's; what they
        have no name for is under ``furcate.usage``."""
        attributes = {
            "gen_ai.usage.input_tokens": self.prompt,
            "gen_ai.usage.output_tokens": self.generated,
            "gen_ai.usage.cache_read.input_tokens": self.cached + self.shared,
            "gen_ai.usage.cache_creation.input_tokens": self.prefilled,
        }
        own = ("shared", "decoded", "forced", "recomputed", "copied_blocks", "forward_passes")
        attributes.update({f"furcate.usage.{name}": getattr(self, name) for name in own})
        attributes.update({f"furcate.usage.missed.{why}": n for why, n in self.missed_because.items()})
        return attributes
