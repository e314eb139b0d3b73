"""One ``generate`` call: what it returns and accounts for, stop strings, constraints and forced text."""

from __future__ import annotations

import numpy as np
import pytest
from canary import END, VOCAB, VOCABULARY, greedy_of, logits_of, tag_of
from engine_kit import Kit, request

from furcate.runtime.constraints.protocol import Bitmask, State
from furcate.runtime.errors import UnsatisfiableConstraint
from furcate.runtime.requests import SampleKey

PROMPT = [(7 * i) % 61 for i in range(35)]


class OneOf:
    """The language of a few texts, as a constraint. A state is the text so far."""

    def __init__(self, *texts: bytes) -> None:
        self.texts = texts

    def initial(self) -> State:
        return b""

    def mask(self, state: State) -> Bitmask:
        words = np.zeros((VOCAB + 31) // 32, np.uint32)
        for i, token in enumerate(VOCABULARY.token_bytes):
            if token and any(text.startswith(state + token) for text in self.texts):
                words[i // 32] |= np.uint32(1 << i % 32)
        return words

    def advance(self, state: State, token: int) -> State:
        after = state + (VOCABULARY.token_bytes[token] or b"")
        if not any(text.startswith(after) for text in self.texts):
            raise ValueError("not in the language")
        return after

    def forced(self, state: State) -> bytes:
        rest = {text[len(state) :] for text in self.texts if text.startswith(state)}
        if not rest or b"" in rest:
            return b""
        first, last = min(rest), max(rest)
        n = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
        return first[:n]

    def may_end(self, state: State) -> bool:
        return state in self.texts

    def min_bytes(self, state: State) -> int:
        return min(len(text) - len(state) for text in self.texts if text.startswith(state))


def encode(text: str) -> list[int]:
    """Longest token first."""
    raw, ids = text.encode(), []
    while raw:
        token = max((t for t in VOCABULARY.token_bytes if t and raw.startswith(t)), key=len)
        ids.append(VOCABULARY.token_bytes.index(token))
        raw = raw[len(token) :]
    return ids


# -- results ----------------------------------------------------------------------------------------------------------


def test_generate_appends_its_tokens_and_accounts_for_all_of_them() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    result = kit.generate(branch, 5)
    assert list(result.tokens) == greedy_of(PROMPT, 5)
    assert list(branch.tokens()) == [*PROMPT, *result.tokens]
    assert branch.length == 40
    assert result.finish_reason == "length"
    usage = result.usage
    assert (usage.prompt, usage.prefilled, usage.decoded, usage.generated) == (35, 35, 4, 5)
    assert usage.computed == kit.stat("tokens_computed") == 39
    assert usage.forward_passes == kit.stat("forward_passes") == 5
    assert usage.missed_because == {"new": 35}


def test_a_second_turn_reuses_prompt_and_answer() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    kit.generate(branch, 5)
    branch.append([1, 2])
    usage = kit.generate(branch, 1).usage
    assert (usage.cached, usage.prefilled) == (39, 3)


def test_generated_tokens_are_found_by_others() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    kit.generate(branch, 8)
    usage = kit.generate(kit.root(list(branch.tokens())), 1).usage
    assert (usage.cached, usage.prefilled) == (42, 1)


def test_an_end_token_is_in_neither_result_nor_branch() -> None:
    kit = Kit(16)
    ahead = greedy_of(PROMPT, 6)
    branch = kit.root(PROMPT)
    result = kit.generate(branch, 20, end_ids=frozenset({ahead[5]} - set(ahead[:5])))
    assert result.finish_reason == "stop"
    assert list(result.tokens) == ahead[:5]
    assert branch.length == 40


def test_end_tokens_are_forbidden_before_min_tokens() -> None:
    kit = Kit(16)
    ends = frozenset(range(62))
    result = kit.generate(kit.root(PROMPT), 9, min_tokens=3, end_ids=ends)
    assert len(result.tokens) >= 3
    assert [row.forbid for row in kit.sampler.rows[:4]] == [ends, ends, ends, frozenset()]


def test_max_tokens_zero_only_makes_the_prompt_resident() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    result = kit.generate(branch, 0)
    assert (result.tokens, result.finish_reason, result.usage.prefilled) == ((), "length", 35)
    assert kit.sampler.rows == []
    assert kit.generate(branch, 0).usage.forward_passes == 0


def test_each_draw_is_numbered_within_its_call() -> None:
    kit = Kit(16)
    kit.generate(kit.root(PROMPT), 4, key=SampleKey(5, 6))
    assert [row.position for row in kit.sampler.rows] == [0, 1, 2, 3]
    assert all(row.key == SampleKey(5, 6) for row in kit.sampler.rows)


def test_logprobs_are_the_models_own_and_one_per_token() -> None:
    kit = Kit(16)
    result = kit.generate(kit.root(PROMPT), 3, logprobs=2)
    assert result.logprobs is not None
    assert result.top_logprobs is not None
    for i, token in enumerate(result.tokens):
        row = logits_of(tag_of([*PROMPT, *result.tokens[:i]])).double().log_softmax(-1)
        assert result.logprobs[i] == pytest.approx(float(row[token]))
        assert len(result.top_logprobs[i]) == 2


# -- stop strings -----------------------------------------------------------------------------------------------------


def test_a_stop_string_truncates_to_the_last_whole_token() -> None:
    ahead = greedy_of(PROMPT, 8)
    texts = [VOCABULARY.token_bytes[token] or b"" for token in ahead]
    stop = texts[3][-1:] + texts[4]  # begins inside one token, ends with the next
    assert stop not in b"".join(texts[:4])
    kit = Kit(16)
    branch = kit.root(PROMPT)
    result = kit.generate(branch, 8, stop=(stop,))
    assert result.finish_reason == "stop"
    assert result.stop == stop
    text = VOCABULARY.text_of(result.tokens) + result.leftover
    assert b"".join(texts).startswith(text + stop)
    assert list(branch.tokens()) == [*PROMPT, *result.tokens]
    branch.append([60, 60])  # not what stood there before the truncation
    assert list(kit.generate(branch, 3).tokens) == greedy_of([*PROMPT, *result.tokens, 60, 60], 3)


def test_streamed_tokens_are_never_taken_back() -> None:
    ahead = greedy_of(PROMPT, 8)
    stop = VOCABULARY.text_of(ahead[3:6])
    for stops in ((), (stop,), (stop + b"\x00",)):
        seen: list[int] = []
        kit = Kit(16)
        result = kit.generate(kit.root(PROMPT), 8, stop=stops, on_tokens=seen.extend)
        assert tuple(seen) == result.tokens


# -- constraints ------------------------------------------------------------------------------------------------------


def test_a_constrained_value_is_in_the_language_and_complete() -> None:
    kit = Kit(16)
    branch = kit.root(PROMPT)
    result = kit.generate(branch, 20, constraint=OneOf(b"yes", b"no", b"maybe"), end_ids=frozenset({END}))
    assert VOCABULARY.text_of(result.tokens) in (b"yes", b"no", b"maybe")
    assert (result.finish_reason, result.complete) == ("constraint", True)


def test_text_cut_by_max_tokens_is_marked_incomplete() -> None:
    kit = Kit(16)
    assert kit.generate(kit.root(PROMPT), 1).complete
    result = kit.generate(kit.root(PROMPT), 1, constraint=OneOf(b"abcdef", b"bcdefg"))
    assert (result.finish_reason, result.complete) == ("length", False)


def test_forced_text_is_appended_in_one_prefill_with_its_last_token_open() -> None:
    kit = Kit(16, encode=encode)
    result = kit.generate(kit.root(PROMPT), 20, constraint=OneOf(b"abbcccd"))
    ids = encode("abbcccd")
    assert list(result.tokens) == ids
    assert result.usage.forced == len(ids) - 1
    assert result.usage.generated == len(ids)
    assert len(kit.sampler.rows) == 1  # the open last token
    assert kit.stat("forward_passes") == 1


def test_forced_text_that_max_tokens_cannot_hold_is_sampled() -> None:
    kit = Kit(16, encode=encode)
    result = kit.generate(kit.root(PROMPT), 2, constraint=OneOf(b"abcdefgh"))
    assert (len(result.tokens), result.usage.forced, result.finish_reason) == (2, 0, "length")


def test_forced_tokens_have_log_probabilities_too() -> None:
    kit = Kit(16, encode=encode)
    result = kit.generate(kit.root(PROMPT), 20, constraint=OneOf(b"abbcccd"), logprobs=1)
    assert result.logprobs is not None
    for i, token in enumerate(result.tokens):
        row = logits_of(tag_of([*PROMPT, *result.tokens[:i]])).double().log_softmax(-1)
        assert result.logprobs[i] == pytest.approx(float(row[token]))


def test_text_that_may_only_end_needs_no_forward_pass() -> None:
    kit = Kit(16)
    result = kit.generate(kit.root(PROMPT), 5, constraint=OneOf(b""))
    assert (result.tokens, result.finish_reason) == ((), "constraint")
    assert kit.stat("forward_passes") == 0


def test_end_tokens_are_allowed_under_a_constraint_only_where_the_text_may_end() -> None:
    kit = Kit(16)
    kit.generate(kit.root(PROMPT), 9, constraint=OneOf(b"a", b"ab"), end_ids=frozenset({END}))
    allowed = [row.allow for row in kit.sampler.rows]
    assert allowed[0] == frozenset()
    assert allowed[1:] == [frozenset({END})]


def test_a_constraint_that_nothing_satisfies_fails_before_any_forward_pass() -> None:
    kit = Kit(16)
    ticket = kit.root(PROMPT).generate(request(5, constraint=OneOf(b"\xff")))
    kit.drain()
    with pytest.raises(UnsatisfiableConstraint):
        ticket.result()
    assert kit.stat("forward_passes") == 0
