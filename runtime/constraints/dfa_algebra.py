"""Boolean algebra of byte automata: products, unions, differences, and how many words a state has left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..errors import InvalidRegex, UnsatisfiableConstraint
from .byte_dfa import DEAD, ByteDFA, restricted

MAX_STATES = 30_000
"""States of a product; larger ones are refused."""

_MOST_MERGED = 1_500
"""States up to which automata are made minimal: the refinement takes as many rounds as the longest text."""

MANY = 1 << 30
"""A number of words that counts as without end."""


def combine(
    required: Sequence[ByteDFA], optional: Sequence[ByteDFA] = ()
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Run automata side by side, as long as all of ``required`` live (without any: at least one of ``optional``).

    Returns the table [states, 256] and the states of the parts [states, parts], ``DEAD`` for a part that has died.
    Raises InvalidRegex where there are more than ``MAX_STATES``.
    """
    dfas = [*required, *optional]
    representatives, classes = _byte_classes(np.concatenate([dfa.table for dfa in dfas]))
    # A last row stands for a part that has died, so that DEAD, as an index, stays dead.
    rows = [np.vstack((dfa.table[:, representatives], np.full((1, len(representatives)), DEAD))) for dfa in dfas]
    needed = len(required)
    number: dict[bytes, int] = {}
    order = [np.zeros((1, len(dfas)), dtype=np.int32)]
    number[order[0].tobytes()] = 0
    found: list[npt.NDArray[np.int32]] = []
    while len(order[-1]):
        frontier = order[-1]
        after = np.stack([rows[i][frontier[:, i]] for i in range(len(dfas))], axis=2).astype(np.int32)
        dead = (after[:, :, :needed] == DEAD).any(axis=2) if needed else (after == DEAD).all(axis=2)
        flat = np.ascontiguousarray(after[~dead])
        line = np.full(dead.shape, DEAD, dtype=np.int32)
        fresh: list[npt.NDArray[np.int32]] = []
        if len(flat):
            distinct, inverse = np.unique(flat, axis=0, return_inverse=True)
            targets = np.empty(len(distinct), dtype=np.int32)
            for i, state in enumerate(distinct):
                key = state.tobytes()
                target = number.get(key)
                if target is None:
                    target = number[key] = len(number)
                    fresh.append(state)
                targets[i] = target
            line[~dead] = targets[inverse.reshape(-1)]
        found.append(line)
        order.append(np.array(fresh, dtype=np.int32).reshape(len(fresh), len(dfas)))
        if len(number) > MAX_STATES:
            raise InvalidRegex(f"constraints that hold together need an automaton of over {MAX_STATES:,} states")
    table = np.concatenate(found)[:, classes]
    return np.ascontiguousarray(table, dtype=np.int32), np.concatenate(order)


def _byte_classes(table: npt.NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """One byte of each class of bytes that no state tells apart, and [256] the class of every byte."""
    known: dict[bytes, int] = {}
    representatives: list[int] = []
    classes = []
    for byte, column in enumerate(np.ascontiguousarray(table.T)):
        number = known.setdefault(column.tobytes(), len(known))
        if number == len(representatives):
            representatives.append(byte)
        classes.append(number)
    return representatives, classes


def _accepts(dfa: ByteDFA, states: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    accepted: npt.NDArray[np.bool_] = (states != DEAD) & dfa.accepting[states]
    return accepted


def conjunction(wanted: Sequence[ByteDFA], unwanted: Sequence[ByteDFA] = ()) -> ByteDFA:
    """Texts in all of ``wanted`` (at least one) and in none of ``unwanted``.

    Raises UnsatisfiableConstraint if there is none.
    """
    if len(wanted) == 1 and not unwanted:
        return wanted[0]
    table, parts = combine(wanted, unwanted)
    accepting = np.ones(len(table), dtype=np.bool_)
    for i, dfa in enumerate([*wanted, *unwanted]):
        held = _accepts(dfa, parts[:, i])
        accepting &= held if i < len(wanted) else ~held
    return minimal(restricted(table, accepting))


def union(dfas: Sequence[ByteDFA]) -> ByteDFA:
    """Texts in any of ``dfas`` (at least one)."""
    if len(dfas) == 1:
        return dfas[0]
    table, parts = combine((), dfas)
    accepting = np.zeros(len(table), dtype=np.bool_)
    for i, dfa in enumerate(dfas):
        accepting |= _accepts(dfa, parts[:, i])
    return minimal(restricted(table, accepting))


def minimal(dfa: ByteDFA) -> ByteDFA:
    """The same language with the fewest states, where there are not too many: Moore's partition refinement."""
    if dfa.num_states > _MOST_MERGED:
        return dfa
    blocks = dfa.accepting.astype(np.int64)
    columns = dfa.table[:, _byte_classes(dfa.table)[0]]
    count = 0
    while True:
        padded = np.append(blocks, -1)  # DEAD indexes the last entry
        signature = np.column_stack((blocks, padded[columns]))
        _, first, blocks = np.unique(signature, axis=0, return_index=True, return_inverse=True)
        blocks = blocks.reshape(-1)
        if len(first) == count:
            break
        count = len(first)
    if count == dfa.num_states:
        return dfa
    # Blocks are numbered by their first state, so that state 0 stays the initial one.
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(count)
    blocks = rank[blocks]
    first = np.sort(first)
    table = np.append(blocks, DEAD)[dfa.table[first]].astype(np.int32)
    accepting = dfa.accepting[first].copy()
    table.setflags(write=False)
    accepting.setflags(write=False)
    return ByteDFA(table, accepting)


def is_empty(wanted: Sequence[ByteDFA], unwanted: Sequence[ByteDFA] = ()) -> bool:
    """Whether no text is in all of ``wanted`` and in none of ``unwanted``."""
    try:
        conjunction(wanted, unwanted)
    except UnsatisfiableConstraint:
        return True
    return False


@lru_cache(maxsize=256)
def num_words(dfa: ByteDFA) -> tuple[int, ...]:
    """[states] how many texts a state can still become, ``MANY`` where there is no end of them."""
    successors = [[int(q) for q in row if q != DEAD] for row in dfa.table.tolist()]
    words = [0] * dfa.num_states
    settled = [False] * dfa.num_states
    active = [False] * dfa.num_states
    for root in range(dfa.num_states):
        stack = [(root, 0)]
        while stack:
            state, place = stack.pop()
            if place == 0:
                if settled[state]:
                    continue
                active[state] = True
            targets = successors[state]
            while place < len(targets) and (settled[targets[place]] or active[targets[place]]):
                if not settled[targets[place]]:
                    words[state] = MANY  # a cycle among states that all reach an end
                place += 1
            if place < len(targets):
                stack.extend(((state, place + 1), (targets[place], 0)))
                continue
            total = int(dfa.accepting[state]) + sum(words[q] for q in targets)
            words[state] = MANY if words[state] == MANY else min(MANY, total)
            settled[state] = True
            active[state] = False
    return _endless_spread(words, successors)


def _endless_spread(words: list[int], successors: list[list[int]]) -> tuple[int, ...]:
    """Carry MANY back to every state that reaches it; a cycle met from its middle leaves some behind."""
    before: list[list[int]] = [[] for _ in words]
    for state, targets in enumerate(successors):
        for target in set(targets):
            before[target].append(state)
    queue = [state for state, count in enumerate(words) if count >= MANY]
    endless = set(queue)
    for state in queue:
        for source in before[state]:
            if source not in endless:
                endless.add(source)
                queue.append(source)
    return tuple(MANY if state in endless else count for state, count in enumerate(words))
