"""Placing the calls of one step: how many of a call's tokens get rows, and what is counted for them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from ..kernels.layout import BLOCK_SIZE
from .generation import Generation
from .kv_cache import KVCache
from .scoring import Chain, Scoring
from .sequence import Sequence
from .step import Placement, StepBuilder
from .tally import Tally
from .waiting import Work

MAX_CHAIN_SHARE = 4
"""One part in so many of the pool's blocks is what the chains of a scored trie may spread over in a step; those that
are done are evicted first, so that scoring thousands of choices does not empty the cache."""


class StepPlan:
    """The rows of one step and whose they are."""

    def __init__(self, builder: StepBuilder) -> None:
        self.builder = builder
        self.reserved_rows = 0
        """Rows that are kept for calls that decode and are not placed yet."""
        self.decodes: list[tuple[Generation, int]] = []
        """Calls that go on by one token, with their rows."""
        self.generations: list[tuple[Generation, Placement]] = []
        self.chains: list[tuple[Scoring, Chain, Placement]] = []

    @property
    def is_empty(self) -> bool:
        return not (self.decodes or self.generations or self.chains)

    def works(self) -> list[Work]:
        """Every call with a part in the step, once."""
        found: dict[Work, None] = {work: None for work, _ in self.decodes}
        found.update((work, None) for work, _ in self.generations)
        found.update((work, None) for work, _, _ in self.chains)
        return list(found)


class Placer:
    """Places calls one after another. ``make_room(plan, call, blocks, urgent)`` has blocks free or says that it cannot;
    ``charge(call, tokens)`` is told of the tokens that will be computed for a call."""

    def __init__(
        self,
        cache: KVCache,
        *,
        max_step_tokens: int,
        make_room: Callable[[StepPlan, Work, int, bool], bool],
        charge: Callable[[Work, int], None],
    ) -> None:
        self._cache = cache
        self._max_step_tokens = max_step_tokens
        self._make_room = make_room
        self._charge = charge

    def new_plan(self) -> StepPlan:
        """An empty step."""
        return StepPlan(StepBuilder(self._cache.residency, self._cache.tips))

    def decode(self, plan: StepPlan, works: list[Generation]) -> list[Generation]:
        """Give each of these steady calls its row; returns those that need ``generate``, since they share, copy or
        find no free block."""
        rows = plan.builder.place_decodes([w.sequence for w in works], [w.tokens[-1] for w in works])
        left: list[Generation] = []
        for work, row in zip(works, rows, strict=True):
            if row < 0:
                left.append(work)
                continue
            plan.decodes.append((work, row))
            work.tally.decoded(work.sequence.resident)
            self._charge(work, 1)
        return left

    def generate(self, plan: StepPlan, work: Generation, *, urgent: bool) -> None:
        """Place as much of a generation as the budget and the pool allow."""
        placed = self._place(plan, work, work.sequence, work.tokens, wanted=work.wanted(), urgent=urgent)
        if placed is not None:
            plan.generations.append((work, placed))

    def score(self, plan: StepPlan, work: Scoring, *, urgent: bool) -> None:
        """Place chains of a scored trie. Urgency is the first chain's only: the others take what is to be had."""
        self.advance(work.sequence, work.tokens, work.tally)
        assigned: set[int] = set()
        for chain in work.chains[: max(1, self._cache.pool.num_blocks // MAX_CHAIN_SHARE)]:
            fresh = chain.sequence is None
            seq = chain.sequence or self._start_chain(work, chain)
            wanted = [p for p in work.wanted(chain) if id(work.node_at(chain, p)) not in assigned]
            placed = self._place(plan, work, seq, chain.tokens, wanted=wanted, urgent=urgent)
            if placed is None:
                if fresh:
                    self._end_chain(chain)
                return
            urgent = False
            assigned.update(id(work.node_at(chain, p)) for p in (*placed.logit_rows, *placed.known_logits))
            plan.chains.append((work, chain, placed))

    def advance(self, seq: Sequence, tokens: SequenceOf[int], tally: Tally) -> None:
        """Take what the tree holds. What is there at a call's first look was cached, or came by fork; what comes
        while it waits was computed for a sibling."""
        first = not tally.looked
        tally.looked = True
        if first:
            tally.found(min(seq.inherited, seq.resident), shared=True)
            tally.found(seq.resident, shared=False)
            seq.inherited = 0
        if self._cache.residency.advance(seq, tokens):
            tally.found(seq.resident, shared=not first)

    def _place(
        self,
        plan: StepPlan,
        work: Work,
        seq: Sequence,
        tokens: SequenceOf[int],
        *,
        wanted: SequenceOf[int],
        urgent: bool,
    ) -> Placement | None:
        """Place as much of ``tokens`` as the budget and the pool allow; None where that is nothing. Where it is
        ``urgent``, others give way."""
        builder = plan.builder
        self.advance(seq, tokens, work.tally)
        fits = False
        while not fits:
            run = builder.shared(seq, tokens)
            shared_end = seq.resident + len(run)
            budget = max(0, self._max_step_tokens - builder.num_rows - plan.reserved_rows)
            queries, num_rows = _affordable(wanted, seq.resident, budget, knows_tip=builder.knows_tip(seq))
            end = max(shared_end, min(len(tokens), shared_end + budget - num_rows))
            need = builder.fresh_blocks(seq, tokens, shared_end, end)
            fits = self._make_room(plan, work, need, urgent) or (
                builder.fresh_blocks(seq, tokens, shared_end, end) <= self._cache.pool.num_free
            )
            if not fits and not (urgent and self._retreat(seq, tokens)):
                end, fits = shared_end, True
        reachable = queries
        if len(queries) == sum(position < seq.resident for position in wanted):
            reachable = [*queries, *(position for position in wanted if seq.resident <= position < end)]
        if end == shared_end and not reachable and end < len(tokens):
            return None
        placed = builder.place(seq, tokens, run, end, reachable)
        self._account(work, placed)
        return placed

    def _retreat(self, seq: Sequence, tokens: SequenceOf[int]) -> bool:
        """Give up the resident tokens of a partial last block: going on then needs no copy. Nobody is left to find
        them, or the sequence would take them again in the next step, and never get on. Returns whether any."""
        partial = seq.resident % BLOCK_SIZE
        if partial:
            self._cache.forget(seq, tokens, seq.resident - partial)
        return bool(partial)

    def _account(self, work: Work, placed: Placement) -> None:
        tally, seq = work.tally, placed.sequence
        self._charge(work, placed.end - placed.shared_end)
        scored = max(0, placed.end - max(placed.shared_end, work.prompt)) if isinstance(work, Scoring) else 0
        tally.side_rows(scored)
        if placed.shared_end > placed.start:
            tally.found(placed.shared_end, shared=True)
        for position, tag in enumerate(placed.tags[: len(placed.tags) - scored], placed.shared_end):
            lost = position < seq.known
            reason = seq.lost_by if lost else "evicted" if self._cache.evictor.was_evicted(tag) else "new"
            tally.computed(position, reason, lost=lost)
        tally.copied_blocks += placed.num_copies

    # -- chains of a scored trie ----------------------------------------------------------------------------------

    def _start_chain(self, work: Scoring, chain: Chain) -> Sequence:
        seq = Sequence(work.sequence.namespace, work.sequence.born)
        self._cache.residency.fork(work.sequence, seq)
        seq.known = min(seq.known, work.prompt)
        seq.program = work.sequence.program
        chain.sequence = seq
        chain.tokens = work.tokens + chain.path
        return seq

    def _end_chain(self, chain: Chain) -> None:
        if chain.sequence is not None:
            self._cache.residency.drop(chain.sequence)
        chain.sequence = None
        chain.tokens = []

    def drop_chains(self, work: Work) -> None:
        """Give back what the chains of a call hold, if it has any."""
        if isinstance(work, Scoring):
            for chain in work.chains:
                self._end_chain(chain)

    def retire_chains(self, work: Scoring) -> None:
        """Give back the KV of the chains that are done: dead, but cached while there is room. What they computed of
        the context itself stays with the branch."""
        self._cache.residency.advance(work.sequence, work.tokens)
        for chain in work.retire_done():
            if chain.sequence is not None:
                self._cache.residency.drop_dead(chain.sequence)
                chain.sequence = None
                chain.tokens = []


def _affordable(wanted: SequenceOf[int], resident: int, budget: int, *, knows_tip: bool) -> tuple[list[int], int]:
    """The first of the ``wanted`` positions that are resident, as far as ``budget`` rows go, and the rows they take.

    The last resident one takes none where its logits are known. Never a later one without those before it, since a call
    counts on its logits in order.
    """
    queries: list[int] = []
    num_rows = 0
    for position in wanted:
        is_free = knows_tip and position == resident - 1
        if position >= resident or (num_rows == budget and not is_free):
            break
        queries.append(position)
        num_rows += not is_free
    return queries, num_rows
