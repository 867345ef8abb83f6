"""The growth breakdown adds up to the counted memory, and no sentence contradicts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from support.heap_text import heap_from

from leakscope.findings.counters import counted_rate, rate_at_end
from leakscope.findings.growth import MIN_SNAPSHOTS
from leakscope.findings.judge import Policy, judge
from leakscope.findings.model import Findings, LineKind, Reason, Why, by_kind, grown_of, totals
from leakscope.run.model import Collection, Ended, HeapSnapshot, Rank, Run, Step
from leakscope.run.rows import EndKind, LifetimesUnjudged, MemoryThere, Occasion

KIB = 1024
FLOOR = 64 * KIB
WARMUP = 2
BASE = 100 << 20
"""Counted at the start: what a process takes that has imported torch."""
LEAKS = ("list", "names", "garbage", "unlike", "native")
"""What goes on to the end; `unlike` is garbage of a kind of its own at each step."""
Course = Callable[[int], int]
"""From a step to how many tensors there are."""
COURSES: Mapping[str, Course] = {
    "list": lambda step: step,
    "names": lambda step: step,
    "garbage": lambda step: step,
    "unlike": lambda step: step,
    "rests": lambda step: min(step, 5),
    "goes": lambda step: step % 2,
    "late": lambda step: max(step - 10, 0),
    "renewed": lambda step: 1,
    "still": lambda step: 3,
    "filled": lambda step: step % 10,
}


@dataclass(frozen=True)
class Part:
    """Something that takes memory, in one of the ways of `COURSES`; `native` and `once` are no tensor's."""

    how: str
    size: int

    def bytes_at(self, step: int) -> int:
        if self.how in ("native", "once"):
            return self.size * (step if self.how == "native" else int(step > 6))
        return self.size * COURSES[self.how](step)

    def text_at(self, step: int, name: str) -> str:
        """The heap that it is at the end of a step."""
        if self.how in ("native", "once"):
            return ""
        return "".join(self._tensor(f"{name}_{k}", name, k) for k in range(COURSES[self.how](step)))

    def _tensor(self, tensor: str, name: str, number: int) -> str:
        if self.how in ("garbage", "renewed", "unlike"):
            owner = f"object {name}_{'x' * number}y" if self.how == "unlike" else f"object {name}#{number}"
            cycle = f"{owner} freed=1 -> .me -> {owner}\n"
            return f"{cycle}{owner} -> .kept -> tensor {tensor} freed=1\n{_memory(tensor, self.size)} freed=1\n"
        if self.how == "names":
            return f"module train -> .{tensor} -> tensor {tensor}\n{_memory(tensor, self.size)}\n"
        held = f"module train -> .{name} -> list {name}\nlist {name} -> [{number}] -> tensor {tensor}\n"
        return f"{held}{_memory(tensor, self.size)}\n"


def _memory(tensor: str, size: int) -> str:
    return f"tensor {tensor} -> storage -> storage {tensor} {size}"


def history(parts: Sequence[Part], snapshot_steps: Sequence[int], steps: int, noise: Sequence[int] = ()) -> Run:
    """A run of some steps, each counted and some looked at."""

    def counted(step: int) -> int:
        return BASE + sum(part.bytes_at(step) for part in parts) + (noise[step % len(noise)] if noise else 0)

    def snapshot(step: int) -> HeapSnapshot:
        heap = heap_from("".join(part.text_at(step, f"p{k}") for k, part in enumerate(parts)))
        return HeapSnapshot(step, Occasion.STEP, heap, counted(step), int(heap.bytes[heap.storages].sum()))

    rank = Rank(
        0,
        tuple(Step(step, 0.1, counted(step), None) for step in range(1, steps + 1)),
        tuple(snapshot(step) for step in snapshot_steps),
        Ended(EndKind.FINISHED, 0, steps),
    )
    return Run(("train.py",), (rank,), 1, "cpu", "2.13.0", "0", warmup=WARMUP, min_bytes=FLOOR)


PARTS = st.lists(
    st.builds(
        Part,
        st.sampled_from(("list", "names", "garbage", "unlike", "rests", "goes", "still", "native", "once")),
        st.sampled_from((KIB, 256 * KIB)),
    ),
    max_size=4,
)
SNAPSHOT_STEPS = st.sets(st.integers(WARMUP + 1, 16), max_size=7).map(sorted)
NOISE = st.lists(st.integers(0, 16 * KIB), max_size=5)


@settings(
    derandomize=True, deadline=None, max_examples=30, phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(parts=PARTS, snapshot_steps=SNAPSHOT_STEPS, noise=NOISE)
@example(parts=[Part("once", 256 * KIB)], snapshot_steps=[3, 5, 7, 9, 13, 16], noise=[])
@example(parts=[Part("names", 256 * KIB)], snapshot_steps=[3, 5, 9, 13], noise=[])
def test_no_sentence_contradicts_the_table(parts: list[Part], snapshot_steps: list[int], noise: list[int]) -> None:
    run = history(parts, snapshot_steps, 16, noise)
    findings = judge(run)
    adds_up(run, findings)
    balanced_where_clean(run, findings)
    growing = [part for part in parts if part.how in LEAKS and part.size > KIB]
    if findings.verdict == "leaks":
        assert growing
    if growing:
        sure = len(snapshot_steps) >= MIN_SNAPSHOTS and any(part.how in ("list", "garbage") for part in growing)
        assert findings.verdict in (("leaks",) if sure else ("leaks", "inconclusive"))


def adds_up(run: Run, findings: Findings) -> None:
    snapshots = run.ranks[0].heap_snapshots
    intervals = findings.ledgers[0]
    assert [(i.from_step, i.to_step) for i in intervals] == [(a.step, b.step) for a, b in pairwise(snapshots)]
    for interval, before, after in zip(intervals, snapshots, snapshots[1:], strict=False):
        assert interval.counted_bytes == (after.counted_bytes or 0) - (before.counted_bytes or 0)
        assert sum(line.bytes for line in interval.lines) == interval.counted_bytes
        assert sum(by_kind(interval.lines).values()) == interval.counted_bytes


def balanced_where_clean(run: Run, findings: Findings) -> None:
    grown = grown_of(0, findings.ledgers[0])
    if findings.verdict != "clean" or grown is None or grown.bytes < FLOOR * grown.steps:
        return
    sizes = by_kind(grown.lines)
    rate = counted_rate(run.ranks[0], WARMUP)
    assert sizes[LineKind.LEAKS] == 0
    assert sizes[LineKind.UNATTRIBUTED] < FLOOR * grown.steps or (rate is not None and rate < FLOOR)


def test_each_group_stands_on_one_line() -> None:
    parts = [Part("list", 256 * KIB), Part("rests", 128 * KIB), Part("garbage", KIB), Part("native", KIB)]
    lines = {line.kind: line for line in totals(judge(history(parts, (3, 5, 9, 13), 16)).ledgers[0])}
    assert {kind: line.bytes for kind, line in lines.items()} == {
        LineKind.LEAKS: 10 * 256 * KIB,
        LineKind.RESTED: 2 * 128 * KIB,
        LineKind.GARBAGE: 10 * KIB,
        LineKind.UNATTRIBUTED: 10 * KIB,
    }
    assert lines[LineKind.LEAKS].holder == "train.p0[i]"


@pytest.mark.parametrize("how", ["garbage", "renewed"])
def test_garbage_that_is_made_every_step_and_freed_late_does_not_grow(how: str) -> None:
    run = history([Part(how, 1 << 20)], (3, 5, 9, 12), 12)
    full = Collection(2, 0.1, 5, 1 << 20)
    steps = tuple(replace(step, collections=(full,) if how == "renewed" else ()) for step in run.ranks[0].steps)
    found = judge(replace(run, ranks=(replace(run.ranks[0], steps=steps),)))
    assert len(found.findings) == 1
    assert (found.why.freed_late > 0) == (how == "renewed")


def test_the_counters_of_all_steps_correct_what_three_looks_show() -> None:
    run = history([Part("native", 20 * KIB)], (3, 9, 16), 16)
    rank = run.ranks[0]
    snapshots = tuple(
        replace(snapshot, counted_bytes=(snapshot.counted_bytes or 0) + snapshot.step * 600 * KIB)
        for snapshot in rank.heap_snapshots
    )
    found = judge(replace(run, ranks=(replace(rank, heap_snapshots=snapshots),)))
    assert found.verdict != "leaks" and not [f for f in found.findings if f.bytes_per_step > 20 * KIB]


@pytest.mark.parametrize("snapshot_steps", [(3, 5, 7, 9), (3, 4, 5, 7)])
@pytest.mark.parametrize("each", [0, 256])
def test_levels_that_another_thread_moves_are_no_growth_that_the_snapshots_do_not_see(
    snapshot_steps: tuple[int, ...], each: int
) -> None:
    """A thread releases 228 KiB before or after the end of a step; three rises of ten steps are undisturbed."""
    run = history(
        [Part("native", each * KIB)], snapshot_steps, 10, [k * KIB for k in (300, 228, 0, 0, 0, 0, 0, 0, 90, 180)]
    )
    (one,) = run.ranks
    watched = tuple(LifetimesUnjudged(step=step, why="") for step in (5, 6))
    snapshots = tuple(
        replace(snapshot, counted_bytes=BASE + each * snapshot.step * KIB) for snapshot in one.heap_snapshots
    )
    rank = replace(one, heap_snapshots=snapshots, lifetimes=watched)
    assert (rate_at_end(rank, WARMUP) or 0) >= FLOOR
    is_clean = not each and snapshot_steps[-1] == 9
    assert (judge(replace(run, ranks=(rank,))).verdict == "clean") == is_clean


@pytest.mark.parametrize("high", [300, 1000, 3000])
@pytest.mark.parametrize("steps", [10, 12])
def test_a_snapshot_that_counts_more_hides_no_growth_of_the_counters(high: int, steps: int) -> None:
    run = history([Part("native", 100 * KIB)], (3, 5, 7, 9), steps)
    (one,) = run.ranks
    for other in (0, -1):  # the first snapshot counts more, or the last one less
        snapshots = list(one.heap_snapshots)
        snapshots[other] = replace(
            snapshots[other], counted_bytes=(snapshots[other].counted_bytes or 0) + (1 + 2 * other) * high * KIB
        )
        assert judge(replace(run, ranks=(replace(one, heap_snapshots=tuple(snapshots)),))).verdict != "clean"


@pytest.mark.parametrize(("beside", "reason"), [(4096, Reason.HIDDEN), (4095, Reason.SUPPRESSED)])
def test_what_torch_hides_is_asked_of_what_is_not_suppressed_alone(beside: int, reason: Reason) -> None:
    run = history([Part("list", 256 * KIB), Part("native", beside)], (3, 5, 9, 13), 16)
    (one,) = run.ranks
    run = replace(
        run,
        ranks=(replace(one, heap_snapshots=tuple(replace(snapshot, hides=True) for snapshot in one.heap_snapshots)),),
    )
    assert isinstance(why := judge(run, Policy(suppress=["step-growth"])).why, Why)
    assert why.reason == reason


@pytest.mark.parametrize(("size", "reason"), [(4096, Reason.BALANCED), (4095, Reason.NOTHING_GREW)])
def test_growth_is_told_from_what_any_process_moves_by(size: int, reason: Reason) -> None:
    assert isinstance(why := judge(history([Part("native", size)], (3, 5, 9, 13), 16)).why, Why)
    assert why.reason == reason


@pytest.mark.parametrize(("snapshot_steps", "reason"), [((3, 5, 9), Reason.NOTHING_GREW), ((3, 9), Reason.DAMAGED)])
def test_a_damaged_look_matters_where_those_left_are_too_few(snapshot_steps: tuple[int, ...], reason: Reason) -> None:
    whole, run = (history([Part("still", KIB)], steps_seen, 16) for steps_seen in ((3, 5, 9), snapshot_steps))
    (one,) = run.ranks
    damaged = replace(one, number=1, damaged=("heap_step_00007.npz",))
    run = replace(run, ranks=(*whole.ranks, damaged), expected_ranks=2)
    assert isinstance(why := judge(run).why, Why)
    assert why.reason == reason


def test_what_leaks_hold_at_the_end_and_when_memory_is_full_are_forecast() -> None:
    run = history([Part("list", 1 << 20)], (3, 5, 7, 9), 60)
    (one,) = run.ranks
    room = [MemoryThere("the host's memory", BASE + (size << 20)) for size in (100, 2000)]
    near, far = (judge(replace(run, ranks=(replace(one, host_memory=(there,)),))).why for there in room)
    assert isinstance(near, Why) and isinstance(far, Why)
    assert (near.bytes, near.bytes_at_end, near.full_at_step) == (9 << 20, 60 << 20, 100)
    assert (far.bytes_at_end, far.full_at_step) == (60 << 20, 0)  # more than 20 times as far as was seen
    (snapshot, *_) = one.heap_snapshots
    taken = replace(room[0], used_bytes=(snapshot.counted_bytes or 0) + (20 << 20))
    why = judge(replace(run, ranks=(replace(one, host_memory=(taken,)),))).why
    assert isinstance(why, Why) and why.full_at_step == 80, "other processes have 20 MiB of it"
