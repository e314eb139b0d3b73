"""The byte-level BPE tokenizer that a GGUF file carries, rebuilt for the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

_CONTROL, _USER_DEFINED = 3, 4
"""Values of ``tokenizer.ggml.token_type`` for special tokens and for added ones that are text."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def can_rebuild(metadata: Mapping[str, Any]) -> bool:
    """Whether ``bpe_tokenizer`` knows this file's kind of tokenizer."""
    known = metadata.get("tokenizer.ggml.pre", "default") in _PRE_TOKENIZERS
    return metadata.get("tokenizer.ggml.model") == "gpt2" and known and "tokenizer.ggml.merges" in metadata


def bpe_tokenizer(metadata: Mapping[str, Any]) -> RustTokenizer:
    """Tokenizer from a GGUF file's ``tokenizer.ggml.*`` fields (token list, types, merges, kind of pre-tokenizer)."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    kind = metadata.get("tokenizer.ggml.pre", "default")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = RustTokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, ignore_merges=kind == "llama-bpe")
    )
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[kind]()
    tokenizer.decoder = decoders.ByteLevel()
    added = [(token, kind) for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in added if kind == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in added if kind == _USER_DEFINED])
    return tokenizer


def _digits_then_bytes() -> pre_tokenizers.PreTokenizer:
    # Each digit apart before GPT-2's split: without it spaces before digits come out otherwise than in training.
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _bytes_only() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _llama3() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_PRE_TOKENIZERS = {"smollm": _digits_then_bytes, "gpt-2": _bytes_only, "llama-bpe": _llama3}
"""By ``tokenizer.ggml.pre``. Kinds that are not here are left to transformers."""
