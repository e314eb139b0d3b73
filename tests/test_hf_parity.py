"""Our forward pass against transformers' own, on small random models of every architecture that is known to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from engine_kit import request
from packed_steps import step, tokens
from random_models import FAMILIES, MAIN, random_module, random_pair

from furcate.runtime.attention import paged_attention
from furcate.runtime.engine import Engine
from furcate.runtime.errors import ModelLoadError, UnsupportedByBackend
from furcate.runtime.model_runner import ModelRunner
from furcate.runtime.models.architectures import VERIFIED
from furcate.runtime.models.assemble import assemble_model
from furcate.runtime.models.byte_tokenizer import ByteTokenizer
from furcate.runtime.models.loaded import LoadedModel
from furcate.runtime.models.loading import load_model
from furcate.runtime.models.rope import fix_rope
from furcate.runtime.sampler import Sampler


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_same_logits(loaded: LoadedModel, reference: Any, ids: list[int], *, deterministic: bool = True) -> None:
    """Within 1e-4 where logits are of order 1; larger ones are measured against their size."""
    with torch.inference_mode():
        want = reference(torch.tensor([ids]), use_cache=False).logits[0].float()
    runner = ModelRunner(loaded, num_blocks=64, deterministic=deterministic)
    table = list(range(3, 3 + len(ids) // 16 + 1))
    cuts = [0, 70, 71, len(ids)]
    got = torch.cat([runner.forward(step((ids, table, start, stop))) for start, stop in pairwise(cuts)])
    assert want.std() > 0.05
    assert (got - want).abs().max() < 1e-4 * max(1.0, float(want.std()))


def engine_of(loaded: LoadedModel) -> Engine:
    vocabulary = loaded.tokenizer.vocabulary
    return Engine(
        ModelRunner(loaded, num_blocks=256),
        vocabulary,
        Sampler(vocabulary),
        num_blocks=256,
        max_context=loaded.max_context,
        max_step_tokens=200,
        threaded=False,
        check_every_step=True,
    )


def assert_same_greedy_tokens(
    loaded: LoadedModel,
    reference: Any,
    lengths: list[int],
    count: int = 6,
    ids: Sequence[int] = tokens(300),
    suppress: Sequence[int] = range(256, 260),
) -> None:
    """A trunk forks at each of ``lengths``: one child generates there, the other goes on to the next fork."""
    engine = engine_of(loaded)
    trunk = engine.root()
    made = []
    for start, stop in pairwise([0, *lengths]):
        trunk.append(ids[start:stop])
        leaf, trunk = trunk.fork(2)
        own = [65 + len(made)]
        leaf.append(own)
        made.append(([*ids[:stop], *own], leaf.generate(request(count)), leaf))
    while engine.step():
        pass
    for prompt, ticket, _ in made:
        with torch.inference_mode():
            want = reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=count,
                do_sample=False,
                suppress_tokens=list(suppress),  # special ones, which stand for no text: we never draw them
            )
        assert list(ticket.result().tokens) == want[0, len(prompt) :].tolist()


def test_the_list_of_verified_architectures_is_the_list_of_those_tested_here() -> None:
    assert {random_module(family).config.model_type for family in FAMILIES} == VERIFIED


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of(family: str) -> None:
    assert_same_logits(*random_pair(family), tokens(300))


@pytest.mark.parametrize("family", MAIN)
def test_greedy_tokens_after_forks_below_and_beyond_the_window_and_the_chunk_of(family: str) -> None:
    assert_same_greedy_tokens(*random_pair(family), lengths=[21, 48, 255, 270])


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(MAIN)))
def test_greedy_tokens_after_a_fork_of(family: str) -> None:
    assert_same_greedy_tokens(*random_pair(family), lengths=[47, 260], count=4)


@pytest.mark.parametrize("family", ["Mixtral", "Gemma2", "GPT2"])
def test_logits_without_determinism_of(family: str) -> None:
    assert_same_logits(*random_pair(family), tokens(120), deterministic=False)


def test_the_tiny_model() -> None:
    loaded = load_model("test:tiny")
    reference = load_model("test:tiny").module
    reference.set_attn_implementation("eager")
    assert_same_logits(loaded, reference, tokens(300))


LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": 128,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [1.5 + i for i in range(8)],
        "factor": 8.0,
        "original_max_position_embeddings": 128,
    },
}


def test_longrope_takes_the_long_factors_where_the_context_is_long() -> None:
    loaded, reference = random_pair("Phi3", **LONGROPE)
    assert_same_logits(loaded, reference, tokens(300))  # beyond 128 tokens transformers takes them as well
    fixed = loaded.module.model.rotary_emb.inv_freq.clone()
    ModelRunner(loaded, num_blocks=8).forward(step((tokens(20), [0, 1], 0, 20)))
    assert torch.equal(loaded.module.model.rotary_emb.inv_freq, fixed)


def test_longrope_takes_the_short_factors_where_the_context_is_short() -> None:
    module, reference = random_module("Phi3", **LONGROPE), random_module("Phi3", **LONGROPE)
    loaded = assemble_model("m", module, ByteTokenizer(), weights_version="0", max_context=128)
    assert_same_logits(loaded, reference, tokens(128))


def test_a_chosen_context_chooses_the_factors_and_names_them() -> None:
    versions = set()
    for context in (None, 1024, 129, 128, 60):
        module = random_module("Phi3", **LONGROPE)
        loaded = assemble_model("m", module, ByteTokenizer(), weights_version="0", max_context=context)
        assert loaded.max_context == (context or 1024)
        versions.add(loaded.weights_version)
    assert len(versions) == 2  # long and short
    for context in (0, 1025):
        with pytest.raises(ModelLoadError, match=f"max_context={context}, but the model holds from 1 to 1024"):
            assemble_model("m", random_module("Llama"), ByteTokenizer(), weights_version="0", max_context=context)


def test_dynamic_frequencies_are_those_of_the_whole_context() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    loaded, reference = random_pair("Llama", rope_parameters=rope)
    assert_same_logits(loaded, reference, tokens(300))
    longer, grown = random_module("Llama", rope_parameters=rope), random_module("Llama", rope_parameters=rope)
    fix_rope(longer, 1500)
    ids = torch.tensor([tokens(1500)])
    with torch.inference_mode():
        assert torch.allclose(longer(ids).logits, grown(ids).logits, atol=1e-4)
    assert not torch.equal(longer.model.rotary_emb.inv_freq, loaded.module.model.rotary_emb.inv_freq)


def test_bfloat16_weights_keep_precise_rotary_frequencies() -> None:
    module = random_module("Llama")
    want = module.model.rotary_emb.inv_freq.clone()
    loaded = assemble_model("half", module, ByteTokenizer(), weights_version="0", dtype=torch.bfloat16)
    assert loaded.module.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(loaded.module.model.rotary_emb.inv_freq, want)


EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
REFUSED = {
    "StableLm": ({}, "StableLm.* by itself"),
    "Bloom": ({}, "Bloom.* by itself"),
    "DeepseekV3": ({**EXPERTS, **LATENT}, "latent"),
    "Nemotron": ({"num_key_value_heads": 2}, "NemotronAttention .* does not hand keyword arguments"),
    "MiniMax": ({"num_local_experts": 4}, "linear_attention"),
    "Lfm2": ({"layer_types": ["conv", "full_attention"]}, "conv"),
    "Mamba": ({}, "Mamba"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_right_is_refused_by_name(family: str) -> None:
    changes, reason = REFUSED[family]
    with pytest.raises(ModelLoadError, match=f"(?s){reason}.*Choose a"):
        assemble_model("model", random_module(family, **changes), ByteTokenizer(), weights_version="0")


def test_an_architecture_that_no_test_knows_is_tried_and_runs_if_it_agrees() -> None:
    loaded, reference = random_pair("Persimmon")
    assert loaded.config.model_type not in VERIFIED
    assert_same_logits(loaded, reference, tokens(100))


def test_an_architecture_that_no_test_knows_is_refused_if_it_disagrees() -> None:
    module = random_module("Persimmon")
    module.model.layers[0].self_attn.scaling = 0.5  # read by transformers' attention, and by ours
    layer = module.model.layers[1]
    inner = layer.forward
    layer.forward = lambda states, **kwargs: inner(states, **kwargs) + states.mean(1, keepdim=True)
    with pytest.raises(ModelLoadError, match=r"Persimmon.*other logits"):
        assemble_model("mixer", module, ByteTokenizer(), weights_version="0")


@pytest.mark.parametrize("field", ["num_attention_heads", "num_hidden_layers", "max_position_embeddings"])
def test_an_impossible_configuration_is_refused(field: str) -> None:
    module = random_module("Llama")
    setattr(module.config, field, 0 if field != "num_attention_heads" else 3)
    with pytest.raises(ModelLoadError, match="no model can have"):
        assemble_model("model", module, ByteTokenizer(), weights_version="0")


def test_code_that_drops_our_arguments_is_named() -> None:
    states = torch.zeros(1, 1, 1, 4)
    with pytest.raises(UnsupportedByBackend, match="Identity"):
        paged_attention(torch.nn.Identity(), states, states, states, None)


@pytest.mark.slow
@pytest.mark.real
def test_greedy_tokens_of_the_embedded_model_after_forks() -> None:
    loaded, reference = load_model("smollm2-135m"), load_model("smollm2-135m").module
    reference.set_attn_implementation("eager")
    text = "The town council met on Tuesday to weigh three proposals for the old harbour. " * 18
    ids = loaded.tokenizer.encode(text)
    assert len(ids) > 262
    suppressed = sorted(loaded.tokenizer.special_ids.values())
    assert_same_greedy_tokens(loaded, reference, [30, 255, 262], ids=ids, suppress=suppressed)
