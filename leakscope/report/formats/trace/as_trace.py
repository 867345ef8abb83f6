"""What happened when, for a viewer of traces: Chrome's JSON, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from leakscope.findings.model import Findings
from leakscope.record.model import Rank, Run
from leakscope.report.cleaning import cleaned
from leakscope.report.formats.trace.clock import Interval, steps_and_looks
from leakscope.report.formats.trace.operations import MOST, comm_events
from leakscope.report.wording import ended_badly, ended_text, title

_Event = dict[str, Any]
STEPS, LOOKS = 1, 2
"""Tracks of a rank, as threads of its process."""


def render(run: Run, findings: Findings) -> str:
    """Each rank as a process: its steps and looks one after the other, communication as spans that overlap, memory as
    counters; times in microseconds from the beginning of its recording.
    """
    run, findings = cleaned(run), cleaned(findings)
    most = MOST // max(sum(len(rank.operations) > 0 for rank in run.ranks), 1)
    events = [event for rank in run.ranks for event in _shifted([*_of_rank(rank, most)])]
    named = [event for rank in run.ranks for event in _names(rank)]
    told = {
        "traceEvents": [*named, *sorted(events, key=lambda event: event["ts"])],
        "displayTimeUnit": "ms",
        "otherData": {
            "version": f"leakscope {run.leakscope}".strip(),
            "command": " ".join(run.command),
            "verdict": findings.verdict,
            "operations left out": sum(max(len(rank.operations) - most, 0) for rank in run.ranks),
            "findings": [f"{finding.fingerprint} {title(finding)}" for finding in findings.findings],
        },
    }
    return json.dumps(told, allow_nan=False) + "\n"


def _names(rank: Rank) -> Iterator[_Event]:
    """Metadata: they have no time of their own."""
    pid = rank.number
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"rank {pid}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for tid, name in ((STEPS, "steps"), (LOOKS, "looks of leakscope")):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _of_rank(rank: Rank, most: int) -> Iterator[_Event]:
    intervals = steps_and_looks(rank)
    for interval in intervals:
        yield from _interval(rank, interval)
    yield from comm_events(rank, most)
    if ended_badly(rank):
        end = max((interval.end for interval in intervals), default=0.0)
        yield {"ph": "i", "s": "p", "name": ended_text(rank), "cat": "end", "pid": rank.number, "tid": STEPS, "ts": end}


def _interval(rank: Rank, interval: Interval) -> Iterator[_Event]:
    name, tid = ("look at step", LOOKS) if interval.is_look else ("step", STEPS)
    yield {
        "ph": "X",
        "name": f"{name} {interval.step}",
        "cat": "look" if interval.is_look else "step",
        "pid": rank.number,
        "tid": tid,
        "ts": interval.begin,
        "dur": interval.end - interval.begin,
        "args": {name: size for name, size in interval.bytes},
    }
    for name, size in interval.bytes:
        yield {"ph": "C", "name": name, "pid": rank.number, "tid": 0, "ts": interval.end, "args": {"bytes": size}}


def _shifted(events: list[_Event]) -> list[_Event]:
    """In whole nanoseconds of microseconds, none of them before the beginning."""
    first = min((event["ts"] for event in events), default=0.0)
    shift = -min(first, 0.0)
    for event in events:
        begin = event["ts"] + shift
        event["ts"] = round(begin, 3)
        if "dur" in event:  # of neighbours on one track the first must not reach into the second
            event["dur"] = round(round(begin + event["dur"], 3) - event["ts"], 3)
    return events
