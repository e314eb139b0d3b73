"""On every architecture, in fp32 on a CPU: a row's logits are the same bits in any company and after any prefill."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from packed_steps import step, tokens, whole
from random_models import FAMILIES, MAIN, random_loaded

from furcate.kernels.layout import BLOCK_SIZE, BlockCopy
from furcate.runtime.model_runner import ModelRunner

LENGTH = 300
CUTS = [[1], [15, 17], [16, 40, 41], [255, 257], [256], [3, 64, 258, 299]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def runner_of(family: str, **changes: object) -> ModelRunner:
    return ModelRunner(random_loaded(family, **changes), num_blocks=256)


def assert_pieces_equal_the_whole(runner: ModelRunner, cuts: list[int]) -> None:
    ids, table = tokens(LENGTH), list(range(20, 40))
    pieces = [runner.forward(step((ids, table, start, stop))) for start, stop in pairwise([0, *cuts, LENGTH])]
    assert torch.equal(torch.cat(pieces), whole(runner, ids))


def assert_company_changes_nothing(runner: ModelRunner, prefix: int) -> None:
    """32 branches of one prefix decode two tokens together, 7 by 7 and alone, from copies of the partial block."""
    trunk = tokens(prefix)
    table = list(range(prefix // BLOCK_SIZE + 1))
    runner.forward(step((trunk, table, 0, prefix)))
    full, partial = prefix // BLOCK_SIZE, prefix % BLOCK_SIZE
    branches = [trunk + tokens(2, seed=b + 1) for b in range(32)]
    tables = [[*table[:full], 40 + 2 * b, 41 + 2 * b] for b in range(32)]

    def decode(chosen: list[int]) -> torch.Tensor:
        copies = [BlockCopy(table[full], tables[b][full], partial) for b in chosen if partial]
        parts = [(branches[b], tables[b], prefix) for b in chosen]
        first = runner.forward(step(*[(ids, own, p, p + 1) for ids, own, p in parts], copies=copies))
        second = runner.forward(step(*[(ids, own, p + 1, p + 2) for ids, own, p in parts]))
        return torch.stack([first, second], 1)

    together = decode(list(range(32)))
    for start in range(0, 32, 7):
        chosen = list(range(start, min(start + 7, 32)))
        assert torch.equal(decode(chosen), together[chosen])
    for b in (0, 13, 31):
        assert torch.equal(decode([b])[0], together[b])
        assert torch.equal(whole(runner, branches[b])[prefix:], together[b])


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("family", MAIN)
def test_prefill_in_pieces_equals_prefill_at_once(family: str, cuts: list[int]) -> None:
    assert_pieces_equal_the_whole(runner_of(family), cuts)


@pytest.mark.parametrize("prefix", [38, 256, 261])
@pytest.mark.parametrize("family", MAIN)
def test_a_batch_of_1_equals_7_equals_32_and_each_branch_alone(family: str, prefix: int) -> None:
    assert_company_changes_nothing(runner_of(family), prefix)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(MAIN)))
def test_the_other_architectures_keep_the_same_promises(family: str) -> None:
    runner = runner_of(family)
    assert_pieces_equal_the_whole(runner, [16, 255, 257])
    assert_company_changes_nothing(runner, 261)


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe"])
def test_experts_of_a_real_width_keep_them_too(family: str) -> None:
    # Inner dimensions above 640 are cut; four rows of an expert and forty take different paths in BLAS.
    wide = {"hidden_size": 768, "intermediate_size": 896, "moe_intermediate_size": 896, "head_dim": 64}
    runner = runner_of(family, **wide, num_attention_heads=12, initializer_range=0.05)
    assert_pieces_equal_the_whole(runner, [1, 16, 255, 257])


ODD = {
    "Llama": {"hidden_size": 300, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 100},
    "Qwen2Moe": {
        "hidden_size": 200,
        "head_dim": 50,
        "moe_intermediate_size": 99,
        "shared_expert_intermediate_size": 77,
    },
    "GptOss": {"hidden_size": 720, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 64},
    "Gemma2": {"hidden_size": 256, "num_key_value_heads": 1, "head_dim": 256},
}


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("family", ODD)
def test_widths_that_leave_remainders_keep_them_on_several_threads(family: str, threads: int) -> None:
    # Activations of odd width are cut for the threads amid a vector; few outputs make BLAS cut the rows.
    torch.set_num_threads(threads)
    runner = runner_of(family, **ODD[family], intermediate_size=1365, initializer_range=0.05)
    assert_pieces_equal_the_whole(runner, [3, 64, 258, 299])
    assert_company_changes_nothing(runner, 261)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_embeddings_do_not_look_at_the_longest_row(kind: str) -> None:
    rope = {
        "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
        "longrope": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 8,
            "long_factor": [1.5 + i for i in range(8)],
            "original_max_position_embeddings": 128,
            "factor": 8.0,
        },
    }[kind]
    family = "Phi3" if kind == "longrope" else "Llama"
    runner = runner_of(family, rope_parameters=rope, original_max_position_embeddings=128)
    assert_pieces_equal_the_whole(runner, [100, 128, 129])
    short, long = tokens(30), tokens(LENGTH, seed=2)
    alone = whole(runner, short)
    beside = runner.forward(step((short, [0, 1], 0, 30), (long, list(range(40, 60)), 0, LENGTH)))
    assert torch.equal(beside[:30], alone)
