"""Steps are counted consistently over ranks and after a change of the step source."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from leakscope.options import Options
from leakscope.recorder.steps.peers import Peers, RankStateFile
from leakscope.recorder.steps.policy import FIRST_SNAPSHOTS, Schedule

STEPS = 12


def _peers(tmp_path: Path, rank: int) -> tuple[RankStateFile, Peers]:
    file = RankStateFile(tmp_path / "states", rank, 2)
    options = Options(folder=tmp_path, rank=rank, world=2)
    return file, Peers(file, Schedule(2, None, 0.02), options, lambda step: None, lambda rank: None)


def test_a_rank_steps_by_itself_only_where_no_rank_has_an_optimizer(tmp_path: Path) -> None:
    (first, asking), (second, other) = (_peers(tmp_path, rank) for rank in (0, 1))
    assert not any(asking.step_alone() for _ in range(STEPS)), "the other may own an optimizer"
    assert not other.step_alone() and asking.step_alone() and other.step_alone(), "both begin with their second"
    first.close()
    second.close()


def test_looks_and_end_are_counted_from_where_another_clock_took_over() -> None:
    schedule = Schedule(warmup=2, steps=12, budget=0.02, spent=1.0)
    schedule.restart(5)
    assert schedule.steps == 17
    due = [step for step in range(6, 18) if schedule.due(step, 0.0)]
    assert due == [*(5 + 2 + first for first in FIRST_SNAPSHOTS), 16]
    schedule.restart(8)
    assert (schedule.warmup, schedule.steps) == (10, 20)


def test_no_thread_overwrites_what_another_says_of_the_rank(tmp_path: Path) -> None:
    file, interval, over = RankStateFile(tmp_path / "states", 0, 1), sys.getswitchinterval(), threading.Event()

    def tick() -> None:
        while not over.is_set():
            with file.taking_snapshot():
                pass

    watchdog = threading.Thread(target=tick)
    sys.setswitchinterval(1e-5)
    try:
        watchdog.start()
        lost, steps, end = 0, 0, time.monotonic() + 0.7
        while time.monotonic() < end:
            steps += 1
            file.update(steps=steps)
            sum(range(300))  # the other thread writes what it has read before
            lost += file.mine.steps < steps
    finally:
        over.set()
        watchdog.join()
        sys.setswitchinterval(interval)
    assert (lost, file.states()[0].steps) == (0, steps)
    file.close()
