"""Who copies a partial block and who writes in place: counted, over the canary."""

from __future__ import annotations

import pytest
from canary import greedy_of, scores_of
from engine_kit import Kit, request, results

PROMPT = [(7 * i) % 61 for i in range(35)]


def test_seed_example_two_continuations_share_two_blocks_and_copy_three_tokens_once() -> None:
    kit = Kit(16)
    parent = kit.root(PROMPT)
    kit.generate(parent, 0)
    children = parent.fork(2)
    parent.release()
    for i, child in enumerate(children):
        child.append([40 + i])
    tickets = [child.generate(request(3)) for child in children]
    kit.drain()
    copies = [copy for batch in kit.runner.batches for copy in batch.copies]
    assert [copy.num_slots for copy in copies] == [3]
    assert kit.stat("blocks_copied") == 1
    assert kit.stat("blocks_referenced") == 4  # 0 and 1 shared, one third block each
    for i, result in enumerate(results(tickets)):
        assert list(result.tokens) == greedy_of([*PROMPT, 40 + i], 3)


def test_a_surviving_parent_counts_as_an_owner() -> None:
    kit = Kit(16)
    parent = kit.root(PROMPT)
    kit.generate(parent, 0)
    children = parent.fork(2)
    for i, child in enumerate(children):
        child.append([40 + i])
        kit.generate(child, 1)
    assert kit.stat("blocks_copied") == 2
    kit.generate(parent, 2)  # the last owner of the third block
    assert kit.stat("blocks_copied") == 2


def test_a_fork_that_nobody_writes_copies_nothing() -> None:
    kit = Kit(16)
    parent = kit.root(PROMPT)
    kit.generate(parent, 0)
    before = kit.engine.stats()
    for child in parent.fork(4):
        child.release()
    after = kit.engine.stats()
    assert before == after
    kit.generate(parent, 2)
    assert kit.stat("blocks_copied") == 0


def test_a_fork_at_a_block_boundary_copies_nothing() -> None:
    kit = Kit(16)
    parent = kit.root(PROMPT[:32])
    kit.generate(parent, 0)
    for i, child in enumerate(parent.fork(3)):
        child.append([i])
        kit.generate(child, 1)
    assert kit.stat("blocks_copied") == 0


def test_a_write_never_changes_what_another_branch_reads() -> None:
    kit = Kit(32)
    parent = kit.root(PROMPT)
    kit.generate(parent, 0)
    children = parent.fork(4)
    for i, child in enumerate(children):
        child.append([50 + i])
        assert list(kit.generate(child, 20).tokens) == greedy_of([*PROMPT, 50 + i], 20)
    assert list(kit.generate(parent, 20).tokens) == greedy_of(PROMPT, 20)


def test_a_hit_inside_a_block_is_copied_where_the_text_parts() -> None:
    kit = Kit(16)
    first = kit.root(PROMPT)
    kit.generate(first, 0)
    other = kit.root([*PROMPT[:33], 60, 59])
    result = kit.generate(other, 2)
    assert result.usage.cached == 33
    assert result.usage.prefilled == 2
    assert [copy.num_slots for batch in kit.runner.batches for copy in batch.copies] == [1]
    assert list(kit.generate(first, 3).tokens) == greedy_of(PROMPT, 3)


def test_after_truncation_a_written_slot_is_not_written_again() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    kit.generate(branch, 0)
    branch.truncate(33)
    branch.append([60, 59])
    assert list(kit.generate(branch, 2).tokens) == greedy_of([*PROMPT[:33], 60, 59], 2)
    assert kit.stat("blocks_copied") == 1
    again = kit.root(PROMPT)
    result = kit.generate(again, 1)
    assert result.usage.cached == 35  # the dropped tokens are still there for whoever has them


def test_a_cold_fork_inside_a_block_writes_the_partial_block_to_every_branch() -> None:
    kit = Kit(16)
    children = kit.root(PROMPT).fork(3)
    for i, child in enumerate(children):
        child.append([40 + i])
    tickets = [child.generate(request(2)) for child in children]
    kit.engine.step()
    (batch,) = kit.runner.batches
    assert batch.num_rows == 35 + 3
    assert len(batch.write_slots) == 35 + 3 + 2 * 3
    assert not batch.copies
    kit.drain()
    for i, result in enumerate(results(tickets)):
        assert list(result.tokens) == greedy_of([*PROMPT, 40 + i], 2)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33])
def test_hit_equals_miss_at_every_cut(length: int) -> None:
    tail = [60, 3, 4]
    kit = Kit(16)
    kit.generate(kit.root(PROMPT[:length]), 0)
    warm = kit.root([*PROMPT[:length], *tail])
    assert list(kit.generate(warm, 4).tokens) == greedy_of([*PROMPT[:length], *tail], 4)
    assert kit.score(warm, [[5, 6]]).logprobs[0] == pytest.approx(scores_of(list(warm.tokens()), [5, 6]))


def test_copy_endpoints_survive_the_cancellation_of_both_ends() -> None:
    kit = Kit(4)
    parent = kit.root(PROMPT)
    kit.generate(parent, 0)
    (child,) = parent.fork(1)
    child.append([40])
    ticket = child.generate(request(3))
    plan = kit.engine.scheduler  # the copy is queued while the step is being planned
    kit.engine._take_commands()
    step = plan.plan()
    assert len(kit.engine.cache.pool.pending_copies) == 1
    copy = kit.engine.cache.pool.pending_copies[0]
    parent.release()
    kit.engine._take_commands()
    kit.engine.cache.residency.drop(child._sequence)  # type: ignore[attr-defined]
    assert copy.source not in kit.engine.cache.pool.free_blocks()
    assert copy.target not in kit.engine.cache.pool.free_blocks()
    step.builder.abort()
    kit.engine.check_integrity()
    kit.drain()
    assert list(ticket.result().tokens) == greedy_of([*PROMPT, 40], 3)
