"""Reducing and stopping: ``vote``, and the conditions that end a fork early."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Until = Callable[[Sequence[T]], bool]


def vote(values: Iterable[T], /) -> T:
    """The most frequent value; ties go to the one seen first. Unhashable values are compared with ``==``.

    Raises ValueError if there are none.
    """
    counts = _counted(values)
    if not counts:
        raise ValueError("vote() of no values: every branch failed or was cancelled, or the fork had no items")
    return max(counts, key=lambda pair: pair[1])[0]


def _counted(values: Iterable[T]) -> list[tuple[T, int]]:
    """Each different value, in the order they were first seen, and how often."""
    counts: list[tuple[T, int]] = []
    places: dict[Hashable, int] = {}
    for value in values:
        at = _place(value, places, counts)
        if at is None:
            counts.append((value, 1))
        else:
            counts[at] = (counts[at][0], counts[at][1] + 1)
    return counts


def _place(value: Any, places: dict[Hashable, int], counts: list[tuple[Any, int]]) -> int | None:
    try:
        at = places.setdefault(value, len(counts))
    except TypeError:
        return next((i for i, (seen, _) in enumerate(counts) if seen == value), None)
    return at if at < len(counts) else None


def majority(k: int, /, *, key: Callable[[Any], object] | None = None) -> Until[object]:
    """Stop as soon as ``k`` finished values agree (by ``key``, if given).

    With an odd number of branches and ``k`` more than half of them the winner can no longer change.
    """
    _at_least_one("majority", k)

    def reached(values: Sequence[object]) -> bool:
        return any(n >= k for _, n in _counted(values if key is None else map(key, values)))

    return _needing(k, reached)


def first(k: int, /) -> Until[object]:
    """Stop as soon as ``k`` branches have finished. Which ones depends on timing: exempt from determinism."""
    _at_least_one("first", k)
    return _needing(k, lambda values: len(values) >= k)


def _needing(k: int, until: Until[object]) -> Until[object]:
    until.needs = k  # type: ignore[attr-defined]  # read by ``branches_needed``
    return until


def branches_needed(until: Until[Any] | None) -> int:
    """Fewest finished branches with which ``until`` can be reached; 1 where it does not say."""
    return int(getattr(until, "needs", 1))


def _at_least_one(name: str, k: int) -> None:
    if not isinstance(k, int):
        raise TypeError(f"{name} takes a number of branches, as in until={name}(3); it got {type(k).__name__}")
    if k < 1:
        raise ValueError(f"{name}({k}): at least one value must agree or finish")
