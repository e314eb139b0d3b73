"""Model files for tests of loading: the tiny model as a GGUF file or a directory, and a cache with nothing in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from furcate.kernels.layout import StepBatch
from furcate.runtime.model_runner import ModelRunner
from furcate.runtime.models.gguf_file import convert_gguf
from furcate.runtime.models.loaded import LoadedModel
from furcate.runtime.models.loading import load_model


def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of our own and of the hub, and no network."""
    monkeypatch.setenv("FURCATE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FURCATE_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache"


def logits(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    count = range(len(ids))
    return ModelRunner(loaded, num_blocks=8).forward(
        StepBatch(ids, count, [0] * len(ids), [list(range(8))], count, count, count)
    )


def write_gguf(path: Path, **changes: Any) -> LoadedModel:
    """The weights of the tiny model as a GGUF file of the llama architecture; returns the tiny model."""
    tiny = load_model("test:tiny")
    config = tiny.config
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    writer.add_token_list([*alphabet, "<|im_start|>", "<|im_end|>", "Ġt", "th"])
    writer.add_token_types([1] * 256 + [3, 3, 1, 1])
    writer.add_token_merges(["Ġ t", "t h"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_chat_template("{{ messages[0].content }}")
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, tensor in tiny.module.state_dict().items():
        weights = tensor.numpy()
        stem = name.removesuffix(".weight")
        if stem in outer:
            writer.add_tensor(f"{outer[stem]}.weight", weights)
            continue
        _, _, layer, part = stem.split(".", 3)
        heads = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}.get(part)
        if heads:  # the file's order interleaves the halves of each rotary pair
            weights = weights.reshape(heads, 2, -1, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)
        writer.add_tensor(f"blk.{layer}.{names[part]}.weight", np.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tiny


def write_directory(path: Path) -> Path:
    """The same as a model directory, converted from a GGUF file beside it; returns ``path``."""
    file = path.with_suffix(".gguf")
    write_gguf(file)
    path.mkdir()
    convert_gguf(file, path, source="test", version="0")
    return path
