"""Are the tables, traces and flame graphs of figures what was recorded?"""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from support import examples
from support.formats import speedscope_rules, trace_rules

from leakscope.findings.ledger import LedgerInterval, Line, LineKind
from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report import FORMATS
from leakscope.report.formats.trace.clock import comm_delay, steps_and_looks


def rows(run: Run, findings: Findings) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(FORMATS["csv"](run, findings), newline="")))


def trace(run: Run, findings: Findings) -> list[dict[str, Any]]:
    told = json.loads(FORMATS["trace"](run, findings))
    assert list(trace_rules.problems(told)) == []
    events: list[dict[str, Any]] = told["traceEvents"]
    return events


@pytest.mark.parametrize("name", examples.ALL)
def test_every_example_is_taken(name: str) -> None:
    run, findings = examples.ALL[name]()
    trace(run, findings)
    assert list(speedscope_rules.problems(json.loads(FORMATS["speedscope"](run, findings)))) == []
    rows(run, findings)


def test_the_table_has_a_line_for_each_figure() -> None:
    run, findings = examples.leaking()
    lines = (Line(LineKind.LEAKS, 300, "b41c07e2", "=losses"), Line(LineKind.UNATTRIBUTED, -44))
    findings = replace(findings, ledgers={0: (LedgerInterval(3, 5, 256, lines),)})
    told = rows(run, findings)
    counted = [row for row in told if row["rank"] == "1" and row["kind"] == "step" and row["name"] == "counted"]
    assert [int(row["value"]) for row in counted] == [step.counted_bytes for step in run.ranks[1].steps]
    assert {row["unit"] for row in told} == {"bytes", "seconds"}
    ledger = [row for row in told if row["kind"] == "ledger"]
    assert [(row["from_step"], row["step"], row["name"], row["value"]) for row in ledger] == [
        ("3", "5", "leaks", "300"),
        ("3", "5", "unattributed", "-44"),
    ]
    assert (ledger[0]["finding"], ledger[0]["holder"]) == ("b41c07e2", "'=losses"), "no formula"


def test_steps_and_looks_follow_one_another() -> None:
    rank = examples.leaking()[0].ranks[0]
    intervals = steps_and_looks(rank)
    assert sum(not one.is_look for one in intervals) == len(rank.steps)
    assert sum(one.is_look for one in intervals) == len(rank.looks)
    assert all(before.end == after.begin for before, after in itertools.pairwise(intervals))
    assert intervals[-1].end == pytest.approx(
        1e6 * (sum(step.seconds for step in rank.steps) + sum(look.stopped_seconds for look in rank.looks))
    )
    after_third = intervals[[one.step for one in intervals].index(3) + 1]
    assert after_third.is_look and after_third.step == 3


def test_communication_lies_in_the_steps_that_issued_it() -> None:
    rank = examples.leaking()[0].ranks[0]
    intervals = [one for one in steps_and_looks(rank) if not one.is_look][:1]
    delay = comm_delay(rank, tuple(intervals))
    moments = [1e6 * operation.issued + delay for operation in rank.operations if operation.step == 1]
    assert moments and intervals[0].begin <= min(moments) and max(moments) <= intervals[0].end
    later = replace(rank, operations=tuple(replace(o, issued=o.issued + 1000.0) for o in rank.operations))
    assert comm_delay(later, tuple(intervals)) == pytest.approx(delay - 1000e6)
    assert comm_delay(replace(rank, operations=()), tuple(intervals)) == 0.0


def test_an_operation_is_a_span_from_its_issue_to_the_death_of_its_storage() -> None:
    run, findings = examples.leaking()
    events = [event for event in trace(run, findings) if event.get("id2") == {"local": "0x1"} and event["pid"] == 0]
    first = run.ranks[0].operations[0]
    assert first.storage_died is not None and first.completed is not None
    assert [event["ph"] for event in events][:2] == ["b", "b"] and events[-1]["ph"] == "e"
    assert events[-1]["ts"] - events[0]["ts"] == pytest.approx(1e6 * (first.storage_died - first.issued))
    flight = [event for event in events if event["name"] == "in flight"]
    assert flight[1]["ts"] - flight[0]["ts"] == pytest.approx(1e6 * (first.completed - first.issued))


def test_memory_is_a_counter_of_each_rank() -> None:
    run, findings = examples.leaking()
    told = [event for event in trace(run, findings) if event["ph"] == "C" and event["pid"] == 1]
    sizes = {event["args"]["bytes"] for event in told if event["name"] == "counted bytes"}
    assert sizes >= {step.counted_bytes for step in run.ranks[1].steps}


def test_flames_are_as_wide_as_what_is_held_and_add_up_to_what_was_found() -> None:
    run, findings = examples.leaking()
    told = json.loads(FORMATS["speedscope"](run, findings))
    frames = [frame["name"] for frame in told["shared"]["frames"]]
    rank = told["profiles"][0]
    stacks = [[frames[index] for index in stack] for stack in rank["samples"]]
    growth = findings.findings[1]
    weight = rank["weights"][stacks.index([f"{hop.object} {hop.reference}".rstrip() for hop in growth.trace])]
    assert weight == growth.sightings[-1].bytes
    assert sum(rank["weights"]) == max(findings.ranks[0].explained_bytes, weight)
