"""Scenarios S13-S16, S21-S29 and S35 of the cache study: what gives way when blocks are short, and what never does."""

from __future__ import annotations

import random

import pytest
from canary import greedy_of
from engine_kit import Kit, request, results

from furcate.kernels.layout import BLOCK_SIZE
from furcate.runtime import waiting
from furcate.runtime.block_pool import BlockPool
from furcate.runtime.errors import ContextOverflow
from furcate.runtime.hints import Hints
from furcate.runtime.requests import Branch

B = BLOCK_SIZE
TEXT = [(7 * i + i // 61) % 61 for i in range(4096)]


def warm(kit: Kit, tokens: list[int], **options: object) -> Branch:
    branch = kit.root(tokens)
    kit.generate(branch, 0, **options)
    return branch


def test_s13_a_call_that_waits_for_room_does_not_evict_its_own_hits() -> None:
    kit = Kit(6)
    warm(kit, TEXT[:48]).release()
    running = kit.root(TEXT[500:510]).generate(request(20))
    kit.engine.step()
    ticket = kit.root([*TEXT[:48], 60]).generate(request(32))  # 5 blocks, 3 of them there, while 2 are promised
    for _ in range(5):
        kit.engine.step()
        assert len(kit.engine.scheduler.waiting) == 1
        assert kit.stat("blocks_cached") == 3
    kit.drain()
    assert running.done
    assert ticket.result().usage.cached == 48
    assert kit.stat("preemptions") == 0


def test_s14_a_chain_loses_its_tail_first() -> None:
    kit = Kit(4)
    warm(kit, TEXT[:48]).release()
    assert kit.engine.cache.make_room(2, list)
    kit.engine.check_integrity()
    assert kit.generate(kit.root(TEXT[:48]), 0).usage.cached == 32


def test_s15_nothing_on_a_pinned_path_is_evicted() -> None:
    kit = Kit(4)
    branch = warm(kit, TEXT[:48])
    assert not kit.engine.cache.make_room(2, lambda: [branch._sequence])  # type: ignore[attr-defined]
    assert kit.generate(branch, 1).usage.cached == 48
    assert kit.engine.cache.make_room(4, list)  # an idle branch pins softly
    assert kit.stat("blocks_free") == 4


@pytest.mark.parametrize("round_", range(3))
def test_s16_a_block_that_was_used_again_is_no_hit(round_: int) -> None:
    kit = Kit(4)
    order = [i % 5 for i in range(20)]
    random.Random(round_).shuffle(order)
    for i in order:
        prompt = TEXT[200 * i : 200 * i + 50]
        branch = kit.root(prompt)
        assert list(kit.generate(branch, 2).tokens) == greedy_of(prompt, 2)
        branch.release()


def test_s21_giving_back_twice_is_refused_or_does_nothing() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.remove_table(block)
    for again in (pool.remove_table, pool.remove_node, pool.remove_pin):
        with pytest.raises(RuntimeError):
            again(block)
    assert (pool.num_free, pool.num_cached, pool.num_referenced) == (2, 0, 0)
    kit = Kit(4)
    branch = warm(kit, TEXT[:20])
    branch.release()
    branch.release()
    assert kit.stat("blocks_referenced") == 0


def test_s22_more_than_there_is_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(RuntimeError, match="no free block"):
        pool.allocate()
    assert (pool.num_free, pool.num_referenced) == (0, 1)


def test_s23_recomputation_after_preemption_is_no_hit() -> None:
    kit = Kit(32)
    prompts = [[i, *TEXT[100 * i : 100 * i + 30]] for i in range(4)]
    tickets = [kit.root(prompt).generate(request(12)) for prompt in prompts]
    for _ in range(4):
        kit.engine.step()
        kit.engine.scheduler.preempt(kit.engine.scheduler.running[-1])
        kit.engine.cache.evictor.evict(32)
    kit.drain()
    usages = [outcome.usage for outcome in results(tickets)]
    assert [(u.cached, u.shared, u.prefilled) for u in usages] == [(0, 0, 31)] * 4
    assert sum(u.repeated for u in usages) > 0
    assert sum(u.computed for u in usages) == kit.stat("tokens_computed")
    for prompt, outcome in zip(prompts, results(tickets), strict=True):
        assert list(outcome.tokens) == greedy_of(prompt, 12)


@pytest.mark.parametrize("hinted", [False, True])
def test_s24_fifty_calls_pass_through_a_pool_that_holds_one(hinted: bool) -> None:
    kit = Kit(5, max_step_tokens=64)
    hints = Hints(token_bound=30 if hinted else None)
    prompts = [[i % 60, i // 60, *TEXT[i : i + 40]] for i in range(50)]
    tickets = [kit.root(p).generate(request(30, hints=hints, program=i)) for i, p in enumerate(prompts)]
    kit.drain(limit=50 * 40)
    assert kit.stat("preemptions") == 0  # the bounds are known: nobody starts who cannot finish
    for prompt, outcome in zip(prompts, results(tickets), strict=True):
        assert list(outcome.tokens) == greedy_of(prompt, 30)


def test_s24_at_least_one_call_goes_on_whenever_others_give_way() -> None:
    """Admission is bypassed by hand, so that calls run which cannot all stay."""
    kit = Kit(6, max_step_tokens=64)
    prompts = [[i, *TEXT[100 * i : 100 * i + 20]] for i in range(6)]
    tickets = [kit.root(prompt).generate(request(60)) for prompt in prompts]
    kit.engine._take_commands()
    scheduler = kit.engine.scheduler
    preempted, steps = 0, 0
    while not all(ticket.done for ticket in tickets):
        for work in list(scheduler.waiting):
            if steps < 30:
                scheduler._start(work)
        before = len(scheduler.running), scheduler.num_preemptions
        kit.engine.step()
        steps += 1
        given_way = scheduler.num_preemptions - before[1]
        preempted += given_way
        assert given_way < max(before[0], 1)
        assert steps < 600
    assert 0 < preempted <= 6 * 30
    for prompt, outcome in zip(prompts, results(tickets), strict=True):
        assert list(outcome.tokens) == greedy_of(prompt, 60)


def test_s25_an_impossible_call_is_refused_and_those_behind_it_are_not() -> None:
    kit = Kit(4)
    impossible = kit.root(TEXT[:60]).generate(request(30))
    behind = kit.root([1, 2, 3]).generate(request(3))
    with pytest.raises(ContextOverflow, match="kv_tokens=90"):
        impossible.result()
    kit.drain()
    assert len(behind.result().tokens) == 3


def test_s26_blocks_of_a_queued_copy_come_back_without_a_preemption() -> None:
    kit = Kit(4)
    parent = warm(kit, TEXT[:37])
    (child,) = parent.fork(1)
    child.append([40])
    first = child.generate(request(8))
    kit.engine.step()
    parent.release()
    second = kit.root(TEXT[500:520]).generate(request(8))
    kit.drain()
    assert kit.stat("preemptions") == 0
    assert list(first.result().tokens) == greedy_of([*TEXT[:37], 40], 8)
    assert list(second.result().tokens) == greedy_of(TEXT[500:520], 8)


@pytest.mark.parametrize(("plan", "survives"), [(True, True), (False, False)])
def test_s27_a_conversation_survives_a_scan_if_the_plan_tells_that_it_goes_on(plan: bool, survives: bool) -> None:
    kit = Kit(16, plan=plan)
    talk = warm(kit, TEXT[:96], hints=Hints(next_use=40))
    talk.release()
    for i in range(32):
        warm(kit, TEXT[100 * i + 500 : 100 * i + 580], hints=Hints(last_use=True)).release()
    cached = kit.generate(kit.root(TEXT[:96]), 0).usage.cached
    assert (cached == 96) == survives


def test_s28_a_finished_programs_suffix_goes_before_a_live_programs_prefix() -> None:
    kit = Kit(10)
    live = warm(kit, TEXT[:64], program=1)
    ended = warm(kit, [*TEXT[:16], *TEXT[700:764]], program=2, hints=Hints(last_use=True))
    ended.release()
    warm(kit, TEXT[1000:1040], program=3)
    assert kit.generate(live, 1, program=1).usage.cached == 64
    assert kit.generate(kit.root([*TEXT[:16], *TEXT[700:764]]), 0).usage.cached < 80


def hits(order: list[int], num_blocks: int, plan: bool) -> int:
    kit = Kit(num_blocks, plan=plan, check_every_step=False)
    total = 0
    for at, item in enumerate(order):
        later = [k for k in range(at + 1, len(order)) if order[k] == item]
        hints = Hints(next_use=later[0] - at if later else None, last_use=not later)
        branch = kit.root([item] * B)
        total += kit.generate(branch, 0, hints=hints).usage.cached == B
        branch.release()
    return total


def belady(order: list[int], num_blocks: int) -> int:
    held: set[int] = set()
    total = 0
    for at, item in enumerate(order):
        total += item in held
        if item not in held and len(held) == num_blocks:
            rest = order[at + 1 :]
            held.remove(max(held, key=lambda x: rest.index(x) if x in rest else len(order)))
        held.add(item)
    return total


@pytest.mark.parametrize("seed", range(6))
def test_s29_with_the_plan_eviction_is_as_good_as_an_oracle_and_never_worse_than_recency(seed: int) -> None:
    rng = random.Random(seed)
    order = [rng.randrange(8) for _ in range(50)]
    best = belady(order, 4)
    assert hits(order, 4, plan=True) == best
    assert hits(order, 4, plan=False) <= best


def test_s29_calls_in_turn_over_two_prefixes_compute_each_prefix_once() -> None:
    kit = Kit(8)
    prefixes = (TEXT[:80], TEXT[1000:1080])
    prompts = [[*prefixes[i % 2], i] for i in range(10)]
    tickets = [kit.root(prompt).generate(request(17)) for prompt in prompts]
    kit.drain()
    assert sum(outcome.usage.prefilled for outcome in results(tickets)) == 2 * 80 + 10


def test_the_call_at_the_front_is_overtaken_a_bounded_number_of_times() -> None:
    kit = Kit(8, max_step_tokens=64)
    warm(kit, TEXT[:80]).release()
    first = kit.root([*TEXT[:80], 60]).generate(request(17))
    kit.engine.step()
    other = kit.root(TEXT[1000:1080]).generate(request(17))
    behind = [kit.root([*TEXT[:80], i, i]).generate(request(17)) for i in range(60)]
    while not other.done:
        kit.engine.step()
    assert first.done
    assert 0 < sum(ticket.done for ticket in behind) <= 32
    kit.drain(limit=5000)
    assert all(ticket.done for ticket in behind)


@pytest.mark.parametrize("num_suspended", [10_000])
def test_ten_thousand_suspended_programs_never_block_the_one_that_runs(num_suspended: int) -> None:
    kit = Kit(40, check_every_step=False)
    trunk = warm(kit, TEXT[:160])
    suspended = trunk.fork(num_suspended)
    for i, branch in enumerate(suspended[:20]):
        branch.append([i])
        kit.generate(branch, 1, program=i + 2)
    prompt = TEXT[1000:1600]
    assert list(kit.generate(kit.root(prompt), 40, program=1).tokens) == greedy_of(prompt, 40)
    assert kit.stat("preemptions") == 0
    kit.engine.check_integrity()
    last = suspended[-1]
    usage = kit.generate(last, 1).usage
    assert (usage.prompt, usage.missed_because) == (160, {"evicted": 160})


def test_s35_a_thousand_sessions_left_open_hold_no_more_than_the_pool_and_can_be_taken_up() -> None:
    kit = Kit(16, check_every_step=False)
    sessions = []
    for i in range(1000):
        branch = kit.root([i % 61, i // 61, *TEXT[i : i + 30]])
        kit.generate(branch, 1, program=i + 1)
        sessions.append(branch)
    kit.engine.check_integrity()
    for i in (0, 500, 999):
        text = list(sessions[i].tokens())
        outcome = kit.generate(sessions[i], 3, program=i + 1)
        assert list(outcome.tokens) == greedy_of(text, 3)
        assert outcome.usage.recomputed in {0, 32}


# -- fairness ---------------------------------------------------------------------------------------------------------


def test_a_newcomer_does_not_wait_for_all_of_a_heavy_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "QUANTUM", 256)
    kit = Kit(64, max_step_tokens=32, check_every_step=False)
    heavy = [kit.root([i, *TEXT[40 * i : 40 * i + 60]]).generate(request(20, program=1)) for i in range(60)]
    while kit.engine.scheduler.service(1) < 300:
        kit.engine.step()
    light = kit.root(TEXT[3000:3020]).generate(request(5, program=2))
    while not light.done:
        kit.engine.step()
    assert sum(ticket.done for ticket in heavy) < 45
    kit.drain()
    assert all(ticket.done for ticket in heavy)


def test_programs_finish_one_after_another_instead_of_in_turn() -> None:
    """Each program makes three calls on its branch; the oldest goes on before a younger one starts."""
    kit = Kit(8, max_step_tokens=64, check_every_step=False)
    branches = [kit.root([i, *TEXT[100 * i : 100 * i + 90]]) for i in range(6)]
    calls = {i: [branch.generate(request(8, program=i + 1))] for i, branch in enumerate(branches)}
    while any(len(done) < 3 or not done[-1].done for done in calls.values()):
        kit.engine.step()
        for i, done in calls.items():
            if done[-1].done and len(done) < 3:
                branches[i].append([7])
                done.append(branches[i].generate(request(8, program=i + 1)))
    recomputed = sum(ticket.result().usage.recomputed for done in calls.values() for ticket in done)
    assert recomputed == 0


def test_the_longest_remaining_path_of_a_program_starts_first() -> None:
    kit = Kit(64, max_step_tokens=1)
    bounds = [5, 40, 10, 40]
    tickets = [
        kit.root([i, 1]).generate(request(2, program=1, hints=Hints(token_bound=bound)))
        for i, bound in enumerate(bounds)
    ]
    finished: list[int] = []
    while len(finished) < 4:
        kit.engine.step()
        finished += [i for i, ticket in enumerate(tickets) if ticket.done and i not in finished]
    assert finished == [1, 3, 2, 0]


def test_the_plans_bound_keeps_a_branch_from_starting_what_it_could_not_go_on_with() -> None:
    for plan, at_once in ((True, 1), (False, 2)):
        kit = Kit(8, plan=plan)
        for i in range(2):
            kit.root([i, *TEXT[:30]]).generate(request(10, program=i + 1, hints=Hints(token_bound=60)))
        kit.engine.step()
        assert len(kit.engine.scheduler.running) == at_once
        kit.drain()


def test_looking_at_the_queue_does_not_grow_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit(8, max_step_tokens=64, check_every_step=False)
    for i in range(3000):
        kit.root([i % 61, i // 61, 5]).generate(request(100, program=i + 1))
    kit.engine.step()
    looked = 0
    account_rank = waiting.Account.rank.fget
    assert account_rank is not None

    def count(account: waiting.Account) -> tuple[int, int]:
        nonlocal looked
        looked += 1
        return account_rank(account)

    monkeypatch.setattr(waiting.Account, "rank", property(count))
    for _ in range(10):
        kit.engine.step()
    assert looked <= 100
