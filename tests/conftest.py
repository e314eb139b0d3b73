"""What all tests share: one embedded model per session, and quiet threads."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: a busy neighbour makes spinning threads crawl
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

import furcate as fc


@pytest.fixture(scope="session")
def embedded():
    """smollm2-135m, fetched on first use."""
    model = fc.load("smollm2-135m")
    yield model
    model.close()
