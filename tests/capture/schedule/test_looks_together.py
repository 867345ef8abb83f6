"""Ranks in lockstep take heap snapshots after the same steps."""

from __future__ import annotations

from pathlib import Path
from random import Random

from leakscope.options import Options
from leakscope.recorder.steps.peers import Peers, RankStateFile
from leakscope.recorder.steps.policy import Schedule
from leakscope.run.live import Activity

STEP_S = 0.05
FIRST = [3, 5, 7, 9]


class _Rank:
    """One rank of a run whose steps are counted here, in time of its own."""

    def __init__(self, folder: Path, rank: int, world: int, seconds: float) -> None:
        self.file = RankStateFile(folder / "states", rank, world)
        self.schedule = Schedule(2, None, 0.02)
        options = Options(folder=folder, rank=rank, world=world)
        self.peers = Peers(self.file, self.schedule, options, self.looked_at, lambda rank: None)
        self.seconds, self.step, self.looks = seconds, 0, list[int]()

    def end_step(self, counted: int = 50 << 20) -> None:
        self.step += 1
        if self.peers.snapshot_is_due(self.step, self.step, self.step * STEP_S, counted):
            self.looked_at(self.step)
        self.file.update(steps=self.step)

    def looked_at(self, step: int) -> None:
        self.looks.append(step)
        self.schedule.attempted(step)
        self.schedule.taken(self.seconds, self.seconds)
        self.file.update(spent=self.schedule.with_one_more)


def test_ranks_in_lockstep_are_looked_at_after_the_same_steps(tmp_path: Path) -> None:
    world, random = 4, Random(4)
    ranks = [_Rank(tmp_path, rank, world, 0.05 + 0.01 * rank) for rank in range(world)]
    for _ in range(4000):
        for rank in random.sample(ranks, world):  # each comes to its end of the step when it does
            rank.end_step()
    looks = ranks[0].looks
    assert looks[:4] == FIRST and len(looks) > 8
    assert all(rank.looks == looks for rank in ranks)
    slowest = ranks[-1].seconds * len(looks)
    assert slowest <= 0.02 * 4000 * STEP_S, "the budget is that of the rank whose looks take longest"
    for rank in ranks:
        rank.file.close()


def test_a_rank_without_steps_is_looked_at_when_its_peers_ask(tmp_path: Path) -> None:
    stepping, follower = ranks = [_Rank(tmp_path, rank, 2, 0.2) for rank in range(2)]
    for _ in range(2500):
        stepping.end_step()
        follower.peers.snapshot_if_peers_stepped()
    assert follower.looks == stepping.looks[: len(follower.looks)] and len(follower.looks) > 6
    for rank in ranks:
        rank.file.close()


def test_who_answers_a_failing_rank_says_at_once_that_it_is_looked_at(tmp_path: Path) -> None:
    """The failing rank waits for nobody who has answered and is not being looked at."""
    mine, failing = (RankStateFile(tmp_path / "states", rank, 2) for rank in range(2))
    said: list[tuple[int, int, int]] = []
    options = Options(folder=tmp_path, rank=0, world=2)
    peers = Peers(
        mine,
        Schedule(2, None, 0.02),
        options,
        lambda _: None,
        lambda rank: said.append((rank, failing.states()[0].answered, failing.states()[0].activity)),
    )
    failing.update(failed=True)
    peers.answer_on_watchdog_thread()  # a moment later, at a poll point, it answers
    peers.answer_if_one_failed()
    assert said == [(1, True, Activity.LOOKING)]
    for file in (mine, failing):
        file.close()
