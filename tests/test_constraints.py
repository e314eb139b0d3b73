"""Byte automata: the language of a pattern or of a set of choices, and what is refused."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from furcate.runtime.constraints import char_sets
from furcate.runtime.constraints.byte_dfa import DEAD, ByteDFA, compile_pattern
from furcate.runtime.constraints.choices import compile_choices
from furcate.runtime.constraints.regex_syntax import translate
from furcate.runtime.errors import InvalidRegex, UnsatisfiableConstraint

ALPHABET = 'abAB01 _-."\\é€\n\t\u017f\u212a'


def automaton(pattern: str) -> ByteDFA:
    return compile_pattern(translate(pattern))


def atoms() -> st.SearchStrategy[str]:
    literal = st.sampled_from(list("abB01é€")).map(re.escape)
    return st.one_of(
        literal, st.sampled_from([".", "[ab]", "[^a]", r"\d", r"\w", r"\s", "[a-c0]", r"[\w-]", '"', r"\\"])
    )


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map(lambda body: f"(?:{body})")
    return st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda arms: f"({'|'.join(arms)})"),
        st.tuples(group, st.sampled_from(["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{2,}", "{,2}"])).map("".join),
    )


patterns = st.recursive(atoms(), combine, max_leaves=6)


@settings(max_examples=150, deadline=None)
@given(patterns, st.lists(st.text(ALPHABET, max_size=5), min_size=5, max_size=20))
def test_language_is_that_of_python_full_match(pattern: str, texts: list[str]) -> None:
    dfa = automaton(pattern)
    for text in texts:
        both = bool(re.fullmatch(pattern, text)) and bool(re.fullmatch(pattern, text, re.ASCII))
        assert dfa.accepts(text.encode()) == both, (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(cat|category)", "cat"),
        ("(cat|category)", "category"),
        ("a*?", "aaa"),
        (r"[0-9]+(\.[0-9]+)?", "1.5"),
        (r"[a-z]+@[a-z]+(\.[a-z]{2,})+", "a@b.co.uk"),
        (r"^\d{2}$", "07"),
        (r"^a|b$", "b"),
        (r"\A(x|y)\Z", "y"),
        ("(?i)straSSe", "STRA\u017fse"),
        ("(?x) a b # comment", "ab"),
        ("(?s).", "\n"),
        ("(?P<year>[0-9]{4})", "2024"),
        ("", ""),
    ],
)
def test_pattern_accepts(pattern: str, text: str) -> None:
    assert re.fullmatch(pattern, text)
    assert automaton(pattern).accepts(text.encode())


def test_classes_hold_only_what_both_readings_of_them_hold() -> None:
    assert not automaton(r"\d").accepts("٣".encode())
    assert not automaton(r"\D").accepts("٣".encode())
    assert not automaton(r"[^\d]").accepts("٣".encode())
    assert automaton(r"[^\W\d]+").accepts(b"abc_")


@pytest.mark.parametrize("pattern", [".", "[^a]", r"\W", r"\S", r"\D", "(?s)."])
def test_reserved_bytes_are_in_no_class(pattern: str) -> None:
    row = automaton(pattern).table[0]
    assert row[1] == DEAD
    assert row[2] == DEAD


def test_any_character_is_valid_utf8_and_complete() -> None:
    dfa = automaton("(?s).")
    ways = dfa.accepting.astype(np.int64)  # texts of at most 4 bytes from each state
    for _ in range(4):
        ways = dfa.accepting + np.where(dfa.table != DEAD, ways[dfa.table], 0).sum(axis=1)
    assert ways[0] == 0x110000 - 0x800 - 2  # all but the surrogates and the two reserved characters
    for code in (0, 3, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF):
        assert dfa.accepts(chr(code).encode())
    for invalid in (b"\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\xe2\x82"):
        assert not dfa.accepts(invalid)


@pytest.mark.parametrize("pattern", ["a^b", "a$b", r"[^\s\S]", "(?:a^)b|[^\\d\\D]"])
def test_empty_languages_are_unsatisfiable(pattern: str) -> None:
    with pytest.raises(UnsatisfiableConstraint):
        translate(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)a", "(?<!a)b", r"(a)\1", r"\bword", "a++", "(?>a)", "(a", "[b-a]", "a*^b", "(?m)^a", "\x01",
     "((a{100}){100}){100}", ".{20000}", "(a)?(?(1)b|c)"],
)  # fmt: skip
def test_what_is_not_regular_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegex):
        translate(pattern)


def test_ignoring_case_agrees_with_re() -> None:
    every = "".join(chr(code) for low, high in char_sets.ALL for code in range(low, min(high, 0x1FFFF) + 1))
    for char in "sSkKiIßéΣςµåэ":
        expected = {ord(match) for match in re.findall(re.escape(char), every, re.IGNORECASE)}
        got = char_sets.ignoring_case(((ord(char), ord(char)),))
        assert {code for low, high in got for code in range(low, high + 1)} == expected


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 10)).map(lambda t: (t[0], t[0] + t[1])), max_size=6)


@given(ranges, ranges)
def test_char_sets_are_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    def members(chars: list[tuple[int, int]] | char_sets.CharSet) -> set[int]:
        return {code for low, high in chars for code in range(low, high + 1)}

    left, right = char_sets.union(a), char_sets.union(b)
    assert members(left) == members(a)
    assert members(char_sets.subtract(left, right)) == members(a) - members(b)
    assert members(char_sets.intersect(left, right)) == members(a) & members(b)


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=8), st.lists(st.binary(max_size=6), max_size=10))
def test_choices_accept_exactly_themselves(texts: list[bytes], others: list[bytes]) -> None:
    dfa = compile_choices(texts)
    assert all(dfa.accepts(text) for text in texts)
    assert [dfa.accepts(text) for text in others] == [text in texts for text in others]
    assert dfa.max_bytes == max(map(len, texts))
    assert dfa.min_bytes[0] == min(map(len, texts)) == len(dfa.shortest())


def test_no_choices_are_unsatisfiable() -> None:
    with pytest.raises(UnsatisfiableConstraint):
        compile_choices([])


@settings(max_examples=60, deadline=None)
@given(patterns)
def test_every_state_reaches_an_end_in_min_bytes(pattern: str) -> None:
    dfa = automaton(pattern)
    assert (dfa.min_bytes >= 0).all()
    assert (dfa.min_bytes == 0).tolist() == dfa.accepting.tolist()
    for state in np.flatnonzero(~dfa.accepting):
        following = dfa.table[state][dfa.table[state] != DEAD]
        assert dfa.min_bytes[state] == 1 + dfa.min_bytes[following].min()
    assert dfa.accepts(dfa.shortest())
    assert len(dfa.shortest()) == dfa.min_bytes[0]


@pytest.mark.parametrize(
    ("pattern", "longest"), [("a{2,5}", 5), ("a*", None), ("(cat|category)", 8), ("", 0), (".{0,3}", 12), ("é?b", 3)]
)
def test_longest_text(pattern: str, longest: int | None) -> None:
    assert automaton(pattern).max_bytes == longest


def test_alternatives_at_the_top_of_a_compiled_pattern_stay_whole() -> None:
    dfa = compile_pattern("cat|category|d")
    assert [dfa.accepts(text) for text in (b"cat", b"category", b"d", b"catd")] == [True, True, True, False]


def test_compilation_is_remembered() -> None:
    assert automaton("abc+") is automaton("abc+")
