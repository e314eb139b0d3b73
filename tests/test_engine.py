"""The engine as its callers see it: ends of calls, failures, threads."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from canary import greedy_of
from engine_kit import Kit, request, results

from furcate.runtime.errors import EngineClosed, EngineFailed
from furcate.runtime.requests import RequestCancelled, SampleKey, ScoreRequest

PROMPT = [(7 * i) % 61 for i in range(35)]


# -- ends of calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("how", ["cancel", "release"])
def test_a_call_stops_within_one_step_in_any_phase(steps: int, how: str) -> None:
    kit = Kit(16, max_step_tokens=16)
    branch = kit.root(PROMPT)
    idle = kit.engine.stats()
    ticket = branch.generate(request(50))
    for _ in range(steps):
        kit.engine.step()
    if how == "cancel":
        ticket.cancel()
    else:
        branch.release()
    kit.engine.step()
    with pytest.raises(RequestCancelled):
        ticket.result()
    assert not kit.engine.step()
    if how == "cancel":
        assert list(branch.tokens()) == PROMPT
        branch.append([60, 60, 60])  # not what the cancelled call had generated
        assert list(kit.generate(branch, 3).tokens) == greedy_of([*PROMPT, 60, 60, 60], 3)
        branch.release()
    stats = kit.engine.stats()
    assert stats["blocks_referenced"] == idle["blocks_referenced"] == 0
    assert stats["blocks_free"] + stats["blocks_cached"] == 16


def test_cancelling_a_finished_call_or_releasing_twice_does_nothing() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    ticket = branch.generate(request(2))
    kit.drain()
    ticket.cancel()
    branch.release()
    branch.release()
    kit.engine.step()
    assert len(ticket.result().tokens) == 2


def test_a_sibling_keeps_the_blocks_that_a_cancelled_call_computed() -> None:
    kit = Kit(16, max_step_tokens=16)
    first, second = kit.root(PROMPT), kit.root(PROMPT)
    a, b = first.generate(request(3)), second.generate(request(3))
    kit.engine.step()
    a.cancel()
    kit.drain()
    assert list(b.result().tokens) == greedy_of(PROMPT, 3)
    assert kit.stat("tokens_computed") == 35 + 2


def test_a_kept_ticket_keeps_no_branch_alive() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    ticket = branch.generate(request(1))
    del branch
    gc.collect()
    kit.drain()
    assert len(ticket.result().tokens) == 1  # a pending call is not lost with its handle
    gc.collect()
    assert kit.stat("blocks_referenced") == 0


def test_a_branch_takes_one_call_at_a_time_and_none_after_release() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    branch.generate(request(2))
    for use in (lambda: branch.append([1]), lambda: branch.fork(1), lambda: branch.truncate(0)):
        with pytest.raises(RuntimeError, match="pending"):
            use()
    kit.drain()
    branch.release()
    with pytest.raises(RuntimeError, match="released"):
        branch.append([1])


def test_an_unreachable_branch_gives_its_blocks_back() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    kit.generate(branch, 1)
    assert kit.stat("blocks_referenced") == 3
    del branch
    gc.collect()
    assert kit.stat("blocks_referenced") == 0


def test_nonsense_is_refused_where_it_is_asked_for() -> None:
    branch = Kit(16).root()
    with pytest.raises(ValueError, match="empty"):
        branch.generate(request(1))
    with pytest.raises(ValueError, match="empty"):
        branch.score(ScoreRequest(((1,),)))
    with pytest.raises(ValueError, match="must be in 0"):
        branch.append([64])
    with pytest.raises(ValueError, match="truncate"):
        branch.truncate(1)


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_failing_forward_pass_fails_its_calls_with_the_cause_and_no_others() -> None:
    kit = Kit(16)
    first = kit.root(PROMPT)
    failed = first.generate(request(3, label="judge/gen"))
    kit.runner.fail_next = ValueError("broken weights")
    kit.engine.step()
    with pytest.raises(EngineFailed, match="judge/gen") as caught:
        failed.result()
    assert isinstance(caught.value.__cause__, ValueError)
    assert list(kit.generate(first, 3).tokens) == greedy_of(PROMPT, 3)


def test_a_forward_pass_that_fails_after_a_fork_leaves_no_slot_half_written() -> None:
    kit = Kit(16)
    parent = kit.root(PROMPT)
    kit.generate(parent, 0)
    children = parent.fork(3)
    for i, child in enumerate(children):
        child.append([i])
        child.generate(request(3))
    kit.runner.fail_next = MemoryError()
    kit.drain()
    for i, child in enumerate(children):
        assert list(kit.generate(child, 3).tokens) == greedy_of([*PROMPT, i], 3)


def test_a_row_that_cannot_be_sampled_fails_alone() -> None:
    kit = Kit(16)
    kit.sampler.fail_streams = {13}
    good = kit.root(PROMPT).generate(request(3))
    bad = kit.root(PROMPT).generate(request(3, key=SampleKey(1, 13)))
    kit.drain()
    assert len(good.result().tokens) == 3
    with pytest.raises(EngineFailed):
        bad.result()


def test_a_callback_that_raises_fails_its_own_call() -> None:
    def explode(ids: Any) -> None:
        raise KeyError("callback")

    kit = Kit(16)
    bad = kit.root(PROMPT).generate(request(3, on_tokens=explode))
    good = kit.root(PROMPT).generate(request(3))
    kit.drain()
    assert len(good.result().tokens) == 3
    with pytest.raises(EngineFailed):
        bad.result()


def test_a_fault_of_the_engine_itself_fails_the_calls_and_starts_over_empty() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    kit.generate(branch, 2)
    kit.engine.cache.pool._free.clear()  # the next allocation finds no block
    branch.append([1] * 40)
    ticket = branch.generate(request(3))
    kit.drain()
    with pytest.raises(EngineFailed):
        ticket.result()
    assert kit.stat("blocks_free") == 16
    assert list(kit.generate(branch, 3).tokens) == greedy_of(list(branch.tokens())[:77], 3)


# -- threads ----------------------------------------------------------------------------------------------------------


def test_the_engines_own_thread_serves_calls_from_several_threads() -> None:
    kit = Kit(256, threaded=True)
    outcomes: dict[int, list[int]] = {}

    def work(i: int) -> None:
        branch = kit.root([i, *PROMPT])
        parts = branch.fork(3)
        tickets = []
        for j, part in enumerate(parts):
            part.append([j])
            tickets.append(part.generate(request(6)))
        outcomes[i] = [token for ticket in tickets for token in ticket.wait(30).tokens]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for i in range(6):
        assert outcomes[i] == [t for j in range(3) for t in greedy_of([i, *PROMPT, j], 6)]
    kit.engine.check_integrity()
    kit.engine.close()


def test_closing_fails_what_waits_and_refuses_what_comes_after() -> None:
    kit = Kit(64, threaded=True)
    branch = kit.root(PROMPT)
    ticket = branch.generate(request(900))
    kit.engine.close()
    kit.engine.close()
    with pytest.raises(EngineClosed):
        ticket.wait(10)
    with pytest.raises(EngineClosed):
        branch.generate(request(1)).wait(10)
    branch.release()
    assert kit.stat("blocks_referenced") == 0


def test_a_ticket_resolves_after_its_branch_has_the_tokens() -> None:
    kit = Kit(64, threaded=True)
    branch = kit.root(PROMPT)
    seen: list[int] = []
    done = threading.Event()
    ticket = branch.generate(request(5))
    ticket.add_done_callback(lambda: (seen.append(branch.length), done.set()))
    assert done.wait(30)
    assert seen == [40]
    kit.engine.close()


def test_results_do_not_depend_on_what_else_runs() -> None:
    alone = Kit(64)
    expected = [list(alone.generate(alone.root([i, *PROMPT]), 6).tokens) for i in range(4)]
    kit = Kit(64, max_step_tokens=8)
    tickets = [kit.root([i, *PROMPT]).generate(request(6)) for i in range(4)]
    kit.drain()
    assert [list(result.tokens) for result in results(tickets)] == expected
