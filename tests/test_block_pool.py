from __future__ import annotations

import pytest

from furcate.kernels.layout import BlockCopy
from furcate.runtime.block_pool import BlockPool, blocks_for


def ledger(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_cached, pool.num_referenced


def test_blocks_for_counts_whole_blocks() -> None:
    assert [blocks_for(n) for n in (0, 1, 16, 17, 35)] == [0, 1, 1, 2, 3]


def test_a_block_goes_from_free_to_referenced_to_cached_to_free() -> None:
    pool = BlockPool(4)
    block = pool.allocate()
    assert ledger(pool) == (3, 0, 1)
    pool.add_node(block)
    pool.remove_table(block)
    assert ledger(pool) == (3, 1, 0)
    pool.add_pin(block)
    assert ledger(pool) == (3, 0, 1)
    pool.remove_pin(block)
    pool.remove_node(block)
    assert ledger(pool) == (4, 0, 0)


def test_allocating_from_an_empty_pool_changes_nothing() -> None:
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(RuntimeError, match="no free block"):
        pool.allocate()
    assert ledger(pool) == (0, 0, 1)


def test_giving_back_twice_is_refused_and_counts_stay() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.remove_table(block)
    with pytest.raises(RuntimeError, match="no block table left"):
        pool.remove_table(block)
    with pytest.raises(RuntimeError, match="no tree node"):
        pool.remove_node(block)
    assert ledger(pool) == (2, 0, 0)
    assert sorted(pool.free_blocks()) == [0, 1]


def test_a_free_block_cannot_be_shared_or_named() -> None:
    pool = BlockPool(1)
    with pytest.raises(RuntimeError, match="free"):
        pool.add_table(0)
    with pytest.raises(RuntimeError, match="free"):
        pool.add_node(0)


def test_a_slot_is_written_once_and_in_order() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    pool.write(block, 0, 11)
    with pytest.raises(RuntimeError, match="write of slot 0"):
        pool.write(block, 0, 12)
    with pytest.raises(RuntimeError, match="write of slot 2"):
        pool.write(block, 2, 12)
    assert pool.num_written(block) == 1


def test_a_written_slot_is_forgotten_with_its_block() -> None:
    pool = BlockPool(1)
    pool.write(pool.allocate(), 0, 11)
    pool.remove_table(0)
    assert pool.num_written(pool.allocate()) == 0


def test_only_a_sole_table_may_write_the_next_slot_in_place() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.write(block, 0, 1)
    pool.add_node(block)  # a node covers written slots only
    assert pool.writable(block, 1)
    assert not pool.writable(block, 0)
    pool.add_table(block)
    assert not pool.writable(block, 1)


def test_both_ends_of_a_queued_copy_outlive_their_tables() -> None:
    pool = BlockPool(2)
    source, target = pool.allocate(), pool.allocate()
    for offset in range(3):
        pool.write(source, offset, 100 + offset)
    copy = BlockCopy(source, target, 3)
    pool.begin_copy(copy)
    pool.remove_table(source)
    pool.remove_table(target)
    assert ledger(pool) == (0, 0, 2)
    pool.add_table(target)
    pool.end_copy(copy)
    assert ledger(pool) == (1, 0, 1)
    assert [pool.tag(target, offset) for offset in range(3)] == [100, 101, 102]
    assert pool.num_copied == 1


def test_an_aborted_copy_gives_both_ends_back_and_is_not_counted() -> None:
    pool = BlockPool(2)
    copy = BlockCopy(pool.allocate(), pool.allocate(), 0)
    pool.begin_copy(copy)
    pool.remove_table(copy.source)
    pool.remove_table(copy.target)
    pool.abort_copy(copy)
    assert ledger(pool) == (2, 0, 0)
    assert pool.num_copied == 0
