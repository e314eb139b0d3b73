"""Token masks: equal to trying every token, without dead ends, whatever the vocabulary."""

import random

import numpy as np
import pytest

from furcate.runtime.constraints.byte_dfa import DEAD, compile_pattern
from furcate.runtime.constraints.choices import compile_choices
from furcate.runtime.constraints.regex_syntax import translate
from furcate.runtime.constraints.token_masks import DFAConstraint, TokenTrie, constraint_of, trie_of
from furcate.runtime.errors import UnsatisfiableConstraint
from furcate.runtime.vocabulary import Vocabulary

MERGED = [b"cat", b"ca", b"te", b"gory", b"ab", b"aba", b"12", b"3.", b'",', b'":"', b"\xc3\xa9", b"\xa9", b"\xe2\x82",
          b"ab", b"", b" the", b"\x01a", b"bb\n"]  # fmt: skip
SPECIALS = 3


def vocabulary(*, without: bytes = b"") -> Vocabulary:
    """Bytes, merged tokens (one twice, one empty), specials, and an end-of-sequence id that has bytes."""
    single = [bytes([byte]) for byte in range(256) if byte not in without]
    return Vocabulary((*single, *MERGED, *(None,) * SPECIALS, b"a"), frozenset({len(single) + len(MERGED) + SPECIALS}))


def allowed(constraint: DFAConstraint, state: object) -> set[int]:
    mask = constraint.mask(state)
    assert mask.dtype == np.uint32
    assert mask.shape == ((constraint.vocabulary.size + 31) // 32,)
    return {i for i in range(len(mask) * 32) if mask[i // 32] >> np.uint32(i % 32) & 1}


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    if depth == 0:
        return rng.choice(["a", "b", "c", "[ab]", "[^a]", ".", r"\d", "é", "€", "cat", "te", '"', ",", r"\."])
    kind = rng.randrange(4)
    if kind == 0:
        return "".join(random_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if kind == 1:
        return "(" + "|".join(random_pattern(rng, depth - 1) for _ in range(rng.randint(2, 3))) + ")"
    if kind == 2:
        return f"(?:{random_pattern(rng, depth - 1)})" + rng.choice(["*", "+", "?", "{0,2}", "{2}"])
    return random_pattern(rng, depth - 1)


@pytest.mark.parametrize("seed", range(50))
def test_mask_equals_trying_every_token(seed: int) -> None:
    rng = random.Random(seed)
    vocab = vocabulary()
    dfa = compile_pattern(translate(random_pattern(rng)))
    constraint = DFAConstraint(dfa, vocab)
    for _ in range(3):
        state = constraint.initial()
        text = b""
        for _ in range(8):
            expected = {
                i
                for i, token in enumerate(vocab.token_bytes)
                if token and i not in vocab.eos_ids and dfa.step(0, text + token) != DEAD
            }
            assert allowed(constraint, state) == expected
            assert constraint.may_end(state) == dfa.accepts(text)
            if not expected:
                break
            token = rng.choice(sorted(expected))
            state = constraint.advance(state, token)
            text += vocab.token_bytes[token] or b""


def test_mask_is_read_only_and_remembered() -> None:
    constraint = DFAConstraint(compile_pattern("a+"), vocabulary())
    mask = constraint.mask(0)
    assert constraint.mask(0) is mask
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = 1


def test_advance_refuses_what_the_mask_excludes() -> None:
    vocab = vocabulary()
    constraint = DFAConstraint(compile_pattern("(?:cat|category)"), vocab)
    may = allowed(constraint, 0)
    for token in range(-1, vocab.size + 1):
        if token in may:
            constraint.advance(0, token)
        else:
            with pytest.raises(ValueError, match="token"):
                constraint.advance(0, token)


def test_prefix_choice_may_end_and_may_go_on() -> None:
    vocab = vocabulary()
    constraint = DFAConstraint(compile_pattern("(?:cat|category)"), vocab)
    state = constraint.advance(0, vocab.token_bytes.index(b"cat"))
    assert constraint.may_end(state)
    assert constraint.forced(state) == b""
    state = constraint.advance(state, ord("e"))
    assert not constraint.may_end(state)
    assert constraint.forced(state) == b"gory"
    assert constraint.min_bytes(state) == 4


@pytest.mark.parametrize("missing", [b"c", b"\xc3", b"b\xa9", bytes(range(0x80, 0xC0))])
def test_bytes_that_the_vocabulary_lacks_make_no_dead_end(missing: bytes) -> None:
    vocab = vocabulary(without=missing)
    constraint = DFAConstraint(compile_pattern(translate("(?:(?:c|cab|é€?|a)(?:.|b+c))+")), vocab)
    rng = random.Random(0)
    for _ in range(30):
        state = constraint.initial()
        for _ in range(6):
            state = constraint.advance(state, rng.choice(sorted(allowed(constraint, state))))
        for _ in range(constraint.min_bytes(state)):
            shorter = [
                token
                for token in allowed(constraint, state)
                if constraint.min_bytes(constraint.advance(state, token)) == constraint.min_bytes(state) - 1
                and len(vocab.token_bytes[token] or b"") == 1
            ]
            state = constraint.advance(state, shorter[0])
        assert constraint.may_end(state)


def test_language_that_the_vocabulary_cannot_spell_is_unsatisfiable() -> None:
    with pytest.raises(UnsatisfiableConstraint, match="vocabulary"):
        DFAConstraint(compile_pattern("xyz"), vocabulary(without=b"y"))


def test_trie_and_constraints_are_shared_by_digest() -> None:
    dfa = compile_choices([b"yes", b"no"])
    assert trie_of(vocabulary()) is trie_of(vocabulary())
    assert constraint_of(dfa, vocabulary()) is constraint_of(dfa, vocabulary())
    assert constraint_of(dfa, vocabulary()) is not constraint_of(dfa, vocabulary(without=b"\x00"))


def test_trie_holds_every_token_once() -> None:
    vocab = vocabulary()
    trie = TokenTrie(vocab)
    everything = np.zeros((1, 256), dtype=np.int32)
    found = trie.allowed(everything, 0).tolist()
    assert sorted(found) == [i for i, token in enumerate(vocab.token_bytes) if token and i not in vocab.eos_ids]
