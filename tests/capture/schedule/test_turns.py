"""Concurrent heap snapshots are limited to the number of cores."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from leakscope.recorder import snapshots
from leakscope.recorder.snapshots import SnapshotQueue

RANKS = 6


def _most_at_once(folder: Path, cores: int, ranks: int = RANKS) -> int:
    """How many of the ranks, each with a file of its own as a process has, had a turn at the same time."""
    now: list[int] = []
    most: list[int] = []

    def look() -> None:
        with SnapshotQueue(folder, ranks, cores).turn():
            now.append(1)
            most.append(len(now))
            time.sleep(0.01)
            now.pop()

    threads = [threading.Thread(target=look) for _ in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == ranks, "each had one"
    return max(most)


def test_as_many_look_at_a_time_as_there_are_cores(tmp_path: Path) -> None:
    assert _most_at_once(tmp_path, 2) == 2


def test_one_that_never_ends_its_turn_holds_nobody_up_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_TIMEOUT_S", 0.02)
    with SnapshotQueue(tmp_path, RANKS, cores=1).turn(), SnapshotQueue(tmp_path, RANKS, cores=1).turn():
        pass


def test_a_turn_ends_with_the_look_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="look"), SnapshotQueue(tmp_path, RANKS, cores=1).turn():
        raise ValueError("look")
    began = time.monotonic()
    with SnapshotQueue(tmp_path, RANKS, cores=1).turn():
        assert time.monotonic() - began < snapshots._TIMEOUT_S / 2
