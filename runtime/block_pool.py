"""The KV ledger: a fixed pool of blocks, and the only place where a reference to a block is taken or given back."""

from __future__ import annotations

from ..kernels.layout import BLOCK_SIZE, BlockCopy


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold ``num_tokens`` tokens from position 0 on."""
    return -(-num_tokens // BLOCK_SIZE)


class BlockPool:
    """References to blocks, by kind, and what each written slot holds.

    A block is *referenced* while a block table, a queued copy or a pinned tree node names it, *cached* while only
    unpinned tree nodes do, *free* otherwise. Slots of a block are written in ascending order, once each until the
    block is free again; ``tag`` of a slot is the hash of its whole token lineage.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a KV pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.num_cached = 0
        self.num_referenced = 0
        self.num_copied = 0
        """Blocks copied on write, ever."""
        self.pending_copies: list[BlockCopy] = []
        """Copies that were queued and whose step has not completed."""
        self.last_writes: list[tuple[int, int, int]] = []
        """(block, offset, tag) written since ``begin_step``."""
        self._free = list(range(num_blocks - 1, -1, -1))
        self._tables = [0] * num_blocks
        self._copies = [0] * num_blocks
        self._pins = [0] * num_blocks
        self._nodes = [0] * num_blocks
        self._held = [0] * num_blocks  # tables + copies + pins
        self._tags: list[list[int]] = [[] for _ in range(num_blocks)]

    @property
    def num_free(self) -> int:
        return len(self._free)

    # -- block tables ---------------------------------------------------------------------------------------------

    def allocate(self) -> int:
        """Take a free block for one block table. Raises RuntimeError when none is free: reserve first."""
        if not self._free:
            raise RuntimeError("no free block: the caller must make room before it allocates")
        block = self._free.pop()
        self._tables[block] = 1
        self._held[block] = 1
        self.num_referenced += 1
        return block

    def add_table(self, block: int) -> None:
        """One more block table names ``block``."""
        self._hold(self._tables, block)

    def remove_table(self, block: int) -> None:
        self._drop(self._tables, block, "block table")

    def writable(self, block: int, offset: int) -> bool:
        """Whether the one table that names ``block`` may write slot ``offset`` in place: no other table names it and
        the slot was never written. Tree nodes do not count, since a node covers written slots only; nor does a queued
        copy from this block, which reads slots below ``offset`` before the step writes anything."""
        return self._tables[block] == 1 and len(self._tags[block]) == offset

    def tag_below(self, block: int, offset: int) -> int | None:
        """Lineage tag of slot ``offset - 1`` where slot ``offset`` may be written in place, None where it may not."""
        tags = self._tags[block]
        return tags[-1] if len(tags) == offset and self._tables[block] == 1 else None

    # -- tree nodes -----------------------------------------------------------------------------------------------

    def add_node(self, block: int) -> None:
        """One more tree node names ``block``, which must not be free."""
        if self._held[block] == 0 and self._nodes[block] == 0:
            raise RuntimeError(f"block {block} is free: a tree node cannot name it")
        self._nodes[block] += 1

    def remove_node(self, block: int) -> None:
        if self._nodes[block] <= 0:
            raise RuntimeError(f"no tree node names block {block}")
        self._nodes[block] -= 1
        if self._nodes[block] == 0 and self._held[block] == 0:
            self.num_cached -= 1
            self._give_back(block)

    def add_pin(self, block: int) -> None:
        """A tree node that names ``block`` has become pinned."""
        self._hold(self._pins, block)

    def remove_pin(self, block: int) -> None:
        self._drop(self._pins, block, "pin")

    # -- copies and writes ----------------------------------------------------------------------------------------

    def begin_copy(self, copy: BlockCopy) -> None:
        """Queue a copy: both ends stay referenced until ``end_copy`` or ``abort_copy``."""
        self._hold(self._copies, copy.source)
        self._hold(self._copies, copy.target)
        self.pending_copies.append(copy)

    def end_copy(self, copy: BlockCopy) -> None:
        """The copy's step has completed: the target's slots are written."""
        if self._tags[copy.target]:
            raise RuntimeError(f"copy into block {copy.target}, of which slots are written")
        if len(self._tags[copy.source]) < copy.num_slots:
            raise RuntimeError(f"copy of {copy.num_slots} slots from block {copy.source}, which has fewer written")
        self._tags[copy.target] = self._tags[copy.source][: copy.num_slots]
        self.num_copied += 1
        self.abort_copy(copy)

    def abort_copy(self, copy: BlockCopy) -> None:
        """Forget a queued copy that did not run."""
        self.pending_copies.remove(copy)
        self._drop(self._copies, copy.source, "queued copy")
        self._drop(self._copies, copy.target, "queued copy")

    def begin_step(self) -> None:
        """Start the record of the slots that one step writes."""
        self.last_writes.clear()

    def write(self, block: int, offset: int, tag: int) -> None:
        """Record that slot ``offset`` was written. Raises RuntimeError if it was written before, or out of order."""
        tags = self._tags[block]
        if offset != len(tags) or offset >= BLOCK_SIZE:
            raise RuntimeError(f"block {block}: write of slot {offset}, while {len(tags)} slots are written")
        if self._tables[block] == 0:
            raise RuntimeError(f"block {block}: write to a block that no table names")
        tags.append(tag)
        self.last_writes.append((block, offset, tag))

    def num_written(self, block: int) -> int:
        """Written slots of ``block``; they are its first ones."""
        return len(self._tags[block])

    def tag(self, block: int, offset: int) -> int:
        """Lineage tag of a written slot."""
        return self._tags[block][offset]

    # -- read-outs for integrity checks ---------------------------------------------------------------------------

    def free_blocks(self) -> list[int]:
        """Ids of the free blocks."""
        return list(self._free)

    def counts(self, block: int) -> tuple[int, int, int, int]:
        """(tables, queued copies, pins, nodes) that name ``block``."""
        return self._tables[block], self._copies[block], self._pins[block], self._nodes[block]

    def num_tables(self, block: int) -> int:
        """Block tables that name ``block``."""
        return self._tables[block]

    # -- transitions ----------------------------------------------------------------------------------------------

    def _hold(self, counts: list[int], block: int) -> None:
        if self._held[block] == 0:
            if self._nodes[block] == 0:
                raise RuntimeError(f"block {block} is free: it must be allocated, not shared")
            self.num_cached -= 1
            self.num_referenced += 1
        counts[block] += 1
        self._held[block] += 1

    def _drop(self, counts: list[int], block: int, kind: str) -> None:
        if counts[block] <= 0:
            raise RuntimeError(f"block {block}: no {kind} left to give back")
        counts[block] -= 1
        self._held[block] -= 1
        if self._held[block]:
            return
        self.num_referenced -= 1
        if self._nodes[block]:
            self.num_cached += 1
        else:
            self._give_back(block)

    def _give_back(self, block: int) -> None:
        self._tags[block] = []
        self._free.append(block)
