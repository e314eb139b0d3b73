"""Scenarios S1-S12, S17-S19, S30-S34 and S36 of the cache study: what is shared, and that sharing changes nothing."""

from __future__ import annotations

import itertools
import random

import pytest
from canary import VOCAB, CanaryFault, greedy_of, scores_of
from engine_kit import Kit, request, results

from furcate.kernels.layout import BLOCK_SIZE
from furcate.runtime.errors import EngineFailed
from furcate.runtime.namespaces import Namespace
from furcate.runtime.requests import Branch
from furcate.runtime.step import StepBuilder

B = BLOCK_SIZE
TEXT = [(7 * i + i // 61) % 61 for i in range(1024)]


def table(branch: Branch) -> list[int]:
    return list(branch._sequence.table)  # type: ignore[attr-defined]


def slots(kit: Kit, block: int) -> list[object]:
    return list(kit.runner.slots[block * B : (block + 1) * B])


def warm(kit: Kit, tokens: list[int]) -> Branch:
    branch = kit.root(tokens)
    kit.generate(branch, 0)
    return branch


def test_s1_a_shared_full_prefix_is_reused_in_the_same_blocks() -> None:
    kit = Kit(16)
    first = warm(kit, TEXT[: 3 * B])
    blocks = table(first)
    first.release()
    second = kit.root([*TEXT[: 3 * B], 60])
    assert kit.generate(second, 0).usage.cached == 3 * B
    assert table(second)[:3] == blocks
    assert kit.stat("tokens_computed") == 3 * B + 1


@pytest.mark.parametrize("length", [3 * B - 1, 3 * B, 3 * B + 1])
def test_s2_an_exact_repeat_computes_no_token_and_gives_the_same(length: int) -> None:
    kit = Kit(16)
    outcomes = [kit.generate(kit.root(TEXT[:length]), 4) for _ in range(4)]
    assert {outcome.tokens for outcome in outcomes} == {tuple(greedy_of(TEXT[:length], 4))}
    assert [outcome.usage.cached for outcome in outcomes] == [0, length, length, length]
    assert kit.stat("tokens_computed") == length + 3
    assert kit.stat("query_rows") == 3 * 3  # the first token's logits were kept, those of generated tips were not


def test_s3_divergence_inside_a_block_copies_and_leaves_the_first_as_it_was() -> None:
    kit = Kit(16)
    first = warm(kit, TEXT[: 2 * B + 5])
    tail = table(first)[2]
    before = slots(kit, tail)
    second = kit.root([*TEXT[: 2 * B + 3], 60, 60, 60])
    assert kit.generate(second, 2).usage.cached == 2 * B + 3
    assert table(second)[2] != tail
    assert slots(kit, tail)[:5] == before[:5]
    assert list(kit.generate(first, 3).tokens) == greedy_of(TEXT[: 2 * B + 5], 3)


def test_s4_fork_then_write_makes_one_tail_a_branch() -> None:
    kit = Kit(32)
    parent = warm(kit, TEXT[: 2 * B + 5])
    children = parent.fork(4)
    parent.release()
    assert kit.stat("blocks_referenced") == 3
    for i, child in enumerate(children):
        child.append([i])
        child.generate(request(1))
    kit.drain()
    assert kit.stat("blocks_referenced") == 2 + 4
    assert kit.stat("blocks_copied") == 3  # the last owner writes in place
    assert kit.engine.cache.pool.num_tables(table(children[0])[0]) == 4


def test_s5_a_fork_that_nobody_writes_to_costs_nothing() -> None:
    kit = Kit(16)
    parent = warm(kit, TEXT[: 2 * B + 5])
    before = kit.engine.stats()
    for child in parent.fork(4):
        child.release()
    assert kit.engine.stats() == before
    assert kit.engine.cache.pool.num_tables(table(parent)[2]) == 1


def test_s6_the_last_owner_writes_in_place() -> None:
    kit = Kit(16)
    parent = warm(kit, TEXT[: 2 * B + 5])
    dropped, kept = parent.fork(2)
    parent.release()
    dropped.release()
    kept.append([60])
    kit.generate(kept, 1)
    assert kit.stat("blocks_copied") == 0


def test_s7_both_ends_of_a_queued_copy_stay_until_it_has_run() -> None:
    kit = Kit(4)
    parent = warm(kit, TEXT[: 2 * B + 5])
    (child,) = parent.fork(1)
    child.append([40])
    ticket = child.generate(request(2))
    kit.engine._take_commands()
    plan = kit.engine.scheduler.plan()
    (copy,) = kit.engine.cache.pool.pending_copies
    parent.release()
    child.release()
    newcomer = kit.root(TEXT[500:548])
    newcomer.generate(request(1))
    kit.engine._take_commands()
    assert not {copy.source, copy.target} & set(kit.engine.cache.pool.free_blocks())
    plan.builder.abort()
    kit.engine.check_integrity()
    kit.drain()
    assert ticket.done
    assert list(newcomer.tokens())[48:] == greedy_of(TEXT[500:548], 1)


def test_s8_a_fork_at_a_block_edge_copies_nothing() -> None:
    kit = Kit(16)
    parent = warm(kit, TEXT[: 2 * B])
    children = parent.fork(3)
    for i, child in enumerate(children):
        child.append([i])
        child.generate(request(1))
    kit.drain()
    assert kit.stat("blocks_copied") == 0
    assert kit.stat("blocks_referenced") == 2 + 3


@pytest.mark.parametrize("step_tokens", [16, 40, 512])
def test_s9_a_cold_fork_computes_its_trunk_once_whatever_the_chunks(step_tokens: int) -> None:
    kit = Kit(64, max_step_tokens=step_tokens)
    children = kit.root(TEXT[:100]).fork(6)
    for i, child in enumerate(children):
        child.append([i, 60])
    tickets = [child.generate(request(3)) for child in children]
    kit.drain()
    assert kit.stat("tokens_computed") == 100 + 6 * (2 + 2)
    assert len(set(kit.runner.computed)) == len(kit.runner.computed)
    for i, outcome in enumerate(results(tickets)):
        assert list(outcome.tokens) == greedy_of([*TEXT[:100], i, 60], 3)


def test_s9_branches_of_a_trunk_in_chunks_wait_without_blocks_of_their_own() -> None:
    kit = Kit(64, max_step_tokens=32)
    children = kit.root(TEXT[:200]).fork(8)
    for i, child in enumerate(children):
        child.append([i])
        child.generate(request(1))
    for _ in range(5):
        kit.engine.step()
        assert kit.stat("blocks_referenced") <= -(-200 // B)
    kit.drain()


def test_s9_calls_that_arrive_while_the_trunk_is_computed_take_what_is_there() -> None:
    kit = Kit(64, max_step_tokens=32)
    tickets = []
    for _ in range(4):
        tickets.append(kit.root(TEXT[:150]).generate(request(2)))
        kit.engine.step()
    kit.drain()
    assert kit.stat("tokens_computed") == 150 + 1
    assert sum(outcome.usage.prefilled for outcome in results(tickets)) == 150


def test_s9_scores_and_generations_share_one_cold_prefill() -> None:
    kit = Kit(64, max_step_tokens=64)
    calls = [kit.root(TEXT[:150]).score(request_scores([[1, 2], [1, 3], [4]])) for _ in range(3)]
    generations = [kit.root(TEXT[:150]).generate(request(1)) for _ in range(3)]
    kit.drain()
    assert kit.stat("tokens_computed") == 150 + 1  # the inner node [1] of the trie is computed once as well
    assert kit.stat("query_rows") <= 1
    for call in calls:
        assert call.result().logprobs[0] == pytest.approx(scores_of(TEXT[:150], [1, 2]))
    for generation in generations:
        assert list(generation.result().tokens) == greedy_of(TEXT[:150], 1)


def test_s9_a_header_that_branches_write_one_after_another_is_computed_once() -> None:
    kit = Kit(64, max_step_tokens=16)
    parent = warm(kit, TEXT[:40])
    children = parent.fork(5)
    for i, child in enumerate(children):
        child.append([60, 59, 58, 57, i])
    tickets = []
    for child in children:  # each a step after the other
        tickets.append(child.generate(request(1)))
        kit.engine.step()
    kit.drain()
    assert kit.stat("tokens_computed") == 40 + 4 + 5
    assert [outcome.usage.prefilled for outcome in results(tickets)] == [5, 1, 1, 1, 1]


def test_s9_samplers_that_come_later_to_a_tip_pay_no_row() -> None:
    kit = Kit(64)
    parent = kit.root(TEXT[:40])
    kit.generate(parent, 1)
    parent.truncate(40)
    rows = sum(batch.num_rows for batch in kit.runner.batches)
    for child in parent.fork(3):
        assert list(kit.generate(child, 1).tokens) == greedy_of(TEXT[:40], 1)
    kit.score(parent, [[5], [6]])
    assert sum(batch.num_rows for batch in kit.runner.batches) == rows
    kit.engine.cache.tips.use(parent._sequence.node)  # type: ignore[attr-defined]
    parent.release()
    kit.engine.flush()
    assert list(kit.generate(kit.root(TEXT[:40]), 1).tokens) == greedy_of(TEXT[:40], 1)
    assert sum(batch.num_rows for batch in kit.runner.batches) == rows + 40


def test_s10_a_prompt_that_is_computed_in_the_same_step_is_read_after_it_is_written() -> None:
    kit = Kit(64)
    tickets = [kit.root([*TEXT[:50], *tail]).generate(request(3)) for tail in ([], [1], [1, 2], [2])]
    kit.engine.step()
    assert kit.stat("tokens_computed") == 50 + 2 + 1
    kit.drain()
    for tail, outcome in zip(([], [1], [1, 2], [2]), results(tickets), strict=True):
        assert list(outcome.tokens) == greedy_of([*TEXT[:50], *tail], 3)


def test_s11_what_a_sibling_took_of_a_chunked_prefill_outlives_its_abort() -> None:
    kit = Kit(64, max_step_tokens=32)
    first, second = kit.root(TEXT[:120]), kit.root(TEXT[:100])
    a, b = first.generate(request(3)), second.generate(request(3))
    kit.engine.step()
    first.release()
    kit.drain()
    assert a.done
    assert list(b.result().tokens) == greedy_of(TEXT[:100], 3)
    assert kit.stat("tokens_computed") == 100 + 2


def test_s12_duplicates_of_a_race_leave_one_cached_copy_and_both_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit(64)
    first, second = kit.root(TEXT[:40]), kit.root(TEXT[:40])
    tickets = [first.generate(request(6)), second.generate(request(6))]
    with monkeypatch.context() as patch:
        patch.setattr(StepBuilder, "shared", lambda *_: [])  # as if neither could see the other
        kit.engine.step()
    assert kit.stat("tokens_computed") == 80
    kit.drain()
    assert [list(outcome.tokens) for outcome in results(tickets)] == [greedy_of(TEXT[:40], 6)] * 2
    second.release()
    first.release()
    assert kit.stat("blocks_cached") == -(-45 // B)


def test_s17_equal_hashes_of_different_prompts_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("step", "integrity", "forecast"):
        monkeypatch.setattr(f"furcate.runtime.{module}.hash", lambda _: 7, raising=False)
    kit = Kit(64)
    prompts = [[i, *TEXT[:40]] for i in range(4)]
    tickets = [kit.root(prompt).generate(request(4)) for prompt in prompts]
    kit.drain()
    for prompt, outcome in zip(prompts, results(tickets), strict=True):
        assert list(outcome.tokens) == greedy_of(prompt, 4)
        assert outcome.usage.cached == outcome.usage.shared == 0


NAMES = [
    str(Namespace(*parts))
    for parts in itertools.product(["m"], ["v1", "v2"], ["", "lora"], ["", "tenant"])
] + [str(Namespace("m", "v1lora")), str(Namespace("mv1", "lora"))]  # fmt: skip


def test_s18_namespaces_share_nothing() -> None:
    assert len(set(NAMES)) == len(NAMES)
    kit = Kit(64)
    for name in NAMES:
        assert kit.generate(kit.root(TEXT[:40], name), 1).usage.cached == 0
    assert kit.stat("tokens_computed") == 40 * len(NAMES)


def test_s18_flushing_one_namespace_leaves_the_others() -> None:
    kit = Kit(64)
    for name in ("a", "b"):
        kit.generate(kit.root(TEXT[:40], name), 1)
    assert kit.engine.flush("a") == 3
    assert kit.engine.flush("nobody") == 0
    assert kit.generate(kit.root(TEXT[:40], "b"), 0).usage.cached == 40
    assert kit.generate(kit.root(TEXT[:40], "a"), 0).usage.cached == 0


def test_s19_calls_that_run_while_their_namespace_is_flushed_end_right_and_reuse_nothing_old() -> None:
    kit = Kit(64)
    idle = warm(kit, TEXT[100:140])
    running = kit.root(TEXT[:40]).generate(request(8))
    for _ in range(3):
        kit.engine.step()
    kit.engine.flush()
    assert kit.stat("blocks_free") == 64
    kit.drain()
    usage = running.result().usage
    assert list(running.result().tokens) == greedy_of(TEXT[:40], 8)
    assert usage.recomputed == usage.repeated == 40 + 2
    again = kit.generate(idle, 2)
    assert list(again.tokens) == greedy_of(TEXT[100:140], 2)
    assert again.usage.missed_because == {"flushed": 40}


@pytest.mark.parametrize("num_blocks", [6, 64])
def test_s30_a_hit_equals_a_miss_at_every_cut(num_blocks: int) -> None:
    prompt = TEXT[: 3 * B + 3]
    expected = greedy_of(prompt, 4)
    for cut in range(1, len(prompt) + 1):
        kit = Kit(num_blocks)
        warm(kit, prompt[:cut]).release()
        if num_blocks == 6:
            warm(kit, TEXT[500 : 500 + 30]).release()  # the pool is full
        outcome = kit.generate(kit.root(prompt), 4)
        assert list(outcome.tokens) == expected
        assert outcome.usage.cached == cut


def test_s31_a_perturbed_slot_is_seen() -> None:
    kit = Kit(16)
    branch = warm(kit, TEXT[:40])
    first, second = table(branch)[:2]
    kit.runner.slots[first * B] = kit.runner.slots[second * B]
    branch.append([1])
    ticket = branch.generate(request(1))
    kit.drain()
    with pytest.raises(EngineFailed) as caught:
        ticket.result()
    assert isinstance(caught.value.__cause__, CanaryFault)


def test_s32_a_turn_reuses_what_the_turn_before_generated() -> None:
    kit = Kit(64)
    branch = kit.root(TEXT[:100])
    kit.generate(branch, 50)
    branch.append(TEXT[300:350])
    usage = kit.generate(branch, 1).usage
    assert usage.cached == 149  # the last generated token's KV is left to this call
    other = kit.root(list(branch.tokens()))
    assert kit.generate(other, 1).usage.cached == 200


def request_scores(sequences: list[list[int]]):  # type: ignore[no-untyped-def]  # a ScoreRequest
    from furcate.runtime.requests import ScoreRequest  # noqa: PLC0415 - used here only

    return ScoreRequest(tuple(tuple(sequence) for sequence in sequences))


def test_s33_scores_equal_plain_forwards_and_compute_the_context_once() -> None:
    kit = Kit(64)
    choices = [[i, (3 * i) % VOCAB, 5] for i in range(8)]
    scored = kit.score(kit.root(TEXT[:100]), choices)
    assert kit.stat("tokens_computed") == 100 + 8 * 2  # the last token of a choice is never computed
    for choice, logprobs in zip(choices, scored.logprobs, strict=True):
        assert logprobs == pytest.approx(scores_of(TEXT[:100], choice))


@pytest.mark.parametrize("seed", range(5))
def test_s34_branches_of_a_nested_fork_dropped_in_any_order_leave_the_winners_path(seed: int) -> None:
    kit = Kit(128)
    leaves = [kit.root(TEXT[:20])]
    inner: list[Branch] = []
    for level in range(3):
        inner += leaves
        children = [child for leaf in leaves for child in leaf.fork(3)]
        for i, child in enumerate(children):
            child.append([i % 3 + 10 * level] * 5)
        leaves = children
    tickets = [leaf.generate(request(2)) for leaf in leaves]
    kit.drain()
    assert all(ticket.done for ticket in tickets)
    dropped = [*inner, *leaves[1:]]
    random.Random(seed).shuffle(dropped)
    for branch in dropped:
        branch.release()
        kit.engine.check_integrity()
    winner = leaves[0]
    assert kit.stat("blocks_referenced") == len(table(winner)) == 3
    assert list(winner.tokens())[35:] == greedy_of([*TEXT[:20], *[0] * 5, *[10] * 5, *[20] * 5], 2)


def test_s36_a_table_holds_nothing_beyond_the_resident_tokens() -> None:
    kit = Kit(16)
    branch = warm(kit, TEXT[:70])
    for length in (65, 64, 33, 32, 1):
        branch.truncate(length)
        kit.engine.check_integrity()
        assert len(table(branch)) == -(-length // B)
    branch.append(TEXT[500:520])
    assert list(kit.generate(branch, 3).tokens) == greedy_of([TEXT[0], *TEXT[500:520]], 3)


def test_branches_that_say_the_same_hold_and_compute_what_one_does() -> None:
    kit = Kit(64)
    parent = warm(kit, TEXT[:40])
    children = parent.fork(6)
    parent.release()
    tickets = [child.generate(request(30)) for child in children]
    kit.drain()
    assert kit.stat("tokens_computed") == 40 + 29
    assert kit.stat("blocks_referenced") == -(-69 // B)
    assert kit.stat("blocks_copied") == 0
    assert kit.stat("tree_nodes") <= 2
    assert {outcome.tokens for outcome in results(tickets)} == {tuple(greedy_of(TEXT[:40], 30))}
    children[0].append([5])
    assert list(kit.generate(children[0], 3).tokens) == greedy_of([*TEXT[:40], *greedy_of(TEXT[:40], 30), 5], 3)
    assert list(kit.generate(children[1], 3).tokens) == greedy_of([*TEXT[:40], *greedy_of(TEXT[:40], 30)], 3)


def test_a_newcomer_takes_the_token_that_another_call_decodes_in_the_same_step() -> None:
    kit = Kit(64)
    said = greedy_of(TEXT[:20], 10)
    first = kit.root(TEXT[:20]).generate(request(10))
    for _ in range(3):
        kit.engine.step()
    second = kit.root([*TEXT[:20], *said]).generate(request(1))
    kit.drain()
    assert kit.stat("tokens_computed") == 20 + 10
    assert list(first.result().tokens) == said
    assert list(second.result().tokens) == greedy_of([*TEXT[:20], *said], 1)


def test_a_prompt_whose_end_was_evicted_has_lost_its_logits() -> None:
    kit = Kit(8)
    branch = kit.root(TEXT[:40])
    kit.generate(branch, 1)
    branch.release()
    assert kit.engine.cache.make_room(6, list)
    assert list(kit.generate(kit.root(TEXT[:32]), 1).tokens) == greedy_of(TEXT[:32], 1)


def test_a_call_that_had_to_wait_for_rows_meets_the_row_that_decodes_its_next_token() -> None:
    kit = Kit(64, max_step_tokens=8)
    said = greedy_of(TEXT[:20], 60)
    first = kit.root(TEXT[:20]).generate(request(60))
    for _ in range(4):
        kit.engine.step()
    kit.root(TEXT[300:400]).generate(request(1))  # takes all rows that decoding leaves
    second = kit.root([*TEXT[:20], *said[:40]]).generate(request(1))
    kit.drain()
    assert kit.stat("tokens_computed") == 20 + 59 + 100
    assert list(first.result().tokens) == said
    assert list(second.result().tokens) == said[40:41]
