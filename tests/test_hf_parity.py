"""Our forward pass against transformers' own, on small random models of several families."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
import transformers

from furcate.kernels.layout import StepBatch
from furcate.runtime.attention import paged_attention
from furcate.runtime.errors import ModelLoadError, UnsupportedByBackend
from furcate.runtime.model_runner import ModelRunner
from furcate.runtime.models.assemble import assemble_model
from furcate.runtime.models.byte_tokenizer import ByteTokenizer
from furcate.runtime.models.loading import load_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SMALL = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 258,
    "pad_token_id": None,
}
FAMILIES = {
    "Llama": {"attention_bias": True, "tie_word_embeddings": True},
    "Qwen2": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": 40},
    "Phi3": {"original_max_position_embeddings": 1024},
    "Granite": {"logits_scaling": 4.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5},
    "Cohere": {"logit_scale": 0.5},
    "Olmo2": {},
    "Gemma": {},
    "Gemma2": {"sliding_window": 40, "query_pre_attn_scalar": 16},
    "Gemma3": {
        "sliding_window": 40,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


def rows(ids: list[int], table: list[int], start: int, stop: int) -> StepBatch:
    positions = range(start, stop)
    slots = [table[p // 16] * 16 + p % 16 for p in positions]
    count = range(stop - start)
    return StepBatch(ids[start:stop], positions, [0] * len(count), [table], count, slots, count)


def assert_same_logits(runner: ModelRunner, reference: torch.nn.Module, ids: list[int]) -> None:
    with torch.inference_mode():
        want = reference(torch.tensor([ids]), use_cache=False).logits[0].float()
    table = list(range(3, 3 + len(ids) // 16 + 1))
    cuts = [0, 70, 71, len(ids)]
    got = torch.cat([runner.forward(rows(ids, table, a, b)) for a, b in pairwise(cuts)])
    assert want.std() > 0.05
    assert (got - want).abs().max() < 1e-4 * max(1.0, float(want.abs().max()))


def test_the_tiny_model() -> None:
    loaded = load_model("test:tiny")
    reference = copy.deepcopy(loaded.module)
    reference.set_attn_implementation("eager")
    ids = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    assert_same_logits(ModelRunner(loaded, num_blocks=64), reference, ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_model_of(family: str) -> None:
    config_class = getattr(transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")
    config = config_class(**SMALL, **FAMILIES[family])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    reference = copy.deepcopy(module)
    reference.set_attn_implementation("eager")
    loaded = assemble_model(family, module, ByteTokenizer(), weights_version="0")
    ids = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    assert_same_logits(ModelRunner(loaded, num_blocks=64), reference, ids)


def test_a_family_that_computes_attention_by_itself_is_refused() -> None:
    with torch.random.fork_rng(devices=[]):
        module = transformers.StableLmForCausalLM(transformers.StableLmConfig(**SMALL))
    with pytest.raises(ModelLoadError, match="StableLm"):
        assemble_model("stablelm", module, ByteTokenizer(), weights_version="0")


def test_code_that_drops_our_arguments_is_named() -> None:
    states = torch.zeros(1, 1, 1, 4)
    with pytest.raises(UnsupportedByBackend, match="Identity"):
        paged_attention(torch.nn.Identity(), states, states, states, None)
