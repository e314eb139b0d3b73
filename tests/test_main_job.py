"""The main job, end to end: programs through the graph and the shared cache, on real and on random weights."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

import furcate as fc
from furcate import Context, program
from furcate.runtime.models.cache import models_dir

PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little girl named",
    "Water boils at a temperature of",
    "The three primary colours are",
    "def fibonacci(n):",
    "In 1969, the first",
    "The largest planet in the solar system is",
    "My favourite season is autumn, because",
    "To bake bread you need flour, water,",
    "The opposite of hot is",
    "Dear Sir or Madam,",
    "Photosynthesis is the process by which",
    "1, 2, 3, 5, 8,",
    "The quick brown fox",
    "A good teacher should",
    "The Pacific Ocean lies between",
    "Shakespeare wrote",
    "If it rains tomorrow,",
    "The square root of 81 is",
    "Dogs and cats are",
]


@program
def complete(c: Context, prompt: str) -> list[int]:
    c += prompt
    c.gen(max_tokens=64)
    return list(c.last.tokens)


@pytest.fixture(scope="module")
def tiny():
    model = fc.load("test:tiny")
    yield model
    model.close()


@pytest.mark.slow
@pytest.mark.real
def test_twenty_prompts_of_64_greedy_tokens_equal_transformers_generate(embedded):
    ours = complete.using(embedded).map(PROMPTS).ok
    reference = LlamaForCausalLM.from_pretrained(models_dir() / "smollm2-135m-v1", dtype=torch.float32).eval()
    encoded = [embedded.tokenizer.encode(prompt) for prompt in PROMPTS]
    width = max(map(len, encoded))
    pad, eos = 0, min(embedded.tokenizer.vocabulary.eos_ids)
    ids = torch.tensor([[pad] * (width - len(e)) + e for e in encoded])
    mask = torch.tensor([[0] * (width - len(e)) + [1] * len(e) for e in encoded])
    with torch.inference_mode():
        out = reference.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=64,
            do_sample=False,
            eos_token_id=sorted(embedded.tokenizer.vocabulary.eos_ids),
            pad_token_id=eos,
        )
    theirs = []
    for row in out[:, width:].tolist():
        ends = [i for i, token in enumerate(row) if token in embedded.tokenizer.vocabulary.eos_ids]
        theirs.append(row[: ends[0]] if ends else row)
    assert len(ours) == len(PROMPTS)
    assert ours == theirs


def test_fork_16_over_1024_tokens_computes_and_holds_the_prefix_once():
    model = fc.load("test:tiny", kv_tokens=4096)
    prefix_tokens, branches, own = 1024, 16, 12
    held = []

    def branch(b: Context, i: int) -> int:
        b += chr(ord("a") + i)  # branches that write the same tokens would share those too
        b.gen(max_tokens=own, min_tokens=own, temperature=1.0)
        return b.usage.copied_blocks

    @program
    def trunk(c: Context, text: str) -> list[int]:
        c += text
        before = model.stats()["tokens_computed"]
        copied = c.fork(branches, branch)
        held.append(model.stats()["tokens_computed"] - before)
        return copied

    run = trunk.using(model, seed=1).run("x" * prefix_tokens)
    # one letter and all but the last of its generated tokens: nothing asks what follows that one
    assert held == [prefix_tokens + branches * own]
    assert run.usage.computed == held[0]
    assert run.usage.prefilled == prefix_tokens + branches
    assert run.usage.copied_blocks == 0  # the prefix ends at a block's edge
    assert run.usage.shared + run.usage.cached == (branches - 1) * prefix_tokens
    model.check_integrity()
    model.close()


def test_fork_16_holds_64_shared_blocks_once_plus_one_copy_a_branch():
    """1,020 tokens: the last of the 64 blocks is partial, so that each branch must copy it before it writes."""
    model = fc.load("test:tiny", kv_tokens=4096)
    peak = []

    def branch(b: Context) -> None:
        b += "abcdefghijklmnop"[int(b.path.split("[")[1][:-1])]
        b.gen(max_tokens=2, min_tokens=2, temperature=1.0)
        peak.append(model.stats()["blocks_referenced"])

    @program
    def trunk(c: Context) -> None:
        c += "x" * 1020
        c.gen(max_tokens=0)
        peak.append(model.stats()["blocks_referenced"])
        handles = c.split(16)
        fc.parallel(branch, handles)
        peak.append(model.stats()["blocks_referenced"])

    run = trunk.using(model, seed=1).run()
    assert peak[0] == 64
    assert max(peak) <= 64 + 16
    assert run.usage.copied_blocks <= 16
    assert run.usage.computed == 1020 + 16 * 2
    model.close()


def test_the_run_shows_what_was_shared(tiny):
    @program
    def judge(c: Context, essay: str) -> list[str]:
        c.user(essay)
        return c.fork(4, lambda b, i: b.gen(max_tokens=6, temperature=1.0))

    first = judge.using(tiny, seed=1).run("A long essay. " * 20)
    usage = first.usage
    assert usage.prompt == usage.cached + usage.shared + usage.prefilled
    assert usage.shared >= 3 * (usage.prompt // 4 - 1)
    again = judge.using(tiny, seed=1).run("A long essay. " * 20)
    assert again.value == first.value
    assert again.usage.prefilled == 0
    assert again.usage.missed_because == {}


def test_the_plan_changes_nothing_but_speed():
    @program
    def tree(c: Context) -> list[str]:
        c.user("root")
        notes = c.fork(3, lambda b, i: b.gen(max_tokens=8, temperature=1.0))
        c.user(" ".join(notes))
        return [*notes, c.gen(max_tokens=8, temperature=1.0)]

    values = []
    for plan in (True, False):
        model = fc.load("test:tiny", plan=plan)
        run = tree.using(model, seed=3).run()
        values.append(run.value)
        assert any(n.planned is not None for n in run.graph.nodes) == plan
        model.close()
    assert values[0] == values[1]


def test_what_runs_beside_a_program_does_not_change_it(tiny):
    @program
    def sample(c: Context, n: int) -> str:
        c.user(f"question {n}")
        return c.gen(max_tokens=16, temperature=0.9)

    alone = sample.using(tiny, seed=4)(0)
    for others in (6, 31):
        assert sample.using(tiny, seed=4).map(range(others + 1)).ok[0] == alone


def test_the_usages_of_the_nodes_add_up_to_the_runs(tiny):
    @program
    def tree(c: Context) -> str:
        c.user("root of the tree")
        c.fork(3, lambda b, i: b.gen(max_tokens=4, temperature=1.0))
        c.select(["left", "right"])
        return c.gen(max_tokens=4)

    run = tree.using(tiny, seed=8).run()
    used = [node.attrs["usage"] for node in run.graph.nodes if "usage" in node.attrs]
    assert len(used) == 5
    for name in ("prompt", "cached", "shared", "prefilled", "decoded", "generated", "forward_passes", "copied_blocks"):
        assert sum(usage.get(name, 0) for usage in used) == getattr(run.usage, name), name
    assert '"usage"' in run.graph.to_json()
