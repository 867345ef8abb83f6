"""Heap snapshots stay within the time budget, are taken after the same step on all ranks, and by turns."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from leakscope.options import Options
from leakscope.recorder import snapshots
from leakscope.recorder.snapshots import SnapshotQueue
from leakscope.recorder.steps.peers import Peers, RankStateFile
from leakscope.recorder.steps.policy import FIRST_SNAPSHOTS, Schedule
from leakscope.run.live import Activity

STEP_S, BUDGET = 0.05, 0.02
FIRST = [3, 5, 7, 9]


def taken(
    seconds: float, steps: int = 1000, counted: Callable[[int], int] = lambda step: 50 << 20, step_s: float = STEP_S
) -> list[tuple[int, float]]:
    """(step, time) of each snapshot of an open-ended run in which one takes so many seconds."""
    schedule, found, now = Schedule(warmup=2, steps=None, budget=BUDGET), [], 0.0
    for step in range(1, steps + 1):
        now += step_s
        schedule.counted = counted(step)
        if schedule.due(step, now):
            now += seconds
            schedule.attempted(step)
            schedule.taken(seconds, seconds)
            found.append((step, now))
    return found


@pytest.mark.parametrize("seconds", [0.05, 0.5, 10.0])
def test_a_long_run_stays_within_its_budget(seconds: float) -> None:
    hours = 3
    found = taken(seconds, steps=hours * 3600, step_s=1.0)
    assert sum(seconds for _, now in found if now < 300.0) <= max(4.0 + 0.2 * 300, BUDGET * 300 + seconds)
    assert len(found) * seconds <= BUDGET * hours * 3600


def test_snapshots_of_any_cost_are_taken_in_a_run_of_known_length() -> None:
    schedule, due = Schedule(warmup=2, steps=12, budget=BUDGET), []
    for step in range(1, 13):
        if schedule.due(step, 0.0):
            schedule.attempted(step)
            schedule.taken(100.0, 100.0)
            due.append(step)
    assert due == [*FIRST, 11]


def test_rising_memory_calls_for_more_snapshots() -> None:
    """A leak once in ten steps, in a run too short for 2%."""

    def steps(counted: Callable[[int], int], seconds: float = 0.2) -> list[int]:
        return [step for step, _ in taken(seconds, 200, counted, step_s=0.01)]

    assert steps(lambda step: 50 << 20) == steps(lambda step: (50 << 20) + step * 1000) == FIRST
    assert steps(lambda step: (50 + step // 10) << 20) == [*FIRST, 13, 21, 31, 41, 53, 68]
    assert steps(lambda step: (50 + step // 10) << 20, seconds=2.0) == [3, 5], "not at any price"
    assert steps(lambda step: (50 << 30) + (step // 10 << 20)) == FIRST, "a thousandth is no rise"


def test_snapshots_and_end_are_counted_from_where_another_step_source_took_over() -> None:
    schedule = Schedule(warmup=2, steps=12, budget=BUDGET, spent=1.0)
    schedule.restart(5)
    assert schedule.steps == 17
    due = [step for step in range(6, 18) if schedule.due(step, 0.0)]
    assert due == [*(5 + 2 + first for first in FIRST_SNAPSHOTS), 16]
    schedule.restart(8)
    assert (schedule.warmup, schedule.steps) == (10, 20)


class Rank:
    """One rank of a run whose steps are counted here, in time of its own."""

    def __init__(self, folder: Path, rank: int, world: int, seconds: float = 0.0) -> None:
        self.file = RankStateFile(folder / "states", rank, world)
        self.schedule = Schedule(2, None, BUDGET)
        options = Options(folder=folder, rank=rank, world=world)
        self.peers = Peers(self.file, self.schedule, options, self.snapshot, lambda rank: None)
        self.seconds, self.step, self.taken = seconds, 0, list[int]()

    def end_step(self) -> None:
        self.step += 1
        if self.peers.snapshot_is_due(self.step, self.step, self.step * STEP_S, 50 << 20):
            self.snapshot(self.step)
        self.file.update(steps=self.step)

    def snapshot(self, step: int) -> None:
        self.taken.append(step)
        self.schedule.attempted(step)
        self.schedule.taken(self.seconds, self.seconds)
        self.file.update(spent=self.schedule.with_one_more)


def test_ranks_in_lockstep_take_snapshots_after_the_same_steps(tmp_path: Path) -> None:
    world, random = 4, Random(4)
    ranks = [Rank(tmp_path, rank, world, 0.05 + 0.01 * rank) for rank in range(world)]
    for _ in range(4000):
        for rank in random.sample(ranks, world):  # each ends the step when it does
            rank.end_step()
    first = ranks[0].taken
    assert first[:4] == FIRST and len(first) > 8 and all(rank.taken == first for rank in ranks)
    assert ranks[-1].seconds * len(first) <= BUDGET * 4000 * STEP_S, "the budget is that of the slowest rank"
    for rank in ranks:
        rank.file.close()


def test_a_rank_without_steps_follows_its_peers(tmp_path: Path) -> None:
    stepping, follower = ranks = [Rank(tmp_path, rank, 2, 0.2) for rank in range(2)]
    for _ in range(2500):
        stepping.end_step()
        follower.peers.snapshot_if_peers_stepped()
    assert follower.taken == stepping.taken[: len(follower.taken)] and len(follower.taken) > 6
    for rank in ranks:
        rank.file.close()


def test_a_rank_steps_by_itself_only_where_no_rank_has_an_optimizer(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, rank, 2) for rank in (0, 1)]
    first, other = (rank.peers for rank in ranks)
    assert not any(first.step_alone() for _ in range(12)), "the other may own an optimizer"
    assert not other.step_alone() and first.step_alone() and other.step_alone(), "both begin with their second"
    for rank in ranks:
        rank.file.close()


def test_the_answer_to_a_failing_rank_is_announced_before_the_snapshot(tmp_path: Path) -> None:
    """The failing rank waits for nobody who has answered and takes no snapshot."""
    mine, failing = (RankStateFile(tmp_path / "states", rank, 2) for rank in range(2))
    seen: list[tuple[int, int, int]] = []

    def answers(rank: int) -> None:
        seen.append((rank, failing.states()[0].answered, failing.states()[0].activity))

    options = Options(folder=tmp_path, rank=0, world=2)
    peers = Peers(mine, Schedule(2, None, BUDGET), options, lambda _: None, answers)
    failing.update(failed=True)
    peers.answer_on_watchdog_thread()  # a moment later, at a poll point, it answers
    peers.answer_if_one_failed()
    assert seen == [(1, True, Activity.SNAPSHOT)]
    for file in (mine, failing):
        file.close()


def test_no_thread_overwrites_what_another_writes_of_the_rank(tmp_path: Path) -> None:
    file, interval, over = RankStateFile(tmp_path / "states", 0, 1), sys.getswitchinterval(), threading.Event()

    def tick() -> None:
        while not over.is_set():
            with file.taking_snapshot():
                pass

    watchdog = threading.Thread(target=tick)
    sys.setswitchinterval(1e-5)
    try:
        watchdog.start()
        lost, steps, end = 0, 0, time.monotonic() + 0.4
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


def test_as_many_ranks_take_a_snapshot_at_a_time_as_there_are_cores(tmp_path: Path) -> None:
    now, most = list[int](), list[int]()

    def snapshot() -> None:  # each with a file of its own, as a process has
        with SnapshotQueue(tmp_path, 6, 2).turn():
            now.append(1)
            most.append(len(now))
            time.sleep(0.01)
            now.pop()

    threads = [threading.Thread(target=snapshot) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (6, 2)


def test_a_turn_that_never_ends_delays_nobody_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="snapshot"), SnapshotQueue(tmp_path, 6, cores=1).turn():
        raise ValueError("snapshot")
    monkeypatch.setattr(snapshots, "_TIMEOUT_S", 0.02)
    with SnapshotQueue(tmp_path, 6, cores=1).turn(), SnapshotQueue(tmp_path, 6, cores=1).turn():
        pass
