"""transformers' modelling code, imported with the cyclic garbage collector at rest.

The import makes about a million objects that all stay; collecting among them again and again takes 1.2 of 4.5 s.
Whoever needs transformers imports this module, or ``runtime.attention``, first.
"""

from __future__ import annotations

import gc

_collecting = gc.isenabled()
gc.disable()
try:
    from transformers import AttentionInterface, LlamaForCausalLM  # the class pulls in all that a model needs
finally:
    if _collecting:
        gc.enable()

__all__ = ["AttentionInterface", "LlamaForCausalLM"]
