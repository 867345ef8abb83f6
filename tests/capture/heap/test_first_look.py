"""The first heap snapshot imports no modules and leaves little memory allocated."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

ONE_LOOK = """
import sys
import torch
from leakscope.recorder.accelerator import Counter
from leakscope.heap.snapshot import SnapshotContext, look
from leakscope.heap.growth import Gains
counter, gains, loaded = Counter(), Gains(), set(sys.modules)
before = counter.read().bytes
look(1, "step", SnapshotContext(gains=gains))
print([counter.read().bytes - before, sorted(set(sys.modules) - loaded)])
"""
LEFT_BYTES = 425 * 1024
"""What looks left in malloc's caches at most (`leakscope/recorder/accelerator.py`)."""


@pytest.mark.process
def test_the_first_look_imports_nothing_and_leaves_little(with_support: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ONE_LOOK], capture_output=True, text=True, timeout=120, check=True, env=with_support
    )
    left, imported = ast.literal_eval(done.stdout)
    assert imported == []
    assert left < LEFT_BYTES
