"""Who runs when: sharing of prefill, the token budget, admission, progress in small pools, preemption."""

from __future__ import annotations

import pytest
from canary import greedy_of, scores_of
from engine_kit import Kit, request, results

from furcate.runtime.errors import ContextOverflow
from furcate.runtime.hints import Hints

TRUNK = [(7 * i + i // 61) % 61 for i in range(1024)]


def test_a_cold_fork_computes_the_trunk_once_and_holds_it_once() -> None:
    kit = Kit(256, check_every_step=False)
    children = kit.root(TRUNK).fork(16)
    for i, child in enumerate(children):
        child.append([i])
    tickets = [child.generate(request(4)) for child in children]
    kit.drain()
    kit.engine.check_integrity()
    assert kit.stat("tokens_computed") == 1024 + 16 * (1 + 3)
    assert len(set(kit.runner.computed)) == len(kit.runner.computed)
    assert kit.stat("blocks_referenced") == 64 + 16
    for i, result in enumerate(results(tickets)):
        assert list(result.tokens) == greedy_of([*TRUNK, i], 4)
        assert result.usage.prefilled == (1025 if i == 0 else 1)
        assert result.usage.shared == (0 if i == 0 else 1024)


def test_a_warm_fork_computes_own_tokens_only_and_copies_at_most_one_block_each() -> None:
    kit = Kit(256, check_every_step=False)
    parent = kit.root(TRUNK[:1000])
    kit.generate(parent, 0)
    children = parent.fork(16)
    for i, child in enumerate(children):
        child.append([i])
    tickets = [child.generate(request(4)) for child in children]
    kit.drain()
    kit.engine.check_integrity()
    assert kit.stat("tokens_computed") == 1000 + 16 * 4
    assert kit.stat("blocks_copied") == 16  # the parent still owns its partial block
    assert all(result.usage.copied_blocks == 1 and result.usage.shared == 1000 for result in results(tickets))
    assert kit.stat("blocks_referenced") == 63 + 16


def test_unrelated_calls_with_one_prompt_share_its_prefill() -> None:
    kit = Kit(64)
    tickets = [kit.root(TRUNK[:100]).generate(request(2)) for _ in range(5)]
    kit.drain()
    assert kit.stat("tokens_computed") == 101  # the greedy tokens are the same as well
    assert [result.usage.shared for result in results(tickets)] == [0, 100, 100, 100, 100]


def test_equal_turn_headers_of_several_branches_are_computed_once() -> None:
    kit = Kit(64)
    children = kit.root(TRUNK[:40]).fork(3)
    for i, child in enumerate(children):
        child.append([60, 59, 58, i])
    tickets = [child.generate(request(1)) for child in children]
    kit.drain()
    assert kit.stat("tokens_computed") == 40 + 3 + 3
    for i, result in enumerate(results(tickets)):
        assert list(result.tokens) == greedy_of([*TRUNK[:40], 60, 59, 58, i], 1)


def test_samplers_at_one_tip_share_one_row_of_logits() -> None:
    kit = Kit(64)
    parent = kit.root(TRUNK[:40])
    kit.generate(parent, 0)
    kit.runner.batches.clear()
    for child in parent.fork(8):
        child.generate(request(1))
    kit.drain()
    (batch,) = kit.runner.batches
    assert (batch.num_rows, len(batch.logit_rows), len(batch.write_rows)) == (1, 1, 0)
    assert len(kit.sampler.rows) == 8


def test_a_full_hit_computes_its_last_position_query_only() -> None:
    kit = Kit(64)
    kit.generate(kit.root(TRUNK[:48]), 0)
    kit.runner.batches.clear()
    again = kit.root(TRUNK[:48])
    assert kit.generate(again, 1).usage.cached == 48
    (batch,) = kit.runner.batches
    assert list(batch.positions) == [47]
    assert not batch.write_slots


def test_a_prefill_keeps_to_the_budget_and_never_starves_decoding() -> None:
    kit = Kit(256, max_step_tokens=32)
    decoding = kit.root([1, 2, 3])
    first = decoding.generate(request(40))
    kit.engine.step()
    long = kit.root(TRUNK[:400]).generate(request(1))
    second = kit.root([4, 5, 6]).generate(request(40))
    steps = 0
    while not long.done:
        before = len(kit.sampler.rows)
        kit.engine.step()
        steps += 1
        assert len(kit.sampler.rows) > before or long.done
    assert steps <= 15
    kit.drain()
    assert max(batch.num_rows for batch in kit.runner.batches) <= 32
    assert list(first.result().tokens) == greedy_of([1, 2, 3], 40)
    assert list(second.result().tokens) == greedy_of([4, 5, 6], 40)


def test_an_old_prefill_leaves_rows_to_those_that_decode() -> None:
    kit = Kit(256, max_step_tokens=16)
    long = kit.root(TRUNK[:200]).generate(request(1))
    short = [kit.root([i, 1]).generate(request(5)) for i in range(3)]
    steps = 0
    while not all(ticket.done for ticket in short):
        kit.engine.step()
        steps += 1
    assert steps <= 20
    kit.drain()
    assert list(long.result().tokens) == greedy_of(TRUNK[:200], 1)


def test_decoding_calls_leave_a_quarter_of_the_rows_to_prefill() -> None:
    kit = Kit(256, max_step_tokens=32)
    decoding = [kit.root([i, 1]).generate(request(60)) for i in range(40)]
    while sum(batch.num_rows for batch in kit.runner.batches[-1:]) < 24:
        kit.engine.step()
    decoding[0].cancel()
    decoding[1].cancel()
    long = kit.root(TRUNK[:64]).generate(request(1, program=1))
    before = len(kit.runner.batches)
    while not long.done:
        kit.engine.step()
    started = next(i for i, b in enumerate(kit.runner.batches[before:], before) if max(b.positions) > 62)
    assert started - before <= 70  # 24 calls run, then it is its turn: 64 tokens, at least 8 a step
    assert max(batch.num_rows for batch in kit.runner.batches) <= 32


def test_twenty_calls_pass_through_a_pool_barely_larger_than_one() -> None:
    kit = Kit(6, max_step_tokens=64)
    prompts = [[i, *TRUNK[:60]] for i in range(20)]
    tickets = [kit.root(prompt).generate(request(30)) for prompt in prompts]
    kit.drain(limit=20 * 40)
    for prompt, result in zip(prompts, results(tickets), strict=True):
        assert list(result.tokens) == greedy_of(prompt, 30)
    assert kit.stat("preemptions") == 0


def test_a_call_that_exactly_fills_the_pool_after_a_hit_inside_a_block_finishes() -> None:
    kit = Kit(3)
    kit.generate(kit.root(TRUNK[:40]), 0)
    prompt = [*TRUNK[:35], 60]
    assert list(kit.generate(kit.root(prompt), 13).tokens) == greedy_of(prompt, 13)


def test_a_scored_branch_that_fills_the_pool_gives_way_to_its_own_chains() -> None:
    kit = Kit(3)
    branch = kit.root(TRUNK[:35])
    kit.generate(branch, 0)
    kit.score(branch, [[1] * 13, [2] * 13, [1, 2, 3]])
    assert list(kit.generate(branch, 5).tokens) == greedy_of(TRUNK[:35], 5)


def test_a_scored_branch_that_can_copy_nothing_gets_on_without_the_copy() -> None:
    """Four blocks would be needed while a partial block is copied; there are three."""
    kit = Kit(3, max_step_tokens=3)
    choices = [[1, 0, 2], [], [0, 2, 0], [0], [0, 0, 1, 2, 2, 2], [2, 0]]
    scored = kit.score(kit.root(TRUNK[:29]), choices)
    for choice, logprobs in zip(choices, scored.logprobs, strict=True):
        assert logprobs == pytest.approx(scores_of(TRUNK[:29], choice))


def test_idle_branches_never_block_the_one_that_runs_and_are_made_again() -> None:
    kit = Kit(8)
    idle = [kit.root([i, *TRUNK[:40]]) for i in range(6)]
    for branch in idle:
        kit.generate(branch, 1)
    prompt = TRUNK[500:610]
    assert list(kit.generate(kit.root(prompt), 10).tokens) == greedy_of(prompt, 10)
    result = kit.generate(idle[0], 3)
    assert list(result.tokens) == greedy_of([*list(idle[0].tokens())[:-3]], 3)
    assert result.usage.recomputed == result.usage.prefilled - 1  # the last token's KV was never made
    assert result.usage.missed_because == {"evicted": 41, "new": 1}


def test_youngest_programs_lose_their_idle_kv_first() -> None:
    kit = Kit(8)
    branches = [kit.root([i, *TRUNK[:30]]) for i in range(3)]
    for program, branch in zip((3, 1, 2), branches, strict=True):
        kit.generate(branch, 0, program=program)
    kit.generate(kit.root(TRUNK[500:564]), 0, program=9)
    hits = [kit.engine.cache.tree.descend("\x00", None, branch.tokens(), 0) is not None for branch in branches]
    assert hits == [False, True, True]


def test_a_call_that_can_never_fit_is_refused_at_once_and_blocks_nobody() -> None:
    kit = Kit(4, max_context=60)
    for prompt, limit in ((TRUNK[:62], 60), (TRUNK[:55], 60)):
        ticket = kit.root(prompt).generate(request(8, label="judge/gen"))
        assert ticket.done
        with pytest.raises(ContextOverflow, match="judge/gen") as caught:
            ticket.result()
        assert (caught.value.needed, caught.value.limit) == (len(prompt) + 8, limit)
    assert len(kit.generate(kit.root([1, 2]), 3).tokens) == 3


def test_preemption_changes_no_result_and_counts_as_recomputation_not_as_hits() -> None:
    kit = Kit(32)
    branch = kit.root(TRUNK[:35])
    ticket = branch.generate(request(6))
    for _ in range(3):
        kit.engine.step()
    kit.engine.scheduler.preempt(kit.engine.scheduler.running[0])
    kit.engine.cache.evictor.evict(32)
    kit.drain()
    result = ticket.result()
    assert list(result.tokens) == greedy_of(TRUNK[:35], 6)
    assert (result.usage.cached, result.usage.shared, result.usage.prefilled) == (0, 0, 35)
    assert result.usage.recomputed == 35 + 2
    assert kit.stat("preemptions") == 1


def test_a_preempted_call_that_is_still_cached_is_not_recomputed() -> None:
    kit = Kit(32)
    ticket = kit.root(TRUNK[:35]).generate(request(6))
    for _ in range(3):
        kit.engine.step()
    kit.engine.scheduler.preempt(kit.engine.scheduler.running[0])
    kit.drain()
    assert ticket.result().usage.recomputed == 0
    assert kit.stat("tokens_computed") == 35 + 5


def test_dead_branches_are_evicted_before_anything_alive() -> None:
    kit = Kit(8)
    old = kit.root(TRUNK[:48])
    kit.generate(old, 0)
    old.release()
    dead = kit.root(TRUNK[100:148])
    kit.generate(dead, 0, hints=Hints(last_use=True))
    assert kit.stat("blocks_cached") == 6
    kit.generate(kit.root(TRUNK[200:280]), 0)
    assert kit.generate(kit.root(TRUNK[:48]), 0).usage.cached == 48


def test_without_the_plan_recency_decides() -> None:
    kit = Kit(8, plan=False)
    old = kit.root(TRUNK[:48])
    kit.generate(old, 0)
    old.release()
    dead = kit.root(TRUNK[100:148])
    kit.generate(dead, 0, hints=Hints(last_use=True))
    dead.release()
    kit.generate(kit.root(TRUNK[200:280]), 0)
    assert kit.generate(kit.root(TRUNK[:48]), 0).usage.cached < 48


def test_an_admitted_call_never_loses_what_it_hits() -> None:
    kit = Kit(4)
    done = kit.root(TRUNK[:48])
    kit.generate(done, 0)
    done.release()
    result = kit.generate(kit.root(TRUNK[:48]), 16)
    assert result.usage.cached == 48


def test_a_miss_tells_what_was_evicted_from_what_was_never_seen() -> None:
    kit = Kit(4)
    first = kit.root(TRUNK[:48])
    kit.generate(first, 0)
    first.release()
    second = kit.root(TRUNK[100:160])
    kit.generate(second, 0)
    second.release()
    usage = kit.generate(kit.root([*TRUNK[:48], 1, 2]), 0).usage
    assert usage.missed_because == {"evicted": 48, "new": 2}
    assert usage.recomputed == 0
