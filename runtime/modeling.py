"""transformers' modelling code, imported with the cyclic garbage collector at rest.

Whoever needs transformers imports this module, or ``runtime.attention``, first.
"""

from __future__ import annotations

from .collector import collector_at_rest

with collector_at_rest():
    from transformers import AttentionInterface, LlamaForCausalLM  # the class pulls in all that a model needs

__all__ = ["AttentionInterface", "LlamaForCausalLM"]
