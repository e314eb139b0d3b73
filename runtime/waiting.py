"""The calls that wait for admission: fair between programs, ordered within one, cheap with ten thousand of them."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator

from .generation import Generation
from .scoring import Scoring

Work = Generation | Scoring

QUANTUM = 4096
"""Tokens of service after which a program steps back behind those that have had less. Within a quantum the oldest
program goes first, so that programs finish one after another instead of evicting each other's KV in turn."""

MAX_PROGRAMS = 1 << 16
"""Programs whose service is remembered; the one that was longest silent is forgotten first."""

Rank = tuple[int, int]


class Account:
    """What one program has had, and its calls that wait. Calls of program 0 are unrelated: each has its own."""

    __slots__ = ("born", "calls", "queued_rank", "service", "since")

    def __init__(self, born: int, since: int) -> None:
        self.born = born
        """Ordinal of the program's first call."""
        self.since = since
        """Service of the whole engine when the program came: what ageing is measured against."""
        self.service = 0
        """Tokens computed for the program."""
        self.calls: list[tuple[int, int, Work]] = []
        """(minus the tokens still to come, arrival, call), ascending: the longest remaining path goes first."""
        self.queued_rank: Rank | None = None

    @property
    def rank(self) -> Rank:
        """Smallest goes first. A program that waits is overtaken only by those that came before the engine had done
        as much work as the program has had, so a newcomer waits for a bounded amount of work, and so does everyone."""
        return (self.since + self.service // QUANTUM * QUANTUM, self.born)


class Waiting:
    """A priority queue of calls. Adding and removing is logarithmic, looking at the front constant."""

    def __init__(self) -> None:
        self.clock = 0
        """Tokens computed so far, for all programs."""
        self._accounts: OrderedDict[int, Account] = OrderedDict()
        self._queue: list[tuple[Rank, Account]] = []
        self._works: dict[Work, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, work: Work) -> bool:
        return work in self._works

    def __iter__(self) -> Iterator[Work]:
        return iter(self._works)

    def account(self, program: int, arrival: int) -> Account:
        """The account of a program whose call ``arrival`` has come."""
        if program == 0:
            return Account(arrival, self.clock)
        account = self._accounts.get(program)
        if account is None:
            account = self._accounts[program] = Account(arrival, self.clock)
            if len(self._accounts) > MAX_PROGRAMS:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(program)
        return account

    def service(self, program: int) -> int:
        """Tokens computed for ``program`` as far as remembered."""
        account = self._accounts.get(program)
        return 0 if account is None else account.service

    def charge(self, account: Account, num_tokens: int) -> None:
        """The engine has computed tokens for a program."""
        account.service += num_tokens
        self.clock += num_tokens

    def add(self, work: Work, account: Account, remaining: int) -> None:
        """Queue a call; ``remaining`` bounds the tokens that its branch will still add."""
        key = self._works[work] = (-remaining, work.arrival)
        bisect.insort(account.calls, (*key, work), key=lambda call: call[:2])
        if account.queued_rank is None:
            self._enqueue(account)

    def remove(self, work: Work, account: Account) -> None:
        """Take a call out."""
        key = self._works.pop(work)
        del account.calls[bisect.bisect_left(account.calls, key, key=lambda call: call[:2])]
        if not account.calls:
            self._dequeue(account)

    def front(self, limit: int) -> list[Work]:
        """The first calls in order, at most ``limit``."""
        found: list[Work] = []
        index = 0
        while index < len(self._queue) and len(found) < limit:
            rank, account = self._queue[index]
            if account.rank != rank:  # it was served since it was queued: ranks only grow
                self._dequeue(account)
                self._enqueue(account)
                continue
            found.extend(call[2] for call in account.calls[: limit - len(found)])
            index += 1
        return found

    def _enqueue(self, account: Account) -> None:
        account.queued_rank = account.rank
        bisect.insort(self._queue, (account.queued_rank, account), key=lambda entry: entry[0])

    def _dequeue(self, account: Account) -> None:
        rank = account.queued_rank
        if rank is None:
            raise RuntimeError("the program has no call that waits")
        index = bisect.bisect_left(self._queue, rank, key=lambda entry: entry[0])
        while self._queue[index][1] is not account:
            index += 1
        del self._queue[index]
        account.queued_rank = None
