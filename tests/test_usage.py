"""Token accounts: what calls report adds up to what was computed, and to what the vendors' shapes promise."""

from __future__ import annotations

import random

from canary import greedy_of
from engine_kit import Kit, request, results

from furcate.runtime.metrics import Usage
from furcate.runtime.requests import ScoreRequest

TEXT = [(7 * i + i // 61) % 61 for i in range(400)]


def test_usages_programs_and_the_tree_add_up_to_the_tokens_computed() -> None:
    kit = Kit(40, max_step_tokens=32)
    rng = random.Random(1)
    tickets = []
    for program in range(1, 9):
        root = kit.root(TEXT[: rng.randrange(20, 100)])
        for i, child in enumerate(root.fork(3)):
            child.append([i, program])
            tickets.append(child.generate(request(rng.randrange(1, 9), program=program)))
        for _ in range(3):
            kit.engine.step()
        for work in kit.engine.scheduler.running[:1]:
            kit.engine.scheduler.preempt(work)
    scored = kit.root(TEXT[:50]).score(ScoreRequest(((1, 2, 3), (1, 4)), program=9))
    kit.engine.step()
    tickets[-1].cancel()
    kit.drain()
    usages = [outcome.usage for outcome in results(tickets[:-1])] + [scored.result().usage]
    total = sum(usages, Usage())
    stats = kit.engine.stats()
    assert total.computed + stats["tokens_abandoned"] == stats["tokens_computed"] == len(kit.runner.computed)
    assert total.prompt == total.cached + total.shared + total.prefilled
    assert sum(kit.engine.scheduler.service(program) for program in range(10)) == stats["tokens_computed"]
    tree = kit.engine.cache.tree
    assert tree.num_inserted - tree.num_forgotten == stats["tree_tokens"]
    assert total.copied_blocks <= stats["blocks_copied"]
    kit.engine.check_integrity()


def test_a_branch_reports_what_it_shared_and_a_sibling_what_it_computed() -> None:
    kit = Kit(40)
    children = kit.root(TEXT[:40]).fork(3)
    for i, child in enumerate(children):
        child.append([i])
    usages = [outcome.usage for outcome in results_of(kit, [child.generate(request(2)) for child in children])]
    assert [(usage.shared, usage.prefilled, usage.decoded) for usage in usages] == [(0, 41, 1), (40, 1, 1), (40, 1, 1)]
    assert [usage.missed_because for usage in usages] == [{"new": 41}, {"new": 1}, {"new": 1}]


def results_of(kit: Kit, tickets):  # type: ignore[no-untyped-def]  # of generations
    kit.drain()
    return results(tickets)


def test_vendor_shapes_add_up_to_the_prompt() -> None:
    kit = Kit(40)
    kit.generate(kit.root(TEXT[:30]), 1)
    outcome = kit.generate(kit.root(TEXT[:50]), 4)
    assert list(outcome.tokens) == greedy_of(TEXT[:50], 4)
    usage = outcome.usage
    assert usage.as_openai() == {
        "prompt_tokens": 50,
        "completion_tokens": 4,
        "total_tokens": 54,
        "prompt_tokens_details": {"cached_tokens": 30},
    }
    assert usage.as_anthropic() == {
        "input_tokens": 0,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 30,
        "output_tokens": 4,
    }
    assert usage.as_deepseek() == {
        "prompt_tokens": 50,
        "completion_tokens": 4,
        "total_tokens": 54,
        "prompt_cache_hit_tokens": 30,
        "prompt_cache_miss_tokens": 20,
    }
    otel = usage.as_otel()
    assert otel["gen_ai.usage.input_tokens"] == 50
    assert otel["gen_ai.usage.cache_read.input_tokens"] + otel["gen_ai.usage.cache_creation.input_tokens"] == 50
    assert otel["furcate.usage.decoded"] == 3
    assert otel["furcate.usage.missed.new"] == 20


def test_usage_adds_up() -> None:
    total = Usage(prompt=3, prefilled=3, missed_because={"new": 3}) + Usage(
        prompt=4, cached=2, prefilled=2, decoded=1, repeated=2, recomputed=2, missed_because={"evicted": 1, "new": 1}
    )
    assert (total.prompt, total.computed, total.repeated) == (7, 5 + 1 + 2, 2)
    assert total.missed_because == {"new": 4, "evicted": 1}


def test_what_a_cancelled_call_had_computed_is_counted_as_abandoned() -> None:
    kit = Kit(40, max_step_tokens=32)
    ticket = kit.root(TEXT[:100]).generate(request(4))
    kit.engine.step()
    ticket.cancel()
    kit.drain()
    assert (kit.stat("tokens_computed"), kit.stat("tokens_abandoned")) == (32, 32)
    kit.generate(kit.root(TEXT[100:110]), 1)
    assert kit.stat("tokens_abandoned") == 32
