"""Token masks of pushdown automata: a walk of the vocabulary's trie, by arrays inside wide texts, else node by node."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import UnsatisfiableConstraint
from ..vocabulary import Vocabulary
from .byte_dfa import DEAD
from .machine import FAR, Config, Machine, Reading, Wide, closed
from .protocol import Bitmask, State
from .token_masks import MEMO_BYTES, Recent, TokenTrie, spans, trie_of


class _Walked(NamedTuple):
    """What the trie's tokens do inside one wide text."""

    ids: npt.NDArray[np.int32]
    """Tokens that stay in the text, by the number of characters that they hold or make necessary, ascending."""
    chars: npt.NDArray[np.int64]
    """[ids] that number."""
    mask: Bitmask
    """[words] all of ``ids``."""
    exits: tuple[tuple[int, int, int, bytes], ...]
    """(node, state at it, characters up to it, bytes up to it) where the text may be left in the midst of a token."""


class Walks:
    """The walks of one vocabulary's trie, shared by all constraints on it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.trie: TokenTrie = trie_of(vocabulary)
        self.first_child: list[int] = self.trie.first_child.tolist()
        self.child_count: list[int] = self.trie.child_count.tolist()
        self.byte: list[int] = self.trie.byte.tolist()
        self.token_start: list[int] = self.trie.token_start.tolist()
        self.token_count: list[int] = self.trie.token_count.tolist()
        self.token_ids: list[int] = self.trie.token_ids.tolist()
        self._parent = np.zeros(len(self.byte), dtype=np.int64)
        inner = np.flatnonzero(self.trie.child_count)
        self._parent[spans(self.trie.first_child[inner], self.trie.child_count[inner])] = np.repeat(
            inner, self.trie.child_count[inner]
        )
        self._known: Recent[tuple[int, int], tuple[npt.NDArray[np.int32], _Walked]] = Recent(4096)

    def walked(self, wide: Wide) -> _Walked:
        """The walk of a wide text from its state; remembered by its table."""
        key = (id(wide.table), wide.state)
        # The table is kept with the walk, so that its id stays taken.
        return self._known.get(key, lambda: (wide.table, self._walk(wide)))[1]

    def _walk(self, wide: Wide) -> _Walked:
        trie = self.trie
        doors = wide.doors
        flat = wide.table.reshape(-1)
        nodes = np.zeros(1, dtype=np.int64)
        states = np.full(1, wide.state, dtype=np.int64)
        chars = np.zeros(1, dtype=np.int64)
        visited, numbers = [], []
        exits: list[tuple[int, int, int, bytes]] = []
        while len(nodes):
            counts = trie.child_count[nodes]
            children = spans(trie.first_child[nodes], counts)
            byte = trie.byte.take(children)
            before = np.repeat(np.arange(len(nodes)), counts)
            reached = flat.take(np.repeat(states << 8, counts) + byte)
            dead = np.flatnonzero(reached == DEAD)
            columns = byte[dead] if doors.shape[1] > 1 else np.zeros(len(dead), dtype=np.int64)
            lines = states[before[dead]] if doors.shape[0] > 1 else np.zeros(len(dead), dtype=np.int64)
            left = np.unique(before[dead[doors[lines, columns]]])
            exits.extend((int(nodes[i]), int(states[i]), int(chars[i]), self._path(int(nodes[i]))) for i in left)
            alive = np.flatnonzero(reached != DEAD)
            chars = (chars[before] + ((byte & 0xC0) != 0x80)).take(alive)
            nodes, states = children.take(alive), reached.take(alive).astype(np.int64)
            visited.append(nodes)
            numbers.append(chars + wide.extra[states])
        reached_nodes = np.concatenate(visited)
        tokens = trie.token_count[reached_nodes]
        ids = trie.token_ids[spans(trie.token_start[reached_nodes], tokens)]
        sizes = np.repeat(np.concatenate(numbers), tokens)
        order = np.argsort(sizes, kind="stable")
        return _Walked(ids[order], sizes[order], trie.pack(ids), tuple(exits))

    def _path(self, node: int) -> bytes:
        path = bytearray()
        while node:
            path.append(self.byte[node])
            node = int(self._parent[node])
        return bytes(reversed(path))


_WALKS: Recent[str, Walks] = Recent(4)


def walks_of(vocabulary: Vocabulary) -> Walks:
    """The walks of ``vocabulary``; those of the four used last are kept."""
    return _WALKS.get(vocabulary.digest, lambda: Walks(vocabulary))


class MachineConstraint:
    """A pushdown automaton seen through a vocabulary. Implements ``Constraint``; a state is a ``Reading``."""

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        """Raises UnsatisfiableConstraint if no text is in the language."""
        if machine.need(machine.start) >= FAR:
            raise UnsatisfiableConstraint("no text satisfies the constraint: its language is empty")
        self.machine = machine
        self.vocabulary = vocabulary
        self._walks = walks_of(vocabulary)
        self._masks: OrderedDict[Reading, Bitmask] = OrderedDict()
        self._most_masks = max(64, MEMO_BYTES // (4 * self._walks.trie.num_words))
        self._lock = Lock()

    def initial(self) -> State:
        """The state before any text."""
        return self.machine.start

    def mask(self, state: State) -> Bitmask:
        """[words] packed; see ``Constraint.mask``."""
        reading = self._reading(state)
        with self._lock:
            known = self._masks.get(reading)
            if known is not None:
                self._masks.move_to_end(reading)
                return known
        mask = self._mask(reading)
        with self._lock:
            self._masks[reading] = mask
            if len(self._masks) > self._most_masks:
                self._masks.popitem(last=False)
        return mask

    def advance(self, state: State, token: int) -> State:
        """The state after ``token``. Raises ValueError if the mask does not allow it."""
        data = self.vocabulary.token_bytes[token] if 0 <= token < self.vocabulary.size else None
        reading = self._reading(state)
        if not data or token in self.vocabulary.eos_ids:
            raise ValueError(f"token {token} has no text: a constraint never allows it")
        for byte in data:
            reading = self.machine.step(reading, byte)
            if not reading.alive:
                raise ValueError(f"token {token} ({data!r}) is not allowed here")
        return reading

    def forced(self, state: State) -> bytes:
        """The bytes that must follow; see ``Constraint.forced``."""
        return self.machine.forced(self._reading(state))

    def may_end(self, state: State) -> bool:
        """Whether the text so far is in the language."""
        return self._reading(state).ends

    def min_bytes(self, state: State) -> int:
        """Bytes of the shortest completion."""
        return self.machine.need(self._reading(state))

    def _mask(self, reading: Reading) -> Bitmask:
        walks = self._walks
        found: list[int] = []
        arrays: list[npt.NDArray[np.int32]] = []
        masks: list[Bitmask] = []
        narrow: list[Config] = []
        for one in reading.configs:
            wide = one.part.wide(one.data)
            if wide is None:
                narrow.append(one)
                continue
            walk = walks.walked(wide)
            if wide.room is None or not len(walk.chars) or walk.chars[-1] <= wide.room:
                masks.append(walk.mask)
            else:
                arrays.append(walk.ids[: np.searchsorted(walk.chars, wide.room, side="right")])
            for node, after, chars, path in walk.exits:
                if wide.room is None or chars <= wide.room:
                    inside = one.part.leave(one.data, one.cont, after, chars, path)
                    self._below(node, closed((inside,)), found, wide.table[after])
        if narrow:
            self._below(0, closed(narrow), found, None)
        if len(masks) == 1 and not found and not arrays:
            return masks[0]
        if found:
            arrays.append(np.array(found, dtype=np.int32))
        mask = walks.trie.pack(np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32))
        for other in masks:
            mask = mask | other
        mask.setflags(write=False)
        return mask

    def _below(self, node: int, state: Reading, found: list[int], skip: npt.NDArray[np.int32] | None) -> None:
        """Collect the tokens below ``node`` that may follow in ``state``, but for the bytes on which ``skip`` lives."""
        walks, step = self._walks, self.machine.step
        skipped = None if skip is None else skip != DEAD
        waiting = [(node, state)]
        while waiting:
            node, state = waiting.pop()
            first = walks.first_child[node]
            for child in range(first, first + walks.child_count[node]):
                byte = walks.byte[child]
                if skipped is not None and skipped[byte]:
                    continue
                after = step(state, byte)
                if not after.alive:
                    continue
                start = walks.token_start[child]
                found.extend(walks.token_ids[start : start + walks.token_count[child]])
                if walks.child_count[child] and after.configs:
                    waiting.append((child, after))
            skipped = None

    def _reading(self, state: State) -> Reading:
        if not isinstance(state, Reading):
            raise TypeError(f"a state of this constraint is a Reading, not {state!r}")
        return state


_MOST_CONSTRAINTS = 64
_CONSTRAINTS: Recent[tuple[Machine, str], MachineConstraint] = Recent(_MOST_CONSTRAINTS)


def machine_constraint(machine: Machine, vocabulary: Vocabulary) -> MachineConstraint:
    """The constraint of ``machine`` under ``vocabulary``; the 64 used last are kept, with their masks."""
    return _CONSTRAINTS.get((machine, vocabulary.digest), lambda: MachineConstraint(machine, vocabulary))
