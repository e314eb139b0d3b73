"""The engine: takes requests from branch handles, runs one step after another, and resolves tickets."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from ..kernels.layout import BLOCK_SIZE
from .block_pool import blocks_for
from .branch import Command, EngineBranch, Fork, Release, Stop, Submit, Trim, Withdraw
from .errors import ContextOverflow, EngineClosed, EngineFailed, FurcateError
from .generation import Generation
from .integrity import check_integrity
from .kv_cache import KVCache
from .requests import RequestCancelled
from .runner import Runner
from .sampler import Sample, SampleRow
from .scheduler import Scheduler, StepPlan, Work
from .sequence import Sequence
from .vocabulary import Vocabulary

log = logging.getLogger("furcate.engine")


class Draw(Protocol):
    """The sampler as the engine sees it; ``runtime.sampler.Sampler`` is one."""

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> list[Sample]:
        """One draw per row of ``logits`` ``[rows, vocab]``."""


class Engine:
    """Owns the model's KV pool. All state changes happen under one lock, between or within steps.

    With ``threaded`` the engine steps in a daemon thread that sleeps while nothing is to be done; without, the caller
    calls ``step``. ``encode`` tokenises forced text; ``plan=False`` ignores the hints on requests.
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
        self._encode = encode
        self._use_hints = plan
        self._namespace = namespace
        self._max_step_tokens = max_step_tokens
        self._check_every_step = check_every_step
        self.cache = KVCache(num_blocks)
        self.scheduler = Scheduler(self.cache, max_step_tokens=max_step_tokens)
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._outcomes: list[Callable[[], object]] = []
        self._closed = False
        self._num_born = 0
        self._num_steps = 0
        self._num_forward_passes = 0
        self._num_computed = 0
        self._num_copied_before = 0
        self._thread = threading.Thread(target=self._loop, name="furcate-engine", daemon=True) if threaded else None
        if self._thread is not None:
            self._thread.start()

    def root(self, namespace: str = "") -> EngineBranch:
        """A fresh, empty branch. Branches share KV only within one namespace."""
        return EngineBranch(self, self.new_sequence(f"{self._namespace}\x00{namespace}"))

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
                "blocks_copied": pool.num_copied + self._num_copied_before,
                "tree_nodes": tree.num_nodes,
                "tree_tokens": tree.num_tokens,
                "steps": self._num_steps,
                "forward_passes": self._num_forward_passes,
                "tokens_computed": self._num_computed,
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
            if self.scheduler.running or self.scheduler.waiting:
                self._num_steps += 1
                try:
                    self._run_step()
                except Exception as error:
                    self._collapse(error)
            more = bool(self.scheduler.running or self.scheduler.waiting)
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

    @property
    def encode(self) -> Callable[[str], list[int]] | None:
        """Tokenises forced text."""
        return self._encode

    def overflow(self, length: int, added: int, computed: int, label: str) -> ContextOverflow | None:
        """The error of a call that can never fit: ``added`` tokens on top of ``length``, ``computed`` of them with
        KV of their own."""
        needed = length + added
        if needed <= self.max_context and blocks_for(length + computed) <= self.num_blocks:
            return None
        limit = min(self.max_context, self.num_blocks * BLOCK_SIZE)
        what = "the model's context" if needed > self.max_context else "the KV pool"
        return ContextOverflow(
            f"{label or 'the call'} needs {needed} tokens ({length} of context and {added} more), but {what} holds "
            f"{limit}: shorten the context, lower max_tokens, or load the model with more room",
            needed=needed,
            limit=limit,
            where=label,
        )

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
                if work in self.scheduler.running or work in self.scheduler.waiting:
                    self._fail(work, RequestCancelled(f"{work.request.label or 'the call'} was cancelled"))
            case Release(sequence, work):
                if work is not None and (work in self.scheduler.running or work in self.scheduler.waiting):
                    self._fail(work, RequestCancelled(f"{work.request.label or 'the call'}: its branch was released"))
                residency.drop(sequence)
            case Stop():
                self._closed = True
                for work in [*self.scheduler.running, *self.scheduler.waiting]:
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
            self._fail(work, _failed(work, error))

    def _trim(self, sequence: Sequence, length: int) -> None:
        self.cache.residency.trim(sequence, length)
        sequence.known = min(sequence.known, length)
        sequence.inherited = min(sequence.inherited, length)

    # -- a step ---------------------------------------------------------------------------------------------------

    def _run_step(self) -> None:
        plan = self.scheduler.plan()
        if not plan.builder.placements:
            raise RuntimeError("no running call could be given a row: the schedule has no progress")
        works = plan.works()
        logits: torch.Tensor | None = None
        if plan.builder.num_rows:
            batch = plan.builder.build()
            try:
                logits = self._runner.forward(batch)
            except Exception as error:
                plan.builder.abort()
                for work in works:
                    self._fail(work, _failed(work, error))
                return
            self._num_forward_passes += 1
            self._num_computed += plan.builder.num_computed
            index = {row: i for i, row in enumerate(batch.logit_rows)}
        else:
            index = {}
        plan.builder.commit()
        for work in works:
            work.tally.forward_passes += 1
        if logits is not None:
            self._read_scores(plan, logits, index)
            self._draw(plan, logits, index)
        for work in works:
            if isinstance(work, Generation) and work.admitted and work.finished and not work.needs_forward():
                self._finish(work)

    def _read_scores(self, plan: StepPlan, logits: torch.Tensor, index: dict[int, int]) -> None:
        for scoring, chain, placed in plan.chains:
            for position, row in placed.logit_rows.items():
                scoring.node_at(chain, position).read(logits[index[row]])
        for scoring in dict.fromkeys(work for work, _, _ in plan.chains):
            self.scheduler.retire_chains(scoring)
            if scoring.finished:
                self._finish(scoring)

    def _draw(self, plan: StepPlan, logits: torch.Tensor, index: dict[int, int]) -> None:
        works: list[Generation] = []
        rows: list[int] = []
        for work, placed in plan.generations:
            tip = len(work.tokens) - 1
            for position, row in placed.logit_rows.items():
                if position != tip:
                    work.score_forced(position, logits[index[row]])
            if tip in placed.logit_rows:
                works.append(work)
                rows.append(index[placed.logit_rows[tip]])
        if not works:
            return
        for work, sample in zip(works, self._sample(works, logits[rows]), strict=True):
            try:
                if isinstance(sample, Exception):
                    raise sample
                work.accept(sample)
                self._after_tokens(work)
            except FurcateError as error:
                self._fail(work, error)
            except Exception as error:
                self._fail(work, _failed(work, error))

    def _sample(self, works: list[Generation], logits: torch.Tensor) -> list[Sample | Exception]:
        """Draw for all rows at once; if that fails, one by one, so that only the rows at fault fail."""
        rows = [work.sample_row() for work in works]
        try:
            return list(self._sampler.sample(logits, rows))
        except Exception:
            outcomes: list[Sample | Exception] = []
            for i, row in enumerate(rows):
                try:
                    outcomes.extend(self._sampler.sample(logits[i : i + 1], [row]))
                except Exception as error:
                    outcomes.append(error)
            return outcomes

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
            self._outcomes.append(lambda: work.on_end(generated.tokens))
            self._outcomes.append(lambda: work.ticket.resolve(generated))
        else:
            scored = work.result()
            self._outcomes.append(lambda: work.on_end(()))
            self._outcomes.append(lambda: work.ticket.resolve(scored))
        self.scheduler.remove(work)
        if not self._use_hints:
            return
        if hints.last_use and not hints.coming_fork:
            self.cache.residency.drop_dead(sequence)
        sequence.next_use = None if hints.next_use is None else self.cache.tree.clock + hints.next_use

    def _fail(self, work: Work, error: BaseException) -> None:
        """End a call without a result; its branch is as it was before the call."""
        self.scheduler.remove(work)
        self._trim(work.sequence, work.prompt)
        self._outcomes.append(lambda: work.on_end(()))
        self._outcomes.append(lambda: work.ticket.resolve(error=error))

    def _collapse(self, error: Exception) -> None:
        """A fault in the engine's own bookkeeping: fail every call and start over with an empty pool. Branches keep
        their tokens; their KV is made again when they need it."""
        log.error("the engine's step failed; every waiting call fails and the KV pool is emptied", exc_info=error)
        works = [*self.scheduler.running, *self.scheduler.waiting]
        for seq in self.cache.residency.holders:
            seq.table, seq.node, seq.resident = [], None, 0
        self._num_copied_before += self.cache.pool.num_copied
        preemptions = self.scheduler.num_preemptions
        self.cache = KVCache(self.num_blocks)
        self.scheduler = Scheduler(self.cache, max_step_tokens=self._max_step_tokens)
        self.scheduler.num_preemptions = preemptions
        for work in works:
            self._outcomes.append(partial(work.on_end, ()))
            self._outcomes.append(partial(work.ticket.resolve, error=_failed(work, error)))

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


def _failed(work: Work, cause: BaseException) -> EngineFailed:
    error = EngineFailed(f"{work.request.label or 'the call'} failed in the engine: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
