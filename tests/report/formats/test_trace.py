"""The trace format: steps, looks, operations and counters over time."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from support import examples
from support.formats import trace_rules

from leakscope.findings.model import Findings
from leakscope.report import FORMATS
from leakscope.report.formats.as_trace import steps_and_snapshots
from leakscope.run.model import Rank, Run
from leakscope.run.rows import Occasion


def trace(run: Run, findings: Findings) -> list[dict[str, Any]]:
    data = json.loads(FORMATS["trace"](run, findings))
    assert list(trace_rules.problems(data)) == []
    events: list[dict[str, Any]] = data["traceEvents"]
    return events


def only(rank: Rank, *, snapshots: bool) -> list[tuple[int, float, float]]:
    return [(one.step, one.begin, one.end) for one in steps_and_snapshots(rank) if one.is_snapshot is snapshots]


def test_steps_and_looks_follow_one_another() -> None:
    rank = replace(examples.leaking()[0].ranks[0], operations=())
    intervals = steps_and_snapshots(rank)
    assert len(intervals) == len(rank.steps) + len(rank.heap_snapshots)
    assert all(before.end == after.begin for before, after in pairwise(intervals))
    assert intervals[-1].end == pytest.approx(
        1e6
        * (sum(step.seconds for step in rank.steps) + sum(snapshot.stopped_seconds for snapshot in rank.heap_snapshots))
    )
    after_third = intervals[[one.step for one in intervals].index(3) + 1]
    assert after_third.is_snapshot and after_third.step == 3


def test_a_look_within_a_step_lies_where_it_issued_nothing() -> None:
    rank = examples.leaking()[0].ranks[0]
    operations = tuple(replace(rank.operations[0], id=n, step=1, issued=at) for n, at in enumerate((0.1, 0.2, 0.9)))
    steps = (replace(rank.steps[0], seconds=1.0, began=0.0),)
    snapshot = replace(rank.heap_snapshots[0], step=1, occasion=Occasion.PEAK, stopped_seconds=0.5)
    reported = only(replace(rank, operations=operations, steps=steps, heap_snapshots=(snapshot,)), snapshots=True)
    assert reported == [(1, pytest.approx(0.3e6), pytest.approx(0.8e6))]


def test_an_operation_is_a_span_from_its_issue_to_the_death_of_its_storage() -> None:
    run, findings = examples.leaking()
    events = [event for event in trace(run, findings) if event.get("id2") == {"local": "0x1"} and event["pid"] == 0]
    first = run.ranks[0].operations[0]
    assert first.storage_died is not None and first.completed is not None
    assert [event["ph"] for event in events][:2] == ["b", "b"] and events[-1]["ph"] == "e"
    assert events[-1]["ts"] - events[0]["ts"] == pytest.approx(1e6 * (first.storage_died - first.issued))
    flight = [event for event in events if event["name"] == "in flight"]
    assert flight[1]["ts"] - flight[0]["ts"] == pytest.approx(1e6 * (first.completed - first.issued))
