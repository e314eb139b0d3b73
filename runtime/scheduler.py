"""Who runs in the next step: admission, order, and what gives way when blocks are short."""

from __future__ import annotations

import bisect

from ..kernels.layout import BLOCK_SIZE
from .admission import Admission, parts
from .generation import Generation
from .kv_cache import KVCache
from .placing import Placer, StepPlan
from .sequence import Sequence
from .waiting import Account, Waiting, Work

RETRY_STEPS = 16
"""Steps after which a refused admission is tried again though no call has ended: calls may have come to share KV."""


class Scheduler:
    """Continuous batching with chunked prefill. An admitted call can always finish.

    The oldest running call of the oldest program may take blocks from everyone else, so it always progresses, and so
    do all in turn. Decoding calls get their rows first, but never more than three quarters of a step's.
    """

    def __init__(self, cache: KVCache, *, max_step_tokens: int, use_hints: bool = True) -> None:
        self.cache = cache
        self.waiting = Waiting()
        self.running: list[Work] = []
        """Oldest program first, then by arrival."""
        self.num_preemptions = 0
        self.placer = Placer(cache, max_step_tokens=max_step_tokens, make_room=self._make_room, charge=self._charge)
        self._use_hints = use_hints
        self._max_running = max(1, max_step_tokens * 3 // 4)  # the rest of a step's rows is left to prefill
        self._num_arrived = 0
        self._accounts: dict[Work, Account] = {}
        self._num_refused_steps = 0
        """Steps since an admission was refused and nothing has changed; 0 = admission is open."""

    @property
    def is_busy(self) -> bool:
        """Whether any call runs or waits."""
        return bool(self._accounts)

    def __contains__(self, work: Work) -> bool:
        return work in self._accounts

    def works(self) -> list[Work]:
        """Every call that runs or waits."""
        return list(self._accounts)

    def submit(self, work: Work) -> None:
        """Queue a call."""
        work.arrival = self._num_arrived
        self._num_arrived += 1
        account = self._accounts[work] = self.waiting.account(work.request.program, work.arrival)
        self._queue(work, account)

    def remove(self, work: Work) -> None:
        """Forget a call that has ended, in whichever way; its branch keeps what is resident."""
        self.placer.drop_chains(work)
        account = self._accounts.pop(work)
        self._num_refused_steps = 0
        if work.admitted:
            self.running.remove(work)
        else:
            self.waiting.remove(work, account)
        work.admitted = False

    def plan(self) -> StepPlan:
        """Choose and place the rows of the next step. Finished calls must have been removed."""
        self._admit()
        plan = self.placer.new_plan()
        if not self.running:
            return plan
        oldest = self.running[0]
        steady: list[Generation] = []
        decoding: list[Work] = []
        others: list[Work] = []
        for work in self.running:
            if isinstance(work, Generation) and work.steady:
                steady.append(work)
            elif work is not oldest:
                (decoding if self._decodes(work) else others).append(work)
        plan.reserved_rows = len(steady) + len(decoding)
        joint = [work for work in steady if work.sequence.node is not None and work.sequence.node.pins > 1]
        plan.builder.expect([work.sequence for work in joint], [work.tokens[-1] for work in joint])
        if steady and steady[0] is oldest:
            plan.reserved_rows -= 1
            if self.placer.decode(plan, [steady.pop(0)]):
                self._place(plan, oldest, decodes=False)
        else:
            self._place(plan, oldest, decodes=False)
        steady = [work for work in steady if work.admitted]
        left = self.placer.decode(plan, steady)
        plan.reserved_rows = len(left) + len(decoding)
        for work in [*left, *decoding]:
            self._place(plan, work, decodes=True)
        for work in sorted(others, key=lambda work: (self._accounts[work].rank, work.arrival)):
            self._place(plan, work, decodes=False)
        return plan

    def preempt(self, work: Work) -> None:
        """Send a running call back to the queue. What it computed stays cached while there is room."""
        self.placer.drop_chains(work)
        work.sequence.lost_by = "preempted"
        self.cache.residency.drop(work.sequence)
        self.running.remove(work)
        work.admitted = False
        self._queue(work, self._accounts[work])
        self.num_preemptions += 1

    def service(self, program: int) -> int:
        """Tokens that were computed for a program, as far as remembered."""
        return self.waiting.service(program)

    # -- admission ------------------------------------------------------------------------------------------------

    def _queue(self, work: Work, account: Account) -> None:
        hint = work.request.hints.token_bound if self._use_hints else None
        self.waiting.add(work, account, hint or 0)
        self._num_refused_steps = 0

    def _bound(self, work: Work) -> int:
        """Most tokens that the call's branch will hold: by the plan where it says so, else until the call ends."""
        hint = work.request.hints.token_bound if self._use_hints else None
        planned = 0 if hint is None else work.prompt + hint
        return min(max(work.bound, planned), self.cache.pool.num_blocks * BLOCK_SIZE)

    def _admit(self) -> None:
        if not self.waiting or len(self.running) >= self._max_running:
            return
        if self._num_refused_steps:
            self._num_refused_steps = (self._num_refused_steps + 1) % RETRY_STEPS
            return
        admission = Admission(self.cache, self.waiting, self.running, self._bound)
        while self.waiting and len(self.running) < self._max_running:
            work = admission.choose()
            if work is None:
                self._num_refused_steps = 1
                return
            self._start(work)
            admission.count(work)

    def _start(self, work: Work) -> None:
        account = self._accounts[work]
        self.waiting.remove(work, account)
        work.admitted = True
        bisect.insort(self.running, work, key=self._age)
        self.placer.advance(work.sequence, work.tokens, work.tally)  # what it hits is pinned from here on

    def _age(self, work: Work) -> tuple[int, int]:
        return (self._accounts[work].born, work.arrival)

    def _charge(self, work: Work, num_tokens: int) -> None:
        self.waiting.charge(self._accounts[work], num_tokens)

    # -- placing --------------------------------------------------------------------------------------------------

    @staticmethod
    def _decodes(work: Work) -> bool:
        return isinstance(work, Generation) and len(work.tokens) - work.sequence.resident <= 1

    def _place(self, plan: StepPlan, work: Work, *, decodes: bool) -> None:
        if decodes:
            plan.reserved_rows -= 1
        if not work.admitted:
            return  # preempted while this step was being planned
        urgent = work is self.running[0]
        if isinstance(work, Generation):
            self.placer.generate(plan, work, urgent=urgent)
        else:
            self.placer.score(plan, work, urgent=urgent)

    # -- making room ----------------------------------------------------------------------------------------------

    def _make_room(self, plan: StepPlan, work: Work, num_blocks: int, urgent: bool) -> bool:
        """Have blocks free. Where it is urgent, other running calls give way too, least recomputation first."""
        if self.cache.pool.num_free >= num_blocks or self.cache.make_room(num_blocks, self._growing):
            return True
        if not urgent:
            return False
        placed = set(plan.works())
        while True:
            victims = [other for other in self.running if other is not work and other not in placed]
            if not victims:
                return False
            self.preempt(min(victims, key=lambda other: (self._recompute(other), -other.arrival)))
            if self.cache.make_room(num_blocks, self._growing):
                return True

    def _growing(self) -> list[Sequence]:
        """The sequences of running calls; a scored branch itself may be taken back while chains stand in for it."""
        return [seq for work in self.running for seq, _ in parts(work)]

    def _recompute(self, work: Work) -> int:
        """Tokens that preempting ``work`` may have to compute again."""
        return sum(self.cache.residency.private_tokens(seq) for seq, _ in parts(work))
