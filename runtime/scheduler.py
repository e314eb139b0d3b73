"""Who runs in the next step: admission, order, the token budget, and what gives way when blocks are short."""

from __future__ import annotations

import bisect
from collections.abc import Sequence as SequenceOf

from .generation import Generation
from .kv_cache import Forecast, KVCache
from .scoring import Chain, Scoring
from .sequence import Sequence
from .step import Placement, StepBuilder
from .tally import Tally

Work = Generation | Scoring

MAX_CHAIN_SHARE = 4
"""One part in so many of the pool's blocks is what the chains of a scored trie may spread over in a step; those that
are done are evicted first, so that scoring thousands of choices does not empty the cache."""


class StepPlan:
    """The rows of one step and whose they are."""

    def __init__(self, builder: StepBuilder) -> None:
        self.builder = builder
        self.reserved_rows = 0
        """Rows that are kept for calls that decode and are not placed yet."""
        self.generations: list[tuple[Generation, Placement]] = []
        self.chains: list[tuple[Scoring, Chain, Placement]] = []

    def works(self) -> list[Work]:
        """Every call with a part in the step, once."""
        found: dict[Work, None] = {work: None for work, _ in self.generations}
        found.update((work, None) for work, _, _ in self.chains)
        return list(found)


class Scheduler:
    """Continuous batching with chunked prefill. First come, first admitted; an admitted call can always finish.

    The oldest running call may take blocks from everyone else, so it always progresses, and so do all in turn.
    """

    def __init__(self, cache: KVCache, *, max_step_tokens: int) -> None:
        self.cache = cache
        self.waiting: list[Work] = []
        """By arrival."""
        self.running: list[Work] = []
        """By arrival."""
        self.num_preemptions = 0
        self._max_step_tokens = max_step_tokens
        self._max_running = max(1, max_step_tokens * 3 // 4)  # the rest of a step's rows is left to prefill
        self._num_arrived = 0
        self._num_born = 0

    def submit(self, work: Work) -> None:
        """Queue a call."""
        work.arrival = self._num_arrived
        self._num_arrived += 1
        self.waiting.append(work)

    def remove(self, work: Work) -> None:
        """Forget a call that has ended, in whichever way; its branch keeps what is resident."""
        if isinstance(work, Scoring):
            self._drop_chains(work)
        if work.admitted:
            self.running.remove(work)
        else:
            self.waiting.remove(work)
        work.admitted = False

    def plan(self) -> StepPlan:
        """Choose and place the rows of the next step. Finished calls must have been removed."""
        self._admit()
        plan = StepPlan(StepBuilder(self.cache.residency))
        order = self._order()
        plan.reserved_rows = sum(self._decodes(work) for work in order)
        for work in order:
            if not work.admitted:
                continue  # preempted while this step was being planned
            if self._decodes(work):
                plan.reserved_rows -= 1
            if isinstance(work, Generation):
                self._place_generation(plan, work)
            else:
                self._place_scoring(plan, work)
        return plan

    def preempt(self, work: Work) -> None:
        """Send a running call back to the queue. What it computed stays cached while there is room."""
        if isinstance(work, Scoring):
            self._drop_chains(work)
        work.sequence.lost_by = "preempted"
        self.cache.residency.drop(work.sequence)
        self.running.remove(work)
        work.admitted = False
        bisect.insort(self.waiting, work, key=lambda other: other.arrival)
        self.num_preemptions += 1

    # -- admission ------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        if not self.waiting:
            return
        forecast = Forecast(self.cache.pool)
        for work in self.running:
            for seq, tokens in self._parts(work):
                forecast.add(seq, tokens, work.bound)
        while self.waiting and len(self.running) < self._max_running:
            work = self.waiting[0]
            self._advance(work.sequence, work.tokens, work.tally)
            forecast.add(work.sequence, work.tokens, work.bound)
            if self.running and forecast.num_blocks > self.cache.pool.num_blocks:
                return
            self.waiting.pop(0)
            work.admitted = True
            bisect.insort(self.running, work, key=lambda other: other.arrival)

    def _order(self) -> list[Work]:
        """The oldest first, then calls that decode, then the others; each by arrival."""
        if not self.running:
            return []
        oldest, *others = self.running
        decoding = [work for work in others if self._decodes(work)]
        prefilling = [work for work in others if not self._decodes(work)]
        return [oldest, *decoding, *prefilling]

    @staticmethod
    def _decodes(work: Work) -> bool:
        return isinstance(work, Generation) and len(work.tokens) - work.sequence.resident <= 1

    # -- placing --------------------------------------------------------------------------------------------------

    def _place_generation(self, plan: StepPlan, work: Generation) -> None:
        urgent = work is self.running[0]
        placed = self._place(plan, work, work.sequence, work.tokens, wanted=work.wanted(), urgent=urgent)
        if placed is not None:
            plan.generations.append((work, placed))

    def _place_scoring(self, plan: StepPlan, work: Scoring) -> None:
        urgent = work is self.running[0]  # true for the first chain only: the others take what is to be had
        self._advance(work.sequence, work.tokens, work.tally)
        assigned: set[int] = set()
        for chain in work.chains[: max(1, self.cache.pool.num_blocks // MAX_CHAIN_SHARE)]:
            fresh = chain.sequence is None
            seq = chain.sequence or self._start_chain(work, chain)
            wanted = [p for p in work.wanted(chain) if id(work.node_at(chain, p)) not in assigned]
            placed = self._place(plan, work, seq, chain.tokens, wanted=wanted, urgent=urgent)
            if placed is None:
                if fresh:
                    self._end_chain(chain)
                return
            urgent = False
            assigned.update(id(work.node_at(chain, p)) for p in placed.logit_rows)
            plan.chains.append((work, chain, placed))

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
        self._advance(seq, tokens, work.tally)
        fits = False
        while not fits:
            run = builder.shared(seq, tokens)
            shared_end = seq.resident + len(run)
            budget = max(0, self._max_step_tokens - builder.num_rows - plan.reserved_rows)
            queries = [position for position in wanted if position < seq.resident]
            queries = queries[: budget + builder.knows_tip(seq)]
            end = max(shared_end, min(len(tokens), shared_end + budget - len(queries)))
            need = builder.fresh_blocks(seq, shared_end, end)
            fits = self._make_room(plan, work, need, urgent) or (
                builder.fresh_blocks(seq, shared_end, end) <= self.cache.pool.num_free
            )
            if not fits and not (urgent and self.cache.residency.retreat(seq)):
                end, fits = shared_end, True
        reachable = [*queries, *(position for position in wanted if seq.resident <= position < end)]
        if end == shared_end and not reachable and end < len(tokens):
            return None
        placed = builder.place(seq, tokens, run, end, reachable)
        self._account(work, placed)
        return placed

    def _account(self, work: Work, placed: Placement) -> None:
        tally, seq = work.tally, placed.sequence
        scored = max(0, placed.end - max(placed.shared_end, work.prompt)) if isinstance(work, Scoring) else 0
        tally.side_rows(scored)
        if placed.shared_end > placed.start:
            tally.found(placed.shared_end, shared=True)
        for position, tag in enumerate(placed.tags[: len(placed.tags) - scored], placed.shared_end):
            lost = position < seq.known
            reason = seq.lost_by if lost else "evicted" if self.cache.evictor.was_evicted(tag) else "new"
            tally.computed(position, reason, lost=lost)
        tally.copied_blocks += placed.num_copies

    def _advance(self, seq: Sequence, tokens: SequenceOf[int], tally: Tally) -> None:
        """Take what the tree holds. What is there at a call's first look was cached, or came by fork; what comes
        while it waits was computed for a sibling."""
        first = not tally.looked
        tally.looked = True
        if first:
            tally.found(min(seq.inherited, seq.resident), shared=True)
            tally.found(seq.resident, shared=False)
            seq.inherited = 0
        if self.cache.residency.advance(seq, tokens):
            tally.found(seq.resident, shared=not first)

    # -- making room ----------------------------------------------------------------------------------------------

    def _make_room(self, plan: StepPlan, work: Work, num_blocks: int, urgent: bool) -> bool:
        """Have blocks free. Where it is urgent, other running calls give way too, least recomputation first."""
        if self.cache.pool.num_free >= num_blocks or self.cache.make_room(num_blocks, self._growing()):
            return True
        if not urgent:
            return False
        placed = plan.works()
        while True:
            victims = [other for other in self.running if other is not work and other not in placed]
            if not victims:
                return False
            self.preempt(min(victims, key=lambda other: (self._recompute(other), -other.arrival)))
            if self.cache.make_room(num_blocks, self._growing()):
                return True

    def _growing(self) -> list[Sequence]:
        """The sequences of running calls; a scored branch itself may be taken back while chains stand in for it."""
        return [seq for work in self.running for seq, _ in self._parts(work)]

    def _recompute(self, work: Work) -> int:
        """Tokens that preempting ``work`` may have to compute again."""
        return sum(self.cache.residency.private_tokens(seq) for seq, _ in self._parts(work))

    # -- parts of a call ------------------------------------------------------------------------------------------

    def _parts(self, work: Work) -> list[tuple[Sequence, SequenceOf[int]]]:
        """The sequences that still grow, with their tokens."""
        if isinstance(work, Scoring):
            active = [(chain.sequence, chain.tokens) for chain in work.chains if chain.sequence is not None]
            if active:
                return list(active)
        return [(work.sequence, work.tokens)]

    def _start_chain(self, work: Scoring, chain: Chain) -> Sequence:
        seq = Sequence(work.sequence.namespace, work.sequence.born)
        self.cache.residency.fork(work.sequence, seq)
        seq.known = min(seq.known, work.prompt)
        seq.program = work.sequence.program
        chain.sequence = seq
        chain.tokens = work.tokens + chain.path
        return seq

    def _end_chain(self, chain: Chain) -> None:
        if chain.sequence is not None:
            self.cache.residency.drop(chain.sequence)
        chain.sequence = None
        chain.tokens = []

    def _drop_chains(self, work: Scoring) -> None:
        for chain in work.chains:
            self._end_chain(chain)

    def retire_chains(self, work: Scoring) -> None:
        """Give back the KV of the chains that are done: dead, but cached while there is room. What they computed of
        the context itself stays with the branch."""
        self.cache.residency.advance(work.sequence, work.tokens)
        for chain in work.retire_done():
            if chain.sequence is not None:
                self.cache.residency.drop_dead(chain.sequence)
                chain.sequence = None
                chain.tokens = []
