"""The garbage collector rests during heavy imports and is as it was afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from furcate.runtime.collector import collector_at_rest


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_as_it_was_also_after_an_error(before: bool) -> None:
    (gc.enable if before else gc.disable)()
    during = []

    def fail() -> None:
        with collector_at_rest():
            during.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        fail()
    assert during == [False]
    assert gc.isenabled() == before
