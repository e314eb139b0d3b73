"""GGUF files, converted to safetensors once: 3 s for SmolLM2-135M, where transformers takes 40 at each load."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

from ..errors import ModelLoadError
from .cache import models_dir, publish, unwritable
from .directory import IDENTITY_FILE, load_directory, quiet_off_terminal
from .gguf_reader import GGUFFile, read_gguf
from .gguf_tokenizer import bpe_tokenizer, can_rebuild
from .loaded import LoadedModel, LoadOptions

logger = logging.getLogger("furcate")

_LAYOUT = 1
"""Version of what the converter writes: a change makes older copies in the cache unused."""

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def load_gguf(name: str, path: Path, **options: Unpack[LoadOptions]) -> LoadedModel:
    """Load a GGUF file through its converted copy in the cache, keyed by the file's SHA-256. Raises ModelLoadError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = models_dir() / f"gguf-{digest[:32]}-v{_LAYOUT}"
    if not target.is_dir():
        logger.info("converting %s, once", path)
        publish(target, lambda directory: convert_gguf(path, directory, source=str(path), version=digest[:32]))
    return load_directory(name, target, **options)


def convert_gguf(path: Path, directory: Path, *, source: str, version: str) -> None:
    """Write the model in ``path`` to ``directory`` as fp32 safetensors with its configuration and tokenizer.

    Raises ModelLoadError where the file is damaged or of a kind that transformers cannot read either, and where
    ``directory`` cannot be written.
    """
    try:
        file = read_gguf(path)
        write = _read_llama(file) if _is_plain_llama(file) else _read_by_transformers(path)
    except Exception as error:  # a damaged file fails anywhere: numpy, gguf, tokenizers, transformers
        raise ModelLoadError(
            f"{path} cannot be read as a GGUF model: {type(error).__name__}: {error}. If it was downloaded, check its "
            "size and fetch it again."
        ) from error
    identity = {"source": source, "weights_version": version}
    try:
        write(directory)
        (directory / IDENTITY_FILE).write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
    except Exception as error:  # each library wraps a full disk in an error of its own
        raise unwritable(directory.parent, error) from error


def _is_plain_llama(file: GGUFFile) -> bool:
    """Llama with default rotary embeddings and a tokenizer that we rebuild; the rest is left to transformers."""
    metadata = file.metadata
    names = {_hf_name(tensor.name) for tensor in file.tensors}
    return (
        metadata["general.architecture"] == "llama"
        and None not in names
        and metadata.get("llama.rope.scaling.type", "none") == "none"
        and can_rebuild(metadata)
    )


def _hf_name(name: str) -> str | None:
    if name in _OUTER:
        return _OUTER[name]
    part = name.split(".")
    if len(part) == 4 and part[0] == "blk" and part[3] == "weight" and part[2] in _INNER:
        return f"model.layers.{part[1]}.{_INNER[part[2]]}.weight"
    return None


def _read_llama(file: GGUFFile) -> Callable[[Path], None]:
    """Everything that can fail on a damaged file; returns what writes it down."""
    metadata = file.metadata
    heads = int(metadata["llama.attention.head_count"])
    kv_heads = int(metadata.get("llama.attention.head_count_kv", heads))
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for tensor in tqdm(file.tensors, desc="converting", unit="tensor", disable=not sys.stderr.isatty()):
        weights = tensor.dequantize()
        if ".attn_q." in tensor.name:
            weights = _unpermute(weights, heads)
        elif ".attn_k." in tensor.name:
            weights = _unpermute(weights, kv_heads)
        tensors[_hf_name(tensor.name) or tensor.name] = np.ascontiguousarray(weights)
    config = _llama_config(metadata, heads, kv_heads, tensors)
    tokenizer, settings = bpe_tokenizer(metadata), _tokenizer_settings(metadata)
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise ValueError(f"{tokenizer.get_vocab_size()} tokens are named, but there are {config.vocab_size} embeddings")

    def write(directory: Path) -> None:
        weights_file = directory / "model.safetensors"
        save_file(tensors, weights_file, metadata={"format": "pt"})
        weights_file.chmod(0o644)  # the writer makes it private, but a cache may serve several users
        config.save_pretrained(directory)
        GenerationConfig(bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id).save_pretrained(directory)
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        if "tokenizer.chat_template" in metadata:
            (directory / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"], encoding="utf-8")

    return write


def _unpermute(weights: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """GGUF interleaves the two halves of each head's rotary pairs; transformers keeps them apart."""
    rows, inner = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, inner).swapaxes(1, 2).reshape(rows, inner)


def _llama_config(
    metadata: Mapping[str, Any], heads: int, kv_heads: int, tensors: Mapping[str, npt.NDArray[np.float32]]
) -> LlamaConfig:
    hidden = int(metadata["llama.embedding_length"])
    theta = float(metadata.get("llama.rope.freq_base", 10000.0))
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(tensors["model.embed_tokens.weight"]),
        hidden_size=hidden,
        intermediate_size=int(metadata["llama.feed_forward_length"]),
        num_hidden_layers=int(metadata["llama.block_count"]),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=int(metadata.get("llama.attention.key_length", hidden // heads)),
        max_position_embeddings=int(metadata["llama.context_length"]),
        rms_norm_eps=float(metadata["llama.attention.layer_norm_rms_epsilon"]),
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings="lm_head.weight" not in tensors,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=metadata.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id"),
        dtype="float32",
    )


def _tokenizer_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    settings: dict[str, Any] = {"add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False))}
    for role in ("bos", "eos"):
        if f"tokenizer.ggml.{role}_token_id" in metadata:
            settings[f"{role}_token"] = tokens[metadata[f"tokenizer.ggml.{role}_token_id"]]
    return settings


def _read_by_transformers(path: Path) -> Callable[[Path], None]:
    logger.info("reading %s through transformers, which takes about a minute", path)
    with quiet_off_terminal():
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        module = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    # A model that was read from GGUF refuses to be saved, although its weights are plain fp32 by now.
    module.hf_quantizer, module.is_quantized = None, False
    del module.config.quantization_config

    def write(directory: Path) -> None:
        with quiet_off_terminal():
            module.save_pretrained(directory)
        tokenizer.save_pretrained(directory)

    return write
