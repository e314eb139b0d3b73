"""Building the batch of one step: which row computes which token, who shares it, and which slots it writes."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch

from ..kernels.layout import BLOCK_SIZE, BlockCopy, StepBatch
from .block_pool import blocks_for
from .radix_tree import Node
from .sequence import Residency, Sequence
from .tips import TipLogits


class Flight:
    """A token that is computed in this step, below the token before it: the step's own small trie."""

    __slots__ = ("block", "children", "row", "tag")

    def __init__(self, row: int, block: int, tag: int) -> None:
        self.row = row
        self.block = block
        """Block that the row's own sequence writes it to."""
        self.tag = tag
        self.children: dict[int, Flight] = {}


@dataclass(slots=True)
class Placement:
    """What one sequence has in the step: positions ``start..shared_end-1`` are computed by other sequences' rows,
    ``shared_end..end-1`` by its own."""

    sequence: Sequence
    tokens: SequenceOf[int]
    start: int
    shared_end: int
    end: int
    num_rows: int = 0
    """Rows that were added for it, query-only ones included."""
    num_copies: int = 0
    logit_rows: dict[int, int] = field(default_factory=dict)
    """Row whose logits follow a position, for each wanted position that this step reaches."""
    known_logits: dict[int, torch.Tensor] = field(default_factory=dict)
    """Logits ``[vocab]`` after a wanted position that an earlier step has computed."""
    tags: list[int] = field(default_factory=list)
    """Lineage tags of the own rows' tokens."""


@dataclass(slots=True)
class Decoded:
    """A row that continues a sequence by one token in a leaf of its own: nothing is shared, nothing is copied."""

    sequence: Sequence
    token: int
    row: int
    tag: int


class StepBuilder:
    """Collects the rows of one step. Sequences must be placed after they took what the tree holds (``advance``)."""

    def __init__(self, residency: Residency, tips: TipLogits) -> None:
        self.placements: list[Placement] = []
        self.decoded: dict[Node, Decoded] = {}
        """By the leaf that grows."""
        self.num_query_rows = 0
        """Rows that compute no token, only the logits at one that is resident."""
        self._tip_logits = tips
        self._joint: dict[tuple[Node, int], list[Sequence]] = {}
        self._claimed: set[int] = set()
        self._residency = residency
        self._pool = residency.pool
        self._token_ids: list[int] = []
        self._positions: list[int] = []
        self._row_tables: list[int] = []
        self._tables: list[SequenceOf[int]] = []
        self._row_tags: list[int] = []
        self._decode_rows: list[int] = []
        self._decode_slots: list[int] = []
        self._write_rows: list[int] = []
        self._write_slots: list[int] = []
        self._copies: list[BlockCopy] = []
        self._logits: set[int] = set()
        self._flights: dict[Node | str, Flight] = {}
        self._tips: dict[Node, int] = {}

    @property
    def num_rows(self) -> int:
        return len(self._token_ids)

    def place_decodes(self, sequences: SequenceOf[Sequence], tokens: SequenceOf[int]) -> list[int]:
        """Give each sequence one row for its next token, with logits, where it writes in place or to a fresh block at
        the end of a leaf that it alone pins. Returns the row of each, -1 for those that need ``place``.

        One pass over local names: this runs for every row of every step (256 rows cost 0.4 ms of CPU).
        """
        pool, decoded = self._pool, self.decoded
        first_row, table_index = len(self._token_ids), len(self._tables)
        row, rows = first_row, [-1] * len(sequences)
        for index, seq in enumerate(sequences):
            node, resident, table = seq.node, seq.resident, seq.table
            if node is None or node.pins != 1 or node.children:
                continue
            offset = resident % BLOCK_SIZE
            if offset:
                below = pool.tag_below(table[-1], offset)
                if below is None:
                    continue
            elif pool.num_free:
                below = pool.tag(table[-1], BLOCK_SIZE - 1)
                table.append(pool.allocate())
            else:
                continue
            token = tokens[index]
            tag = hash((below, token))
            decoded[node] = Decoded(seq, token, row, tag)
            self._token_ids.append(token)
            self._positions.append(resident)
            self._tables.append(table)
            self._row_tags.append(tag)
            self._decode_slots.append(table[-1] * BLOCK_SIZE + offset)
            rows[index] = row
            row += 1
        placed = range(first_row, row)
        self._row_tables.extend(range(table_index, table_index + len(placed)))
        self._decode_rows.extend(placed)
        self._logits.update(placed)
        return rows

    def expect(self, sequences: SequenceOf[Sequence], tokens: SequenceOf[int]) -> None:
        """Announce sequences that will each be placed with one next token. Those at one tip with the same token go on
        in the block that they have in common, as if they were one."""
        groups: dict[tuple[Node, int], list[Sequence]] = {}
        for seq, token in zip(sequences, tokens, strict=True):
            if seq.node is not None:
                groups.setdefault((seq.node, token), []).append(seq)
        self._joint = {key: group for key, group in groups.items() if len(group) > 1}

    def shared(self, seq: Sequence, tokens: SequenceOf[int]) -> list[Flight]:
        """The rows of this step that already compute ``tokens[seq.resident:]``, as far as they go."""
        flight = self._flight_at(seq)
        run: list[Flight] = []
        for position in range(seq.resident, len(tokens)):
            flight = flight.children.get(tokens[position]) if flight is not None else None
            if flight is None:
                break
            run.append(flight)
        return run

    def knows_tip(self, seq: Sequence) -> bool:
        """Whether the logits at the sequence's resident tip are computed in this step already."""
        return seq.node is not None and (seq.node.tip is not None or seq.node in self._tips)

    def fresh_blocks(self, seq: Sequence, tokens: SequenceOf[int], shared_end: int, end: int) -> int:
        """Free blocks that ``place`` will allocate."""
        if end == shared_end:
            return 0
        first = shared_end // BLOCK_SIZE
        return blocks_for(end) - first - (1 if self._in_place(seq, tokens, shared_end) else 0)

    def place(
        self, seq: Sequence, tokens: SequenceOf[int], run: SequenceOf[Flight], end: int, wanted: SequenceOf[int]
    ) -> Placement:
        """Add the rows for ``tokens[resident + len(run):end]`` and for the ``wanted`` logits (positions, ascending).

        A wanted position that is resident gets a query-only row; one that another row computes gets that row's logits.
        """
        start = seq.resident
        placed = Placement(seq, tokens, start, start + len(run), end)
        first_row = self.num_rows
        table_index = len(self._tables)
        self._query_resident(placed, [position for position in wanted if position < start], table_index)
        for position in wanted:
            if start <= position < placed.shared_end:
                placed.logit_rows[position] = run[position - start].row
        if end > placed.shared_end:
            self._compute(placed, run, table_index, set(wanted))
        if self.num_rows > first_row:
            self._tables.append(seq.table)
        placed.num_rows = self.num_rows - first_row
        self._logits.update(placed.logit_rows.values())
        self.placements.append(placed)
        return placed

    def build(self) -> StepBatch:
        """The batch, once all sequences are placed."""
        return StepBatch(
            token_ids=self._token_ids,
            positions=self._positions,
            row_tables=self._row_tables,
            tables=self._tables,
            write_rows=self._decode_rows + self._write_rows,
            write_slots=self._decode_slots + self._write_slots,
            logit_rows=sorted(self._logits),
            copies=self._copies,
        )

    @property
    def num_computed(self) -> int:
        """Tokens that this step computes: rows that are written, each counted once."""
        return self.num_rows - self.num_query_rows

    def commit(self) -> None:
        """The step has run: record what was written and publish it in the tree."""
        self._pool.begin_step()
        for copy in self._copies:
            self._pool.end_copy(copy)
        for decoded in self.decoded.values():
            self._residency.grow(decoded.sequence, decoded.token, decoded.tag)
        for row, slot in zip(self._write_rows, self._write_slots, strict=True):
            self._pool.write(slot // BLOCK_SIZE, slot % BLOCK_SIZE, self._row_tags[row])
        for placed in self.placements:
            if placed.end > placed.shared_end:
                self._residency.commit(placed.sequence, placed.tokens, placed.end)
        for placed in self.placements:
            if placed.end == placed.shared_end > placed.start:
                self._residency.advance(placed.sequence, placed.tokens)
        for (node, _), group in self._joint.items():
            self._residency.unite(node, group)

    def abort(self) -> None:
        """The step has failed: nothing of it is resident, and its sequences hold nothing (the tree still may)."""
        for copy in self._copies:
            self._pool.abort_copy(copy)
        for placed in self.placements:
            self._residency.drop(placed.sequence)
        for decoded in self.decoded.values():
            self._residency.drop(decoded.sequence)

    def _flight_at(self, seq: Sequence) -> Flight | None:
        """The root of what this step computes below the sequence's tip, if anything."""
        flight = self._flights.get(seq.node or seq.namespace)
        if flight is not None or seq.node is None:
            return flight
        decoded = self.decoded.get(seq.node)
        if decoded is None:
            return None
        flight = self._flights[seq.node] = self._resident_tip(seq)
        flight.children[decoded.token] = Flight(decoded.row, decoded.sequence.table[-1], decoded.tag)
        return flight

    def _in_place(self, seq: Sequence, tokens: SequenceOf[int], shared_end: int) -> bool:
        """Whether the first own row goes to the sequence's own partial block, with no block taken: nobody else has it,
        or all who have it go on with the same token in this step."""
        offset = shared_end % BLOCK_SIZE
        if offset == 0 or shared_end != seq.resident or seq.node is None:
            return False
        block = seq.table[-1]
        if self._pool.writable(block, offset):
            return True
        owners = len(self._joint.get((seq.node, tokens[shared_end]), ()))
        unwritten = self._pool.num_written(block) == offset and block not in self._claimed
        return unwritten and self._pool.num_tables(block) <= owners

    def _query_resident(self, placed: Placement, positions: SequenceOf[int], table_index: int) -> None:
        seq = placed.sequence
        for position in positions:
            tip = seq.node if position == seq.resident - 1 else None
            known = self._tip_logits.use(tip)
            if known is not None:
                placed.known_logits[position] = known
                continue
            if tip is not None and tip in self._tips:
                placed.logit_rows[position] = self._tips[tip]
                continue
            self.num_query_rows += 1
            row = self._add_row(placed.tokens[position], position, table_index, 0)
            placed.logit_rows[position] = row
            if tip is not None:
                self._tips[tip] = row

    def _compute(self, placed: Placement, run: SequenceOf[Flight], table_index: int, wanted: set[int]) -> None:
        seq, tokens = placed.sequence, placed.tokens
        parent = run[-1] if run else self._flight_at(seq)
        if parent is None:
            parent = self._flights[seq.node or seq.namespace] = self._resident_tip(seq)
        self._share_blocks(placed, run)
        for position in range(placed.shared_end, placed.end):
            if position % BLOCK_SIZE == 0:
                seq.table.append(self._pool.allocate())
            block = seq.table[position // BLOCK_SIZE]
            tag = hash((parent.tag, tokens[position]))
            row = self._add_row(tokens[position], position, table_index, tag)
            self._write(row, block, position)
            flight = Flight(row, block, tag)
            parent.children[tokens[position]] = flight
            parent = flight
            placed.tags.append(tag)
            if position in wanted:
                placed.logit_rows[position] = row

    def _share_blocks(self, placed: Placement, run: SequenceOf[Flight]) -> None:
        """Name the blocks that other rows fill, and make the block of the first own row writable."""
        seq, start, shared_end = placed.sequence, placed.start, placed.shared_end
        for logical in range(start // BLOCK_SIZE, shared_end // BLOCK_SIZE):
            last = (logical + 1) * BLOCK_SIZE - 1
            if last >= start:
                self._residency.name(seq, logical, run[last - start].block)
        if shared_end % BLOCK_SIZE == 0:
            return
        if self._in_place(seq, placed.tokens, shared_end):
            self._claimed.add(seq.table[-1])
            return
        logical = shared_end // BLOCK_SIZE
        base = logical * BLOCK_SIZE
        target = self._pool.allocate()
        if start > base:
            copy = BlockCopy(seq.table[logical], target, start - base)
            self._pool.begin_copy(copy)
            self._copies.append(copy)
            placed.num_copies += 1
            self._residency.name(seq, logical, target)
            self._pool.remove_table(target)  # the table's reference replaces the allocation's
        else:
            seq.table.append(target)
        for position in range(max(start, base), shared_end):
            self._write(run[position - start].row, target, position)

    def _resident_tip(self, seq: Sequence) -> Flight:
        if seq.resident == 0:
            return Flight(-1, -1, hash(seq.namespace))
        position = seq.resident - 1
        block = seq.table[position // BLOCK_SIZE]
        return Flight(-1, block, self._pool.tag(block, position % BLOCK_SIZE))

    def _add_row(self, token: int, position: int, table_index: int, tag: int) -> int:
        self._token_ids.append(token)
        self._positions.append(position)
        self._row_tables.append(table_index)
        self._row_tags.append(tag)
        return len(self._token_ids) - 1

    def _write(self, row: int, block: int, position: int) -> None:
        self._write_rows.append(row)
        self._write_slots.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
