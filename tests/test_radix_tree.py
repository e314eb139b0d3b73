from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from furcate.kernels.layout import BLOCK_SIZE
from furcate.runtime.eviction import Evictor
from furcate.runtime.integrity import check_integrity
from furcate.runtime.kv_cache import KVCache
from furcate.runtime.radix_tree import Node
from furcate.runtime.sequence import Sequence

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=50)


class Writer:
    """Computes sequences into a cache the way a step does, without a model."""

    def __init__(self, num_blocks: int = 400) -> None:
        self.cache = KVCache(num_blocks)
        self.born = 0

    def compute(self, tokens: list[int], namespace: str = "") -> Sequence:
        self.born += 1
        seq = Sequence(namespace, self.born)
        self.cache.residency.advance(seq, tokens)
        self.extend(seq, tokens)
        return seq

    def extend(self, seq: Sequence, tokens: list[int]) -> None:
        pool, residency = self.cache.pool, self.cache.residency
        if seq.resident == len(tokens):
            return
        tag = hash(seq.namespace)
        for token in tokens[: seq.resident]:
            tag = hash((tag, token))
        offset = seq.resident % BLOCK_SIZE
        if offset and not pool.writable(seq.table[-1], offset):
            old = seq.table[-1]
            seq.table[-1] = pool.allocate()
            for i in range(offset):
                pool.write(seq.table[-1], i, pool.tag(old, i))
            pool.remove_table(old)
        for position in range(seq.resident, len(tokens)):
            if position % BLOCK_SIZE == 0:
                seq.table.append(pool.allocate())
            tag = hash((tag, tokens[position]))
            pool.write(seq.table[-1], position % BLOCK_SIZE, tag)
        residency.commit(seq, tokens, len(tokens))

    def hit(self, tokens: list[int], namespace: str = "") -> int:
        probe = Sequence(namespace, 0)
        gained = self.cache.residency.advance(probe, tokens)
        self.cache.residency.drop(probe)
        return gained


def common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@given(runs=st.lists(TOKENS, min_size=1, max_size=8), probe=TOKENS)
def test_a_match_is_as_long_as_the_longest_common_prefix(runs: list[list[int]], probe: list[int]) -> None:
    writer = Writer()
    for run in runs:
        writer.compute(run)
        check_integrity(writer.cache)
    assert writer.hit(probe) == max(common(run, probe) for run in runs)
    check_integrity(writer.cache)


@given(runs=st.lists(TOKENS, min_size=1, max_size=8))
def test_the_tree_holds_every_distinct_prefix_once(runs: list[list[int]]) -> None:
    writer = Writer()
    for run in runs:
        writer.compute(run)
    prefixes = {tuple(run[:n]) for run in runs for n in range(1, len(run) + 1)}
    assert writer.cache.tree.num_tokens == len(prefixes)


def test_a_split_inside_a_block_lets_both_nodes_hold_it_and_copies_nothing() -> None:
    writer = Writer()
    seq = writer.compute(list(range(20)))
    upper = writer.cache.tree.split(_only_child(writer), 18)
    (lower,) = upper.children.values()
    assert (upper.end, lower.end) == (18, 20)
    assert upper.blocks == seq.table
    assert lower.blocks == seq.table[1:]
    assert writer.cache.pool.num_free == 400 - 2
    assert writer.cache.pool.counts(seq.table[1])[3] == 2
    check_integrity(writer.cache)


def test_a_split_at_a_block_boundary_shares_no_block() -> None:
    writer = Writer()
    seq = writer.compute(list(range(20)))
    upper = writer.cache.tree.split(_only_child(writer), 16)
    (lower,) = upper.children.values()
    assert (upper.blocks, lower.blocks) == (seq.table[:1], seq.table[1:])
    check_integrity(writer.cache)


def test_namespaces_share_nothing() -> None:
    writer = Writer()
    writer.compute([1, 2, 3], "a")
    assert writer.hit([1, 2, 3], "b") == 0
    assert writer.hit([1, 2, 3], "a") == 3


def test_an_empty_namespace_leaves_no_root_behind() -> None:
    writer = Writer()
    seq = writer.compute([1, 2, 3], "tenant")
    writer.cache.residency.drop(seq)
    writer.cache.evictor.evict(400)
    assert writer.cache.tree.roots == {}


def test_a_sequence_that_grows_alone_stays_one_node() -> None:
    writer = Writer()
    tokens = [1] * 40
    seq = writer.compute(tokens)
    for _ in range(40):
        tokens.append(1)
        writer.extend(seq, tokens)
    assert writer.cache.tree.num_nodes == 1
    check_integrity(writer.cache)


def test_eviction_takes_the_tail_first_and_leaves_the_head_to_hit() -> None:
    writer = Writer()
    writer.cache.residency.drop(writer.compute(list(range(48))))
    assert writer.cache.evictor.evict(1) == 1
    assert writer.hit(list(range(48))) == 32


def test_eviction_spares_a_pinned_path_and_says_so() -> None:
    writer = Writer(4)
    held = writer.compute(list(range(32)))
    writer.cache.residency.drop(writer.compute([9] * 32))
    assert writer.cache.evictor.evict(4) == 2
    assert writer.hit(list(range(32))) == 32
    assert held.resident == 32
    check_integrity(writer.cache)


def test_evicting_a_node_that_shares_its_block_frees_no_block() -> None:
    writer = Writer()
    long = writer.compute(list(range(20)))
    short = Sequence("", 99)
    writer.cache.residency.advance(short, list(range(18)))
    writer.cache.residency.drop(long)
    freed = writer.cache.evictor.evict(1)
    assert freed == 0
    assert writer.hit(list(range(20))) == 18
    check_integrity(writer.cache)


def test_an_evicted_id_that_holds_other_tokens_is_no_hit() -> None:
    writer = Writer(2)
    writer.cache.residency.drop(writer.compute([1] * 32))
    writer.cache.evictor.evict(2)
    writer.cache.residency.drop(writer.compute([2] * 32))
    assert writer.hit([1] * 32) == 0
    assert writer.hit([2] * 32) == 32


def test_dead_goes_before_the_unknown_and_the_soonest_use_goes_last() -> None:
    writer = Writer()
    names = {"soon": [1] * 16, "late": [2] * 16, "unknown": [3] * 16, "dead": [4] * 16}
    sequences = {name: writer.compute(tokens) for name, tokens in names.items()}
    sequences["soon"].next_use, sequences["late"].next_use = 1, 100
    for name in ("soon", "late", "unknown"):
        writer.cache.residency.drop(sequences[name])
    writer.cache.residency.drop_dead(sequences["dead"])
    order = []
    while writer.cache.evictor.evict(1):
        order += [name for name, run in names.items() if name not in order and run[0] not in _first_tokens(writer)]
    assert order == ["dead", "unknown", "late", "soon"]


def test_without_any_knowledge_the_least_recently_released_goes_first() -> None:
    writer = Writer()
    runs = [[i] * 16 for i in range(4)]
    sequences = [writer.compute(run) for run in runs]
    for i in (2, 0, 3, 1):
        writer.cache.residency.drop(sequences[i])
    order = []
    while writer.cache.evictor.evict(1):
        order += [i for i, run in enumerate(runs) if i not in order and run[0] not in _first_tokens(writer)]
    assert order == [2, 0, 3, 1]


@settings(max_examples=60)
@given(runs=st.lists(TOKENS, min_size=1, max_size=10), kept=st.sets(st.integers(0, 9)), n=st.integers(1, 30))
def test_eviction_keeps_the_ledger_whole_and_the_pinned_resident(runs: list[list[int]], kept: set[int], n: int) -> None:
    writer = Writer()
    sequences = [writer.compute(run) for run in runs]
    for i, seq in enumerate(sequences):
        if i not in kept:
            writer.cache.residency.drop(seq)
    writer.cache.evictor.evict(n)
    check_integrity(writer.cache)
    for i, run in enumerate(runs):
        if i in kept:
            assert writer.hit(run) == len(run)
    writer.cache.evictor.evict(400)
    check_integrity(writer.cache)
    if not kept & set(range(len(runs))):
        assert writer.cache.pool.num_free == 400


def test_the_eviction_queue_does_not_grow_with_use() -> None:
    writer = Writer()
    writer.cache.residency.drop(writer.compute([1, 2, 3]))
    for _ in range(2000):
        writer.hit([1, 2, 3])
    assert len(writer.cache.evictor._heap) < 200
    assert isinstance(writer.cache.evictor, Evictor)


def _only_child(writer: Writer) -> Node:
    (root,) = writer.cache.tree.roots.values()
    (child,) = root.children.values()
    return child


def _first_tokens(writer: Writer) -> set[int]:
    return {token for root in writer.cache.tree.roots.values() for token in root.children}


def test_paths_are_not_renamed_to_a_block_that_is_still_to_be_written() -> None:
    writer = Writer()
    seq = writer.compute(list(range(20)))
    before = list(_only_child(writer).blocks)
    old, seq.table[-1] = seq.table[-1], writer.cache.pool.allocate()  # as while a step with a copy is planned
    writer.cache.residency.compact(seq)
    assert _only_child(writer).blocks == before
    writer.cache.pool.remove_table(old)
