"""A forward pass gives each row the same bits, however its prefix came to be and whatever runs beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from packed_steps import step, tokens, whole
from torch import nn

from furcate.kernels.layout import BLOCK_SIZE, BlockCopy, StepBatch
from furcate.runtime.errors import ModelLoadError, UnsupportedByBackend
from furcate.runtime.linear import FastLinear, InvariantLinear, TiledLinear, is_row_invariant
from furcate.runtime.model_runner import ModelRunner, bytes_per_block
from furcate.runtime.models.loaded import LoadedModel
from furcate.runtime.models.loading import load_model
from furcate.runtime.models.tiny import load_tiny


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def runner() -> ModelRunner:
    return ModelRunner(load_model("test:tiny"), num_blocks=256)


@pytest.mark.parametrize("cuts", [[1], [299], [16, 256], [100, 101, 102, 290], [7, 255, 257]])
def test_prefill_in_pieces_equals_prefill_at_once(runner: ModelRunner, cuts: list[int]) -> None:
    ids = tokens(300)
    table = list(range(20, 40))
    parts = [
        runner.forward(step((ids, table, start, stop))) for start, stop in zip([0, *cuts], [*cuts, 300], strict=True)
    ]
    assert torch.equal(torch.cat(parts), whole(runner, ids))


def test_token_by_token_equals_prefill(runner: ModelRunner) -> None:
    ids = tokens(24)
    parts = [runner.forward(step((ids, [3, 9], position, position + 1))) for position in range(24)]
    assert torch.equal(torch.cat(parts), whole(runner, ids))


@pytest.mark.parametrize("prefix", [35, 256, 270])
def test_forked_branches_equal_the_same_branches_alone(runner: ModelRunner, prefix: int) -> None:
    trunk = tokens(prefix)
    table = list(range(prefix // BLOCK_SIZE + 1))
    runner.forward(step((trunk, table, 0, prefix)))
    branches = [trunk + tokens(9, seed=b + 1) for b in range(5)]
    full, partial = prefix // BLOCK_SIZE, prefix % BLOCK_SIZE
    tables = [[*range(full), 40 + 2 * b, 41 + 2 * b] for b in range(5)]
    copies = [BlockCopy(table[full], own[full], partial) for own in tables if partial]
    parts = [(ids, own, prefix, prefix + 3) for ids, own in zip(branches, tables, strict=True)]
    first = runner.forward(step(*parts, copies=copies)).view(5, 3, -1)
    rest = [
        runner.forward(step(*[(ids, own, p, p + 1) for ids, own, _, _ in parts])) for p in range(prefix + 3, prefix + 9)
    ]
    for b, ids in enumerate(branches):
        alone = whole(runner, ids)[prefix:]
        assert torch.equal(first[b], alone[:3])
        assert torch.equal(torch.stack([logits[b] for logits in rest]), alone[3:])


def test_a_trunk_and_its_branches_may_share_a_step(runner: ModelRunner) -> None:
    trunk = tokens(35)
    branches = [trunk + tokens(4, seed=b + 1) for b in range(2)]
    tables = [[0, 1, 2], [0, 1, 3]]
    batch = step((trunk, [0, 1, 2], 0, 35), *[(branches[b], tables[b], 35, 39) for b in range(2)])
    # The trunk's rows of the partial block go to the second branch's own block as well.
    batch = StepBatch(
        batch.token_ids,
        batch.positions,
        batch.row_tables,
        batch.tables,
        [*batch.write_rows, 32, 33, 34],
        [*batch.write_slots, 48, 49, 50],
        batch.logit_rows,
    )
    logits = runner.forward(batch)
    for b in range(2):
        assert torch.equal(logits[35 + 4 * b : 39 + 4 * b], whole(runner, branches[b])[35:])


def test_a_query_only_row_writes_nothing_and_sees_the_same(runner: ModelRunner) -> None:
    ids = tokens(50)
    before = runner.forward(step((ids, [0, 1, 2, 3], 0, 50)))
    pools = [pool.clone() for layer in range(2) for pool in runner.backend.kv_pool(layer)]
    again = runner.forward(StepBatch([ids[49]], [49], [0], [[0, 1, 2, 3]], [], [], [0]))
    assert torch.equal(again[0], before[49])
    after = [pool for layer in range(2) for pool in runner.backend.kv_pool(layer)]
    assert all(torch.equal(a, b) for a, b in zip(pools, after, strict=True))


def test_logits_come_only_for_the_rows_asked_for(runner: ModelRunner) -> None:
    ids = tokens(20)
    every = runner.forward(step((ids, [0, 1], 0, 20)))
    batch = step((ids, [2, 3], 0, 20))
    some = StepBatch(
        batch.token_ids, batch.positions, batch.row_tables, batch.tables, batch.write_rows, batch.write_slots, [3, 19]
    )
    assert torch.equal(runner.forward(some), every[[3, 19]])
    none = StepBatch(
        batch.token_ids, batch.positions, batch.row_tables, batch.tables, batch.write_rows, batch.write_slots, []
    )
    assert runner.forward(none).shape == (0, 260)
    assert runner.forward(none).dtype == torch.float32


def test_garbage_in_unwritten_slots_does_not_leak(runner: ModelRunner) -> None:
    ids = tokens(40)
    want = whole(runner, ids)
    for layer in range(2):
        for pool in runner.backend.kv_pool(layer):
            pool[:10] = float("nan")
    assert torch.equal(runner.forward(step((ids, [4, 2, 7], 0, 40))), want)


def test_bits_do_not_depend_on_an_odd_number_of_threads() -> None:
    loaded = load_tiny()
    for layer in loaded.module.model.layers:
        layer.mlp.act_fn = nn.GELU(approximate="tanh")  # its scalar and vector code differ the most
    runner = ModelRunner(loaded, num_blocks=256)
    ids = tokens(772)  # a third of the activations, 772 * 128 / 3, is no multiple of a vector register
    torch.set_num_threads(2)
    want = whole(runner, ids)
    torch.set_num_threads(3)
    assert torch.equal(whole(runner, ids), want)
    assert torch.get_num_threads() == 3


def test_without_determinism_logits_agree_closely(runner: ModelRunner) -> None:
    fast = ModelRunner(load_model("test:tiny"), num_blocks=256, deterministic=False)
    ids = tokens(40)
    fast.forward(step((ids, [0, 1, 2], 0, 39)))
    got = fast.forward(step((ids, [0, 1, 2], 39, 40)))
    assert (got[0] - whole(runner, ids)[39]).abs().max() < 1e-4


def test_determinism_is_refused_where_it_cannot_be_kept() -> None:
    with pytest.raises(UnsupportedByBackend, match="fp32 on a CPU"):
        ModelRunner(load_tiny(dtype=torch.bfloat16), num_blocks=8)
    loaded = load_tiny()
    loaded.config.num_local_experts = 4
    with pytest.raises(UnsupportedByBackend, match=r"experts of LlamaForCausalLM.*deterministic=False"):
        ModelRunner(loaded, num_blocks=8)


def test_an_unknown_architecture_whose_rows_depend_on_each_other_is_refused() -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean()

    loaded = load_tiny()
    loaded.config.model_type = "unheard_of"
    ModelRunner(loaded, num_blocks=8)
    loaded.module.model.layers[0].mlp.act_fn = Mean()
    with pytest.raises(UnsupportedByBackend, match=r"depends on the rows beside it.*deterministic=False"):
        ModelRunner(loaded, num_blocks=8)


def test_bfloat16_runs_without_determinism(runner: ModelRunner) -> None:
    half = ModelRunner(load_tiny(dtype=torch.bfloat16), num_blocks=256, deterministic=False)
    ids = tokens(30)
    logits = whole(half, ids)
    assert logits.dtype == torch.float32
    assert (logits - whole(runner, ids)).abs().mean() < 0.5


def test_a_pool_larger_than_memory_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"KV pool of 160000000000 tokens takes 81920\.0 GB.*smaller kv_tokens"):
        ModelRunner(load_tiny(), num_blocks=10**10)


def test_geometry_of_the_pool(runner: ModelRunner) -> None:
    loaded: LoadedModel = runner.loaded
    assert (runner.num_blocks, runner.vocab_size) == (256, 260)
    assert (list(runner.kv_shape.kv_heads), list(runner.kv_shape.head_dim)) == ([2, 2], [16, 16])
    assert bytes_per_block(loaded) == 2 * 16 * 2 * (2 * 16) * 4


LINEARS = [(576, 576), (192, 576), (1536, 576), (576, 1536), (128, 64), (896, 4864)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", LINEARS)
def test_a_row_of_a_linear_is_the_same_in_every_batch(shape: tuple[int, int], threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(1)
    weight, rows = torch.randn(shape, generator=generator), torch.randn(512, shape[1], generator=generator)
    chosen = InvariantLinear if is_row_invariant(weight) else TiledLinear
    linear = chosen(weight, torch.randn(shape[0], generator=generator))
    with torch.inference_mode():
        whole_batch = linear(rows)
        for count in (4, 8, 16, 32, 36, 128, 512):
            for start in {0, 3, 512 - count} if count < 512 else {0}:
                assert torch.equal(linear(rows[start : start + count]), whole_batch[start : start + count])


@pytest.mark.parametrize("kind", [InvariantLinear, TiledLinear, FastLinear])
@pytest.mark.parametrize("shape", [(7, 5), (576, 1536)])
def test_every_kind_of_linear_computes_the_product(kind: type[InvariantLinear], shape: tuple[int, int]) -> None:
    plain = nn.Linear(shape[1], shape[0]).double()
    single = nn.Linear(shape[1], shape[0])
    single.load_state_dict(plain.state_dict())
    linear = kind(single.weight, single.bias)
    for count in (1, 4, 19):
        x = torch.randn(2, count, shape[1])
        with torch.no_grad():
            assert (linear(x) - plain(x.double())).abs().max() < 1e-4
