from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from furcate.runtime.stops import StopMatch, StopMatcher


def feed_all(stops: list[bytes], tokens: list[bytes]) -> tuple[StopMatch | None, int]:
    """The first match and the number of tokens that were fed."""
    matcher = StopMatcher(stops)
    for i, token in enumerate(tokens):
        match = matcher.feed(token)
        if match is not None:
            return match, i + 1
    return None, len(tokens)


def test_stop_inside_one_token_leaves_the_text_before_it() -> None:
    assert feed_all([b"END"], [b"ab", b"cENDd"])[0] == StopMatch(1, b"c", b"END")


def test_stop_across_three_tokens_takes_them_all_back() -> None:
    assert feed_all([b"END"], [b"ab", b"E", b"N", b"D"])[0] == StopMatch(1, b"", b"END")


def test_of_two_stops_that_complete_together_the_longer_wins() -> None:
    assert feed_all([b"b", b"ab"], [b"xab"])[0] == StopMatch(0, b"x", b"ab")


def test_the_stop_that_completes_first_wins_even_if_another_began_before() -> None:
    for tokens in ([b"abcd"], [b"a", b"b", b"c", b"d"]):
        match, _ = feed_all([b"abcd", b"c"], tokens)
        assert match is not None
        assert match.stop == b"c"


def test_a_token_that_ends_inside_a_character_is_not_kept() -> None:
    e_acute = "é".encode()
    match, _ = feed_all([b"!"], [b"a", b"x" + e_acute[:1], e_acute[1:] + b"!"])
    assert match == StopMatch(1, b"x" + e_acute, b"!")


def test_tokens_that_may_begin_a_stop_are_held_back() -> None:
    matcher = StopMatcher([b"abc"])
    settled = []
    for token in [b"x", b"a", b"b", b"d", b"y"]:
        assert matcher.feed(token) is None
        settled.append(matcher.settled())
    assert settled == [1, 1, 1, 4, 5]


TEXTS = st.lists(st.sampled_from(["a", "b", "ab", "é", "ß", "日", ""]), min_size=1, max_size=10).map("".join)


@given(text=TEXTS, stops=st.lists(TEXTS.filter(bool), min_size=1, max_size=3), cuts=st.sets(st.integers(1, 30)))
@example(text="aé", stops=["é"], cuts={2})
def test_matching_agrees_with_a_search_over_the_whole_text(text: str, stops: list[str], cuts: set[int]) -> None:
    raw = text.encode()
    points = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    tokens = [raw[a:b] for a, b in itertools.pairwise(points)]
    encoded = [stop.encode() for stop in stops]
    match, fed = feed_all(encoded, tokens)
    ends = [(raw.find(stop) + len(stop), raw.find(stop)) for stop in encoded if stop in raw]
    if not ends:
        assert match is None
        return
    end, start = min(ends)
    assert match is not None
    assert match.stop == raw[start:end]
    kept = b"".join(tokens[: match.kept])
    assert kept + match.leftover == raw[:start]
    kept.decode()
    assert len(b"".join(tokens[:fed])) >= end > len(b"".join(tokens[: fed - 1]))
    whole = [i for i in range(fed + 1) if len(b"".join(tokens[:i])) <= start and _decodes(b"".join(tokens[:i]))]
    assert match.kept == max(whole)


@given(text=TEXTS, stops=st.lists(TEXTS.filter(bool), min_size=1, max_size=3), cuts=st.sets(st.integers(1, 30)))
def test_settled_tokens_are_never_taken_back(text: str, stops: list[str], cuts: set[int]) -> None:
    raw = text.encode()
    points = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    matcher = StopMatcher([stop.encode() for stop in stops])
    settled = 0
    for a, b in itertools.pairwise(points):
        match = matcher.feed(raw[a:b])
        if match is not None:
            assert match.kept >= settled
            return
        assert matcher.settled() >= settled
        settled = matcher.settled()


def _decodes(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
