"""What the tests of the allocator package share."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from leakscope.memory_snapshot.model import Snapshot
from leakscope.memory_snapshot.reader import read_bytes


@pytest.fixture
def read() -> Callable[[Any], Snapshot]:
    """Pickle plain data as torch does and read it back through the loader."""
    return lambda data: read_bytes("snapshot.pickle", pickle.dumps(data))
