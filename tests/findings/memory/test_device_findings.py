"""Findings and reports include the recorded blocks, figures and failures of an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.judging import MIB, STEPS, run_of
from support.recorded_rows import rows

from leakscope.findings import judge
from leakscope.findings.model import Finding, LineKind, by_kind
from leakscope.graph.model import HeapGraph, Object, build
from leakscope.recorder import accelerator as device
from leakscope.run.model import Ended, HeapSnapshot, Rank, Step
from leakscope.run.rows import DeviceFigures

GIB = 1 << 30


def test_a_device_that_was_emptied_is_still_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    full = DeviceFigures(0, 5 * MIB, 5 * MIB, 6 * MIB, 5 * MIB, 0, 0, 0)
    answers: Iterator[Any] = iter([(), (full,), (), None, (full,)])
    monkeypatch.setattr(device, "find", lambda: SimpleNamespace(kind="cuda"))
    monkeypatch.setattr(device, "read_figures", lambda found: next(answers))
    counter = device.Counter()
    reported = [(counter.read().bytes, counter.device) for _ in range(5)]
    assert reported[0][1] == "cpu" and (reported[0][0] or 0) > 0, "not put to use yet: the host is counted"
    assert reported[1:] == [(5 * MIB, "cuda"), (0, "cuda"), (None, "cuda"), (5 * MIB, "cuda")]


def heap() -> HeapGraph:
    """One storage of 4 MiB that nothing alive holds any more, and one that something does."""
    made = [Object(k, "storage", "storage", "tensor memory", "storage", "", 4 * MIB, 0, root, freed, 0)
            for k, (root, freed) in enumerate((("native", 0), ("", 1)))]  # fmt: skip
    return build(made, [])


def blocks(
    step: int, native: int, pending: int = 0, outside: int = 0, reserved: int = GIB, occasion: str = "step"
) -> dict[str, Any]:
    sizes = [4 * MIB, 4 * MIB, native, pending]
    return {
        "step": step, "occasion": occasion, "kind": "cuda", "file": False,
        "storage": [0, 1, -1, -1], "bytes": sizes, "device": [0] * 4, "pending": [3], "made_at": [0, 0, 1, 2],
        "sites": ["train.py:10 forward", "train.py:20 send", "train.py:30 other_stream"],
        "layout": [{"device": 0, "reserved": reserved, "active": sum(sizes), "allocated": sum(sizes) - pending,
                    "pending": pending, "rounding": 0, "stuck": 0, "private": 0,
                    "driver": [80 * GIB - reserved - outside, 80 * GIB]}],
        "elsewhere": {"storages": 0, "bytes": 0},
    }  # fmt: skip


def counters(step: int, reserved: int = GIB, peak: int = GIB, retries: int = 0) -> dict[str, Any]:
    figures = {"device": 0, "allocated": 8 * MIB, "active": 8 * MIB, "reserved": reserved, "peak": peak, "stuck": 0,
               "retries": retries, "failures": 0}  # fmt: skip
    return {"step": step, "kind": "cuda", "devices": [figures]}


def failure(step: int, looked: bool = False, at: str = "train.py:41 forward") -> dict[str, Any]:
    return {"step": step, "kind": "cuda", "device": 0, "wanted_bytes": 2 * GIB, "limit_bytes": 80 * GIB,
            "free_bytes": MIB, "at": at, "counted": counters(step)["devices"][0], "looked": looked}  # fmt: skip


def rank(blocks_at: list[dict[str, Any]] | None = None, **files: Any) -> Rank:
    snapshots = tuple(HeapSnapshot(step, "step", heap(), 8 * MIB, 8 * MIB) for step in STEPS)
    steps = tuple(Step(k, 0.1, 8 * MIB, None) for k in range(1, 10))
    return Rank(0, steps, snapshots, Ended("finished", 0, 9), **rows(device_blocks=blocks_at or (), **files))


def of_rule(one: Rank, rule: str) -> list[Finding]:
    return [finding for finding in judge(run_of(one)).findings if finding.rule == rule]


def test_blocks_without_a_storage_that_grow_are_native_hold_with_their_place() -> None:
    (found,) = of_rule(rank([blocks(step, native=step * MIB) for step in STEPS]), "native-hold")
    assert (found.severity, found.bytes_per_step, found.retained_bytes) == ("leak", MIB, 6 * MIB)
    assert found.made_at == ("train.py:20 send",)
    assert judge(run_of(rank([blocks(step, native=step * MIB) for step in STEPS]))).verdict == "leaks"


def test_the_ledger_of_a_device_adds_up_with_its_blocks() -> None:
    on_device = replace(heap(), device={0: "cuda:0", 1: "cuda:0"})
    one = rank([blocks(step, native=step * MIB, pending=MIB) for step in STEPS])
    snapshots = tuple(
        replace(
            snapshot, heap=on_device, counted_on="cuda", counted_bytes=(8 + snapshot.step) * MIB + snapshot.step % 7
        )
        for snapshot in one.heap_snapshots
    )
    steps = tuple(replace(s, counted_on="cuda", counted_bytes=(8 + s.number) * MIB) for s in one.steps)
    found = judge(run_of(replace(one, heap_snapshots=snapshots, steps=steps)))
    for interval in found.ledgers[0]:
        assert interval.counted_on == "cuda" and sum(line.bytes for line in interval.lines) == interval.counted_bytes
        assert by_kind(interval.lines)[LineKind.BLOCKS] == 2 * MIB
    assert found.verdict == "leaks"


def test_a_gap_is_not_guessed_where_the_blocks_are_known() -> None:
    grown = rank([blocks(step, native=MIB) for step in STEPS])
    snapshots = tuple(replace(snapshot, counted_bytes=snapshot.step * 100 * MIB) for snapshot in grown.heap_snapshots)
    steps = tuple(replace(step, counted_bytes=step.number * 100 * MIB) for step in grown.steps)
    grown = replace(grown, heap_snapshots=snapshots, steps=steps)
    assert of_rule(grown, "native-hold") == []
    assert of_rule(replace(grown, device_blocks=()), "native-hold") != []


NOTES = {
    "reserved": rank(device=[counters(step, reserved=4 * GIB, peak=GIB) for step in STEPS]),
    "reserved, a third": rank(device=[counters(step, reserved=3 * GIB, peak=2 * GIB) for step in STEPS]),
    "pending": rank([blocks(step, MIB, pending=32 * MIB) for step in STEPS]),
    "outside": rank([blocks(step, MIB, outside=step * 32 * MIB) for step in STEPS]),
    "retries": rank(device=[counters(step, retries=step) for step in STEPS]),
    "caught": rank(device_out_of_memory=[failure(2), failure(4)]),
}


@pytest.mark.parametrize("name", NOTES)
def test_the_allocators_figures_are_notes_and_never_a_verdict(name: str) -> None:
    (found,) = of_rule(NOTES[name], "allocator")
    assert found.severity == "note" and judge(run_of(NOTES[name])).verdict == "clean"


@pytest.mark.parametrize(
    "one",
    [
        rank(device=[counters(step, reserved=4 * GIB, peak=3 * GIB + 100 * MIB) for step in STEPS]),
        rank([blocks(step, MIB, pending=64 * MIB if step < 9 else 0) for step in STEPS]),
        rank([blocks(step, MIB, outside=min(step, 7) * 32 * MIB) for step in STEPS]),
        rank(device=[counters(step, retries=3) for step in STEPS]),
    ],
    ids=["a peak that needs it", "pending now and then", "libraries that have loaded", "full once, at the start"],
)
def test_what_is_usual_is_no_note(one: Rank) -> None:
    assert of_rule(one, "allocator") == []


def test_a_snapshot_at_a_failure_that_was_caught_is_no_failure() -> None:
    one = rank([blocks(8, MIB, occasion="oom")], device_out_of_memory=[failure(2), failure(8, looked=True)])
    caught = replace(
        one,
        heap_snapshots=(*one.heap_snapshots, HeapSnapshot(8, "oom", heap(), 8 * MIB, 8 * MIB)),
        allocation_failures=(),
    )
    assert judge(run_of(caught)).out_of_memory == ()
