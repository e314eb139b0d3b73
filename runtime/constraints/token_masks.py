"""Token masks of a byte automaton: a lazy walk of the vocabulary's byte trie, memoised per state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import UnsatisfiableConstraint
from ..vocabulary import Vocabulary
from .byte_dfa import DEAD, ByteDFA, distances
from .protocol import Bitmask, State

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MEMO_BYTES = 64 * 2**20
"""Masks that one constraint remembers, in bytes; beyond it the oldest are dropped."""


class TokenTrie:
    """The byte trie of a vocabulary in level order. Immutable; one per vocabulary (``trie_of``).

    Tokens without bytes, empty tokens and end-of-sequence ids are not in it. Nodes are numbered breadth first, the root
    is 0, and the children of a node are consecutive.
    """

    __slots__ = (
        "byte",
        "child_count",
        "first_child",
        "num_words",
        "single_bytes",
        "token_count",
        "token_ids",
        "token_start",
    )

    def __init__(self, vocabulary: Vocabulary) -> None:
        entries = sorted(
            (token, i) for i, token in enumerate(vocabulary.token_bytes) if token and i not in vocabulary.eos_ids
        )
        byte: list[int] = [0]
        first_child: list[int] = [0]
        child_count: list[int] = [0]
        token_start: list[int] = [0]
        token_count: list[int] = [0]
        ids: list[int] = []
        level: list[tuple[int, int, int]] = [(0, 0, len(entries))]  # node, entries[low:high] that pass through it
        depth = 0
        while level:
            following: list[tuple[int, int, int]] = []
            for node, start, high in level:
                low = start
                token_start[node] = len(ids)
                while low < high and len(entries[low][0]) == depth:
                    ids.append(entries[low][1])
                    low += 1
                token_count[node] = len(ids) - token_start[node]
                first_child[node] = len(byte)
                while low < high:
                    value = entries[low][0][depth]
                    end = low
                    while end < high and entries[end][0][depth] == value:
                        end += 1
                    following.append((len(byte), low, end))
                    byte.append(value)
                    for column in (first_child, child_count, token_start, token_count):
                        column.append(0)
                    child_count[node] += 1
                    low = end
            level = following
            depth += 1
        self.byte = np.array(byte, dtype=np.int64)
        self.first_child = np.array(first_child, dtype=np.int64)
        self.child_count = np.array(child_count, dtype=np.int64)
        self.token_start = np.array(token_start, dtype=np.int64)
        self.token_count = np.array(token_count, dtype=np.int64)
        self.token_ids = np.array(ids, dtype=np.int32)
        self.num_words = (vocabulary.size + 31) // 32
        self.single_bytes = np.zeros(256, dtype=np.bool_)
        self.single_bytes[[token[0] for token, _ in entries if len(token) == 1]] = True

    def allowed(self, table: npt.NDArray[np.int32], state: int) -> npt.NDArray[np.int32]:
        """[n] ids, unordered, of the tokens whose bytes lead from ``state`` through ``table`` without dying."""
        flat = table.reshape(-1)
        nodes = np.zeros(1, dtype=np.int64)
        states = np.full(1, state, dtype=np.int64)
        visited: list[npt.NDArray[np.int64]] = []
        while len(nodes):
            counts = self.child_count[nodes]
            children = spans(self.first_child[nodes], counts)
            reached = flat.take(np.repeat(states << 8, counts) + self.byte.take(children))
            alive = np.flatnonzero(reached != DEAD)
            nodes, states = children.take(alive), reached.take(alive).astype(np.int64)
            visited.append(nodes)
        reached_nodes = np.concatenate(visited)
        return self.token_ids[spans(self.token_start[reached_nodes], self.token_count[reached_nodes])]

    def pack(self, ids: npt.NDArray[np.int32]) -> Bitmask:
        """[words] the mask in which exactly ``ids`` are set; read-only."""
        bits = np.zeros(self.num_words * 32, dtype=np.bool_)
        bits[ids] = True
        mask = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)
        mask.setflags(write=False)
        return mask


def spans(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers start, start + 1, ... of every span, one span after the other."""
    ends = np.cumsum(counts)
    numbers: npt.NDArray[np.int64] = np.repeat(starts - (ends - counts), counts)
    numbers += np.arange(len(numbers))
    return numbers


class Recent(Generic[K, V]):
    """The values used last, by key; made on demand, by one thread at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
                if len(self._values) > self._most:
                    self._values.popitem(last=False)
            self._values.move_to_end(key)
            return self._values[key]


_TRIES: Recent[str, TokenTrie] = Recent(4)


def trie_of(vocabulary: Vocabulary) -> TokenTrie:
    """The trie of ``vocabulary``; the four used last are kept, by digest."""
    return _TRIES.get(vocabulary.digest, lambda: TokenTrie(vocabulary))


class DFAConstraint:
    """A byte automaton seen through a vocabulary. Implements ``Constraint``; a state is the automaton's own, an int.

    A state from which the vocabulary's single-byte tokens reach no end is not entered, so there is no dead end: from
    every state that ``advance`` returns, ``min_bytes`` single-byte tokens complete the text.
    """

    def __init__(self, dfa: ByteDFA, vocabulary: Vocabulary) -> None:
        """Raises UnsatisfiableConstraint if the vocabulary can spell no text of the language."""
        self.dfa = dfa
        self.vocabulary = vocabulary
        self._trie = trie_of(vocabulary)
        self._table, self._distance = dfa.table, dfa.min_bytes
        if not self._trie.single_bytes.all():
            spelt = np.where(self._trie.single_bytes, dfa.table, np.int32(DEAD))
            self._distance = distances(spelt, dfa.accepting)
            reachable = (dfa.table != DEAD) & (self._distance[dfa.table] >= 0)
            self._table = np.where(reachable, dfa.table, np.int32(DEAD))
        if self._distance[0] < 0:
            raise UnsatisfiableConstraint("the model's vocabulary lacks the bytes to spell any text of the constraint")
        self._exits = (self._table != DEAD).sum(axis=1)
        self._masks: OrderedDict[int, Bitmask] = OrderedDict()
        self._most_masks = max(64, MEMO_BYTES // (4 * self._trie.num_words))
        self._lock = Lock()

    def initial(self) -> State:
        """The automaton's state 0."""
        return 0

    def mask(self, state: State) -> Bitmask:
        """[words] packed; see ``Constraint.mask``. A state seen for the first time costs a walk of the trie."""
        number = self._number(state)
        with self._lock:
            known = self._masks.get(number)
        if known is not None:
            return known
        mask = self._trie.pack(self._trie.allowed(self._table, number))
        with self._lock:
            self._masks[number] = mask
            if len(self._masks) > self._most_masks:
                self._masks.popitem(last=False)
        return mask

    def advance(self, state: State, token: int) -> State:
        """The state after ``token``. Raises ValueError if the mask does not allow it."""
        data = self.vocabulary.token_bytes[token] if 0 <= token < self.vocabulary.size else None
        after = self._number(state)
        if not data or token in self.vocabulary.eos_ids:
            raise ValueError(f"token {token} has no text: a constraint never allows it")
        for byte in data:
            after = int(self._table[after, byte])
            if after == DEAD:
                raise ValueError(f"token {token} ({data!r}) is not allowed in state {state}")
        return after

    def forced(self, state: State) -> bytes:
        """The bytes that must follow; see ``Constraint.forced``."""
        number = self._number(state)
        run = bytearray()
        while self._exits[number] == 1 and not self.dfa.accepting[number]:
            byte = int(np.argmax(self._table[number] != DEAD))
            run.append(byte)
            number = int(self._table[number, byte])
        return bytes(run)

    def may_end(self, state: State) -> bool:
        """Whether the text so far is in the language."""
        return bool(self.dfa.accepting[self._number(state)])

    def min_bytes(self, state: State) -> int:
        """Bytes (and, at one byte a token, tokens) of the shortest completion."""
        return int(self._distance[self._number(state)])

    def _number(self, state: State) -> int:
        if not isinstance(state, int):
            raise TypeError(f"a state of this constraint is an int, not {state!r}")
        return state


def constraint_of(dfa: ByteDFA, vocabulary: Vocabulary) -> DFAConstraint:
    """The constraint of ``dfa`` under ``vocabulary``; the 256 used last are kept, with their masks."""
    return _CONSTRAINTS.get((dfa, vocabulary.digest), lambda: DFAConstraint(dfa, vocabulary))


_CONSTRAINTS: Recent[tuple[ByteDFA, str], DFAConstraint] = Recent(256)
