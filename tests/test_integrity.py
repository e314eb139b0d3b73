"""Each invariant, broken by hand: the walk must name it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from canary import CanaryFault
from engine_kit import Kit, request

from furcate.runtime.errors import EngineFailed
from furcate.runtime.kv_cache import KVCache
from furcate.runtime.radix_tree import Node
from furcate.runtime.requests import Branch


@pytest.fixture
def kit() -> Kit:
    kit = Kit(16)
    parent = kit.root(list(range(35)))
    kit.generate(parent, 0)
    branches = parent.fork(2)
    for i, branch in enumerate(branches):
        branch.append([40 + i])
        kit.generate(branch, 2)
    branches[0].release()
    kit.engine.check_integrity()
    kit.kept = [parent, *branches]  # type: ignore[attr-defined]
    return kit


def nodes(cache: KVCache) -> list[Node]:
    return [node for node in cache.tree.nodes() if node.parent is not None]


def deepest(cache: KVCache) -> Node:
    return max(nodes(cache), key=lambda node: node.end)


def free_twice(cache: KVCache) -> None:
    cache.pool._free.append(cache.pool._free[0])


def lose_a_block(cache: KVCache) -> None:
    cache.pool._free.pop()


def count_a_table_too_many(cache: KVCache) -> None:
    cache.pool._tables[nodes(cache)[0].blocks[0]] += 1


def forget_a_node(cache: KVCache) -> None:
    cache.pool._nodes[nodes(cache)[0].blocks[0]] -= 1


def free_a_named_block(cache: KVCache) -> None:
    cache.pool._free.append(nodes(cache)[0].blocks[0])


def orphan_a_child(cache: KVCache) -> None:
    deepest(cache).parent = Node(None, 0, [], [])


def leave_a_gap(cache: KVCache) -> None:
    deepest(cache).start += 1


def change_a_token(cache: KVCache) -> None:
    max((node for node in nodes(cache) if len(node.tokens) > 1), key=lambda node: node.end).tokens[-1] ^= 1


def swap_two_blocks(cache: KVCache) -> None:
    node = next(node for node in nodes(cache) if len(node.blocks) >= 2)
    node.blocks[0], node.blocks[1] = node.blocks[1], node.blocks[0]


def repoint_a_table(cache: KVCache) -> None:
    seq = next(iter(cache.residency.holders))
    seq.table[0], seq.table[1] = seq.table[1], seq.table[0]


def pin_below_zero(cache: KVCache) -> None:
    min(nodes(cache), key=lambda node: node.pins).pins -= 1


def pin_a_child_more_than_its_parent(cache: KVCache) -> None:
    deepest(cache).pins += 5


def miscount_cached(cache: KVCache) -> None:
    cache.pool.num_cached += 1
    cache.pool.num_referenced -= 1


def miscount_nodes(cache: KVCache) -> None:
    cache.tree.num_nodes += 1


def miscount_tokens(cache: KVCache) -> None:
    cache.tree.num_tokens -= 1


def lose_the_eviction_queue(cache: KVCache) -> None:
    cache.evictor._heap.clear()


def write_a_slot_over(cache: KVCache) -> None:
    block, offset, tag = cache.pool.last_writes[-1]
    cache.pool.last_writes.append((block, offset, tag))


@pytest.mark.parametrize(
    ("invariant", "damage"),
    [
        ("G1", free_twice),
        ("G1", lose_a_block),
        ("G2", count_a_table_too_many),
        ("G2", forget_a_node),
        ("G3", free_a_named_block),
        ("G4", orphan_a_child),
        ("G4", leave_a_gap),
        ("G5", change_a_token),
        ("G5", swap_two_blocks),
        ("G5", repoint_a_table),
        ("G6", pin_below_zero),
        ("G6", pin_a_child_more_than_its_parent),
        ("G7", miscount_cached),
        ("G7", miscount_nodes),
        ("G7", miscount_tokens),
        ("G7", lose_the_eviction_queue),
        ("G8", write_a_slot_over),
    ],
)
def test_damage_is_found_and_named(kit: Kit, invariant: str, damage: Callable[[KVCache], None]) -> None:
    damage(kit.engine.cache)
    with pytest.raises(RuntimeError, match=f"^{invariant}:"):
        kit.engine.check_integrity()


def test_the_canary_sees_a_perturbed_block_table(kit: Kit) -> None:
    branch: Branch = kit.kept[0]  # type: ignore[attr-defined]
    seq = branch._sequence  # type: ignore[attr-defined]
    seq.table[0], seq.table[1] = seq.table[1], seq.table[0]
    ticket = branch.generate(request(1))
    kit.drain()
    with pytest.raises(EngineFailed) as caught:
        ticket.result()
    assert isinstance(caught.value.__cause__, CanaryFault)
