"""A whole model on the Triton backend in Triton's interpreter, against the same model on the torch backend."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from furcate.kernels.layout import BlockCopy, StepBatch
from furcate.kernels.triton_backend import TritonBackend
from furcate.runtime.errors import UnsupportedByBackend
from furcate.runtime.model_runner import ModelRunner
from furcate.runtime.models.assemble import assemble_model
from furcate.runtime.models.byte_tokenizer import ByteTokenizer
from furcate.runtime.models.loaded import LoadedModel
from furcate.runtime.models.tiny import load_tiny


def one_layer() -> LoadedModel:
    """A Llama of one layer with two query heads of 64 on one KV head, the same every time."""
    config = LlamaConfig(
        vocab_size=ByteTokenizer().vocabulary.size,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = LlamaForCausalLM(config)
    return assemble_model("one-layer", module, ByteTokenizer(), weights_version="1")


def test_a_prefill_and_a_fork_give_the_torch_backends_logits() -> None:
    runners = [
        ModelRunner(one_layer(), num_blocks=8, deterministic=False, backend=TritonBackend),
        ModelRunner(one_layer(), num_blocks=8, deterministic=False),
    ]
    assert [runner.backend.name for runner in runners] == ["triton", "torch"]
    ids = [(7 * i) % 256 for i in range(35)]
    rows = list(range(35))
    prefill = StepBatch(ids, rows, [0] * 35, [[4, 1, 6]], rows, [*range(64, 80), *range(16, 32), *range(96, 99)], rows)
    fork = StepBatch([9, 11], [35, 35], [0, 1], [[4, 1, 6], [4, 1, 3]], [0, 1], [99, 51], [0, 1], [BlockCopy(6, 3, 3)])
    for batch in (prefill, fork):
        ours, theirs = (runner.forward(batch) for runner in runners)
        assert (ours - theirs).abs().max() < 1e-4
        assert theirs.std() > 0.01


def test_a_model_that_no_kernel_fits_is_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedByBackend, match=r"test:tiny: tree_attention has no tile for head size 16.*torch backend"
    ):
        ModelRunner(load_tiny(), num_blocks=8, backend=TritonBackend)
