"""The engine: takes requests from branch handles, runs one step after another, and resolves tickets."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial

import torch

from .branch import Command, EngineBranch, Fork, Release, Stop, Submit, Trim, Withdraw
from .errors import EngineClosed, FurcateError, InvalidLogits
from .failures import call_failed, pass_failed, poisoned
from .generation import Generation
from .integrity import check_integrity
from .kv_cache import KVCache
from .placing import StepPlan
from .reading import Draw, draw, gather, rows_of
from .requests import RequestCancelled
from .runner import Runner
from .scheduler import Scheduler
from .scoring import Scoring
from .sequence import Sequence
from .vocabulary import Vocabulary
from .waiting import Work

log = logging.getLogger("furcate.engine")


class Engine:
    """Owns the model's KV pool. All state changes happen under one lock, between or within steps.

    With ``threaded`` it steps in a daemon thread that sleeps while nothing is to be done; without, the caller calls
    ``step``. ``encode`` tokenises forced text; ``plan=False`` ignores the hints on requests.
    """

    def __init__(
        self,
        runner: Runner,
        vocabulary: Vocabulary,
        sampler: Draw,
        *,
        num_blocks: int,
        max_context: int,
        encode: Callable[[str], list[int]] | None = None,
        max_step_tokens: int = 512,
        plan: bool = True,
        namespace: str = "",
        threaded: bool = True,
        check_every_step: bool = False,
    ) -> None:
        if num_blocks > runner.num_blocks:
            raise ValueError(f"num_blocks={num_blocks}, but the model's KV pool has {runner.num_blocks} blocks")
        if max_step_tokens < 1:
            raise ValueError("max_step_tokens must be at least 1")
        self.vocabulary = vocabulary
        self.max_context = max_context
        self.num_blocks = num_blocks
        self._runner = runner
        self._sampler = sampler
        self.encode = encode
        """Tokenises forced text; None without a tokenizer."""
        self._use_hints = plan
        self._namespace = namespace
        self._max_step_tokens = max_step_tokens
        self._check_every_step = check_every_step
        self.cache = KVCache(num_blocks)
        self.scheduler = Scheduler(self.cache, max_step_tokens=max_step_tokens, use_hints=plan)
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._outcomes: list[Callable[[], object]] = []
        self._closed = False
        self._num_born = 0
        self._num_steps = 0
        self._num_forward_passes = 0
        self._num_computed = 0
        self._num_query_rows = 0
        self._num_abandoned = 0
        self._num_copied_before = 0
        self._peak_blocks = 0
        self._thread = threading.Thread(target=self._loop, name="furcate-engine", daemon=True) if threaded else None
        if self._thread is not None:
            self._thread.start()

    def root(self, namespace: str = "") -> EngineBranch:
        """A fresh, empty branch. Branches share KV only within one namespace; ``str(Namespace(...))`` names one."""
        return EngineBranch(self, self.new_sequence(self._key(namespace)))

    def flush(self, namespace: str = "") -> int:
        """Forget all KV of one namespace; returns how many blocks became free. Others are left alone. Branches of the
        namespace stay usable, calls that run in it too: what they need is computed again, ``missed_because`` flushed.
        """
        key = self._key(namespace)
        with self._lock:
            self._take_commands()
            for work in [work for work in self.scheduler.running if work.sequence.namespace == key]:
                self.scheduler.preempt(work)
                work.sequence.lost_by = "flushed"
            freed = self.cache.flush(key)
        self._report()
        return freed

    def _key(self, namespace: str) -> str:
        return f"{self._namespace}\x00{namespace}"

    def stats(self) -> dict[str, int]:
        """Counters, after everything that was asked of the engine so far has been taken note of."""
        with self._lock:
            self._take_commands()
            pool, tree = self.cache.pool, self.cache.tree
            counters = {
                "blocks_total": pool.num_blocks,
                "blocks_free": pool.num_free,
                "blocks_cached": pool.num_cached,
                "blocks_referenced": pool.num_referenced,
                "blocks_peak": self._peak_blocks,
                "blocks_copied": pool.num_copied + self._num_copied_before,
                "tree_nodes": tree.num_nodes,
                "tree_tokens": tree.num_tokens,
                "steps": self._num_steps,
                "forward_passes": self._num_forward_passes,
                "tokens_computed": self._num_computed,
                "tokens_abandoned": self._num_abandoned,
                "query_rows": self._num_query_rows,
                "preemptions": self.scheduler.num_preemptions,
            }
        self._report()
        return counters

    def check_integrity(self) -> None:
        """Walk the KV ledger; raises RuntimeError that names the broken invariant."""
        with self._lock:
            self._take_commands()
            check_integrity(self.cache)
        self._report()

    def close(self) -> None:
        """Stop. Calls that wait fail with EngineClosed. Idempotent."""
        self.post(Stop())
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()
        self.settle()

    def step(self) -> bool:
        """Take commands, run one step, resolve what is done. Returns whether work is left. Raises RuntimeError from
        ``check_every_step`` only; failures of the model or the sampler go to the tickets they concern."""
        with self._lock:
            self._take_commands()
            if self.scheduler.is_busy:
                self._num_steps += 1
                try:
                    self._run_step()
                except Exception as error:
                    self._collapse(error)
            more = self.scheduler.is_busy
            if self._check_every_step:
                check_integrity(self.cache)
        self._report()
        return more

    # -- used by branch handles -----------------------------------------------------------------------------------

    def post(self, command: Command) -> None:
        """Hand a command to the next step. Safe from any thread, finalizers included."""
        self._inbox.put(command)

    def new_sequence(self, namespace: str) -> Sequence:
        """A record for a new branch; it holds nothing yet."""
        self._num_born += 1
        return Sequence(namespace, self._num_born)

    def settle(self) -> None:
        """Take note of posted commands now, on the caller's thread; a closed engine answers them so."""
        with self._lock:
            self._take_commands()
        self._report()

    @property
    def closed(self) -> bool:
        return self._closed

    # -- commands -------------------------------------------------------------------------------------------------

    def _take_commands(self) -> None:
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._apply(command)

    def _apply(self, command: Command) -> None:
        residency = self.cache.residency
        match command:
            case Submit(work):
                self._submit(work)
            case Fork(source, children):
                for child in children:
                    residency.fork(source, child)
            case Trim(sequence, length):
                self._trim(sequence, length)
            case Withdraw(work):
                if work in self.scheduler:
                    self._fail(work, RequestCancelled(f"{work.request.label or 'the call'} was cancelled"))
            case Release(sequence, work):
                if work is not None and work in self.scheduler:
                    self._fail(work, RequestCancelled(f"{work.request.label or 'the call'}: its branch was released"))
                residency.drop(sequence)
            case Stop():
                self._closed = True
                for work in self.scheduler.works():
                    self._fail(work, EngineClosed("the engine was closed while the call was waiting"))

    def _submit(self, work: Work) -> None:
        work.sequence.program = work.request.program
        self.scheduler.submit(work)
        if self._closed:
            self._fail(work, EngineClosed("the engine is closed"))
            return
        try:
            if isinstance(work, Generation):
                work.begin()
                self._after_tokens(work)
            elif work.finished:
                self._finish(work)
        except FurcateError as error:
            self._fail(work, error)
        except Exception as error:
            self._fail(work, call_failed(work.request.label, error))

    def _trim(self, sequence: Sequence, length: int) -> None:
        self.cache.residency.trim(sequence, length)
        sequence.known = min(sequence.known, length)
        sequence.inherited = min(sequence.inherited, length)

    # -- a step ---------------------------------------------------------------------------------------------------

    def _run_step(self) -> None:
        plan = self.scheduler.plan()
        if plan.is_empty:
            raise RuntimeError("no running call could be given a row: the schedule has no progress")
        works = plan.works()
        logits: torch.Tensor | None = None
        index: dict[int, int] = {}
        if plan.builder.num_rows:
            batch = plan.builder.build()
            try:
                logits = self._runner.forward(batch)
            except Exception as error:
                plan.builder.abort()
                for work in works:
                    self._fail(work, pass_failed(work.request.label, error, self._max_step_tokens))
                return
            self._num_forward_passes += 1
            self._num_computed += plan.builder.num_computed
            self._num_query_rows += plan.builder.num_query_rows
            index = {row: i for i, row in enumerate(batch.logit_rows)}
            for work in works:
                work.tally.forward_passes += 1
        self._peak_blocks = max(self._peak_blocks, self.cache.pool.num_referenced)
        plan.builder.commit()
        self._read_scores(plan, logits, index)
        self._draw(plan, logits, index)
        for work, _ in plan.generations:
            if work.admitted and work.finished and not work.needs_forward():
                self._finish(work)

    def _read_scores(self, plan: StepPlan, logits: torch.Tensor | None, index: dict[int, int]) -> None:
        roots: dict[Scoring, torch.Tensor] = {}
        failed: dict[Scoring, InvalidLogits] = {}
        for scoring, chain, placed in plan.chains:
            found = rows_of(placed, logits, index)
            if scoring.prompt - 1 in found:
                roots[scoring] = found[scoring.prompt - 1]
            try:
                for position, row in found.items():
                    scoring.node_at(chain, position).read(row)
            except InvalidLogits as error:
                failed[scoring] = error
        for scoring in dict.fromkeys(work for work, _, _ in plan.chains):
            if scoring in failed:
                self._poisoned(scoring, failed[scoring])
                continue
            self.scheduler.placer.retire_chains(scoring)
            if scoring in roots and scoring.sequence.node is not None and scoring.sequence.resident == scoring.prompt:
                self.cache.tips.keep(scoring.sequence.node, roots[scoring])
            if scoring.finished:
                self._finish(scoring)

    def _draw(self, plan: StepPlan, logits: torch.Tensor | None, index: dict[int, int]) -> None:
        works = [work for work, _ in plan.decodes]
        rows = [index[row] for _, row in plan.decodes]
        extra: list[torch.Tensor] = []
        for work, placed in plan.generations:
            tip = len(work.tokens) - 1
            found = rows_of(placed, logits, index)
            for position, row in found.items():
                if position != tip:
                    work.score_forced(position, row)
            if tip not in found:
                continue
            works.append(work)
            if tip in placed.logit_rows and not extra:
                rows.append(index[placed.logit_rows[tip]])
            else:
                extra.append(found[tip])
            if tip < work.prompt and work.sequence.node is not None and work.sequence.resident == tip + 1:
                self.cache.tips.keep(work.sequence.node, found[tip])
        if not works:
            return
        for work, sample in zip(works, draw(self._sampler, works, gather(logits, rows, extra)), strict=True):
            try:
                if isinstance(sample, Exception):
                    raise sample
                work.accept(sample)
                self._after_tokens(work)
            except InvalidLogits as error:
                self._poisoned(work, error)
            except FurcateError as error:
                self._fail(work, error)
            except Exception as error:
                self._fail(work, call_failed(work.request.label, error))

    def _after_tokens(self, work: Generation) -> None:
        work.deliver()
        if work.finished and not work.needs_forward():
            self._finish(work)

    # -- ends of calls --------------------------------------------------------------------------------------------

    def _finish(self, work: Work) -> None:
        sequence, hints = work.sequence, work.request.hints
        if isinstance(work, Generation):
            generated = work.result()
            self._trim(sequence, work.prompt + len(generated.tokens))
            self._outcomes += [partial(work.on_end, generated.tokens), partial(work.ticket.resolve, generated)]
        else:
            self._outcomes += [partial(work.on_end, ()), partial(work.ticket.resolve, work.result())]
        self.scheduler.remove(work)
        if not self._use_hints:
            return
        if hints.last_use and not hints.coming_fork:
            self.cache.residency.drop_dead(sequence)
        sequence.next_use = None if hints.next_use is None else self.cache.tree.clock + hints.next_use

    def _fail(self, work: Work, error: BaseException) -> None:
        """End a call without a result; its branch is as it was before the call."""
        self.scheduler.remove(work)
        self._num_abandoned += work.tally.usage().computed
        self._trim(work.sequence, work.prompt)
        self._outcomes += [partial(work.on_end, ()), partial(work.ticket.resolve, error=error)]

    def _poisoned(self, work: Work, error: InvalidLogits) -> None:
        """End a call whose logits are not numbers. What they were computed from may not be numbers either, so nothing
        that the call has computed is left for others to find."""
        self.scheduler.placer.drop_chains(work)
        self.cache.forget(work.sequence, work.tokens, min(work.tally.first_computed, work.sequence.resident))
        self._fail(work, poisoned(work.request.label, error))

    def _collapse(self, error: Exception) -> None:
        """A fault in the engine's own bookkeeping: fail every call and start over with an empty pool. Branches keep
        their tokens; their KV is made again when they need it."""
        log.error("the engine's step failed; every waiting call fails and the KV pool is emptied", exc_info=error)
        works = self.scheduler.works()
        for seq in self.cache.residency.holders:
            seq.table, seq.node, seq.resident = [], None, 0
        self._num_copied_before += self.cache.pool.num_copied
        preemptions = self.scheduler.num_preemptions
        self.cache = KVCache(self.num_blocks)
        self.scheduler = Scheduler(self.cache, max_step_tokens=self._max_step_tokens, use_hints=self._use_hints)
        self.scheduler.num_preemptions = preemptions
        for work in works:
            self._num_abandoned += work.tally.usage().computed
            self._outcomes.append(partial(work.on_end, ()))
            self._outcomes.append(partial(work.ticket.resolve, error=call_failed(work.request.label, error)))

    def _report(self) -> None:
        """Tell the callers, outside the lock, in the order in which things happened."""
        while True:
            with self._lock:
                if not self._outcomes:
                    return
                outcomes, self._outcomes = self._outcomes, []
            for outcome in outcomes:
                outcome()

    def _loop(self) -> None:
        while not self._closed:
            command = self._inbox.get()
            try:
                with self._lock:
                    self._apply(command)
                while self.step():
                    pass
            except Exception as error:
                with self._lock:
                    self._collapse(error)
                self._report()
