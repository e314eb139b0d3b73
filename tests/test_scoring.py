"""Scores of continuations: one logits row per inner trie node, each once, and nothing left behind."""

from __future__ import annotations

import pytest
from canary import scores_of
from engine_kit import Kit, request
from hypothesis import given, settings
from hypothesis import strategies as st

from furcate.runtime.errors import ContextOverflow
from furcate.runtime.requests import ScoreRequest

PROMPT = [(7 * i) % 61 for i in range(35)]


def inner_nodes(sequences: list[list[int]]) -> int:
    """Distinct proper prefixes that something follows, the empty one included."""
    return len({tuple(s[:n]) for s in sequences for n in range(len(s))})


def logit_rows(kit: Kit) -> int:
    return sum(len(batch.logit_rows) for batch in kit.runner.batches)


@settings(max_examples=40, deadline=None)
@given(
    sequences=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=12),
    step_tokens=st.sampled_from([1, 4, 512]),
    num_blocks=st.sampled_from([4, 6, 40]),
    warm=st.booleans(),
)
def test_scores_are_those_of_a_plain_forward_at_one_row_per_inner_node(
    sequences: list[list[int]], step_tokens: int, num_blocks: int, warm: bool
) -> None:
    kit = Kit(num_blocks, max_step_tokens=step_tokens)
    branch = kit.root(PROMPT)
    if warm:
        kit.generate(branch, 0)
        kit.runner.batches.clear()
    result = kit.score(branch, sequences)
    for sequence, logprobs in zip(sequences, result.logprobs, strict=True):
        assert logprobs == pytest.approx(scores_of(PROMPT, sequence))
    assert logit_rows(kit) == inner_nodes(sequences)
    assert result.usage.prompt == result.usage.cached + result.usage.shared + result.usage.prefilled == 35
    assert list(branch.tokens()) == PROMPT
    branch.release()
    assert kit.stat("blocks_referenced") == 0


def test_inner_tokens_are_computed_once_and_leaves_never() -> None:
    kit = Kit(64)
    branch = kit.root(PROMPT)
    kit.generate(branch, 0)
    result = kit.score(branch, [[1, 2, 3], [1, 2, 4], [1, 5], [6]])
    assert kit.stat("tokens_computed") == 35 + 2  # 1 and 1 2
    assert result.usage.decoded == 2


def test_appending_a_scored_choice_is_a_hit_but_for_its_last_token() -> None:
    kit = Kit(64)
    branch = kit.root(PROMPT)
    kit.score(branch, [[1, 2, 3], [4, 5, 6]])
    branch.append([4, 5, 6])
    assert kit.generate(branch, 0).usage.prefilled == 1


def test_two_thousand_choices_pass_through_a_small_pool_in_steps() -> None:
    kit = Kit(24, max_step_tokens=128, check_every_step=False)
    branch = kit.root(PROMPT)
    sequences = [[i % 50, (i // 50) % 50, 7] for i in range(2000)]
    result = kit.score(branch, sequences)
    kit.engine.check_integrity()
    assert logit_rows(kit) == inner_nodes(sequences)
    for i in (0, 999, 1999):
        assert result.logprobs[i] == pytest.approx(scores_of(PROMPT, sequences[i]))
    assert max(batch.num_rows for batch in kit.runner.batches) <= 128


def test_scoring_nothing_resolves_without_a_forward_pass() -> None:
    kit = Kit(8)
    assert kit.score(kit.root(PROMPT), [[], []]).logprobs == ((), ())
    assert kit.stat("forward_passes") == 0


def test_a_choice_that_can_never_fit_is_refused_at_once() -> None:
    kit = Kit(3)
    ticket = kit.root(PROMPT).score(ScoreRequest((tuple(range(30)),)))
    with pytest.raises(ContextOverflow) as caught:
        ticket.result()
    assert (caught.value.needed, caught.value.limit) == (65, 48)


def test_two_branches_with_one_context_share_the_logits_at_their_tip() -> None:
    kit = Kit(64)
    a, b = kit.root(PROMPT), kit.root(PROMPT)
    tickets = [a.score(ScoreRequest(((1,), (2,)))), b.score(ScoreRequest(((3,),)))]
    generated = kit.root(PROMPT).generate(request(1))
    kit.drain()
    assert logit_rows(kit) == 1
    assert kit.stat("tokens_computed") == 35
    assert tickets[1].result().logprobs[0] == pytest.approx(scores_of(PROMPT, [3]))
    assert generated.result().usage.shared == 35


def test_a_branch_that_was_scored_cold_holds_its_context_afterwards() -> None:
    kit = Kit(64)
    branch = kit.root(PROMPT)
    kit.score(branch, [[1, 2], [3, 4]])
    assert kit.stat("blocks_referenced") == 3
    assert kit.generate(branch, 1).usage.cached == 35


def test_scoring_many_choices_leaves_most_of_the_cache_alone() -> None:
    kit = Kit(64, max_step_tokens=512)
    other = kit.root([60, *PROMPT[:31]])
    kit.generate(other, 0)
    other.release()
    branch = kit.root(PROMPT)
    kit.generate(branch, 0)
    kit.score(branch, [[i % 60, i // 60, 1] for i in range(600)])
    assert kit.generate(kit.root([60, *PROMPT[:31]]), 0).usage.cached == 32


def test_scores_that_compete_for_the_rows_of_a_step_leave_no_token_out() -> None:
    """Texts that continue each other, with fewer rows than logits are wanted."""
    kit = Kit(11, max_step_tokens=8)
    calls = [
        ([0, 0], [[0, 0, 0, 0, 0, 0], [1, 0], [0, 0, 0]]),
        ([0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0], [[1, 2, 1, 1, 0], [1, 0], [1, 2, 2, 1, 1, 2], [2, 1, 2], [1, 1]]),
        ([0], [[0, 1, 1], [1, 2, 0, 0, 0, 1]]),
    ]
    for prompt, _ in calls:
        kit.score(kit.root(prompt), [[1]])
    tickets = [kit.root(prompt).score(ScoreRequest(tuple(map(tuple, choices)))) for prompt, choices in calls]
    kit.drain()
    for (prompt, choices), ticket in zip(calls, tickets, strict=True):
        for choice, logprobs in zip(choices, ticket.result().logprobs, strict=True):
            assert logprobs == pytest.approx(scores_of(prompt, choice))
