"""What several tests of looks need."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    """No garbage of other tests, and none collected: only what the test does lies between two looks of the whole process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
