"""Chrome trace events: steps, snapshots and communication."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from leakscope.findings.model import Findings
from leakscope.report.finding_text import title
from leakscope.report.rank_text import ended_badly, ended_text, operation_name
from leakscope.report.rendering import cleaned
from leakscope.run.model import HeapSnapshot, Rank, Run, Step
from leakscope.run.operations import column
from leakscope.run.rows import CommOperation, Occasion

_Event = dict[str, Any]
MICROSECOND = 1e6
"""Microseconds per second."""
_WITHIN = (Occasion.PEAK, Occasion.MEMORY, Occasion.OOM, Occasion.REQUESTED)
"""Occasions of snapshots within a step, whose duration includes them."""
_Issued = Mapping[int, Sequence[float]]
"""Step, mapped to the times at which operations were issued in it, in order."""


@dataclass(frozen=True)
class Interval:
    """A step or a heap snapshot."""

    step: int
    begin: float
    end: float
    is_snapshot: bool
    bytes: tuple[tuple[str, int], ...]
    """Counted bytes at its end, by name."""


def steps_and_snapshots(rank: Rank) -> tuple[Interval, ...]:
    """All steps of a rank and the snapshots after them, without overlaps; then the snapshots within steps."""
    after: dict[int, list[HeapSnapshot]] = {}
    for snapshot in rank.heap_snapshots:
        if snapshot.occasion not in _WITHIN:
            after.setdefault(snapshot.step, []).append(snapshot)
    placed: list[Interval] = []
    for step in rank.steps:
        last = placed[-1].end if placed else 0.0
        begin = last if step.began is None else step.began * MICROSECOND
        placed.append(Interval(step.number, begin, begin + _length(step.seconds), False, _known(step)))
        for snapshot in after.pop(step.number, ()):
            placed.append(_snapshot(snapshot, placed[-1].end))
    for snapshot in (snapshot for rest in after.values() for snapshot in rest):  # of steps whose line is lost
        placed.append(_snapshot(snapshot, placed[-1].end if placed else 0.0))
    steps = {one.step: one for one in placed if not one.is_snapshot}
    within = [snapshot for snapshot in rank.heap_snapshots if snapshot.occasion in _WITHIN and snapshot.step in steps]
    issued = _issued(rank) if within else {}
    return (*_apart(placed), *(_inside(snapshot, steps[snapshot.step], issued) for snapshot in within))


def _issued(rank: Rank) -> _Issued:
    issued: dict[int, list[float]] = {}
    for step, moment in zip(column(rank.operations, "step"), column(rank.operations, "issued"), strict=True):
        if moment is not None and math.isfinite(moment):
            issued.setdefault(step, []).append(moment * MICROSECOND)
    return {step: sorted(moments) for step, moments in issued.items()}


def _snapshot(snapshot: HeapSnapshot, begin: float) -> Interval:
    counts = (("counted bytes", snapshot.counted_bytes), ("bytes in storages", snapshot.explained_bytes))
    known = tuple((name, size) for name, size in counts if size is not None)
    return Interval(snapshot.step, begin, begin + _length(snapshot.stopped_seconds), True, known)


def _known(step: Step) -> tuple[tuple[str, int], ...]:
    counts = (("counted bytes", step.counted_bytes), ("peak bytes", step.peak_bytes))
    return tuple((name, size) for name, size in counts if size is not None)


def _inside(snapshot: HeapSnapshot, step: Interval, issued: _Issued) -> Interval:
    """The middle of the longest time in which the step issued nothing: nothing happens during a snapshot."""
    moments = [step.begin, *(at for at in issued.get(snapshot.step, ()) if step.begin < at < step.end), step.end]
    begin, end = max(pairwise(moments), key=lambda gap: gap[1] - gap[0])
    half = min(_length(snapshot.stopped_seconds), end - begin) / 2
    interval = _snapshot(snapshot, 0.0)
    return replace(interval, begin=(begin + end) / 2 - half, end=(begin + end) / 2 + half)


def _apart(placed: Sequence[Interval]) -> list[Interval]:
    """Remove overlaps: starts are known better than ends."""
    apart: list[Interval] = []
    next_begin = math.inf
    for one in reversed(placed):
        begin = min(one.begin, next_begin)
        apart.append(replace(one, begin=begin, end=min(max(one.end, begin), next_begin)))
        next_begin = begin
    return apart[::-1]


def _length(seconds: float) -> float:
    return seconds * MICROSECOND if math.isfinite(seconds) and seconds > 0 else 0.0


_CATEGORY = "comm"


MOST = 100_000
"""Maximum operations of all ranks in one trace. Heuristic: half a million events, which a viewer opens
within seconds.
"""


def comm_events(rank: Rank, most: int = MOST) -> Iterator[_Event]:
    """The last operations of a rank as asynchronous spans, which may overlap: the operation, within it the time in
    flight, and single moments.

    Ids are local to the process (`id2`), since ranks count their operations alike.
    """
    latest = rank.operations[max(len(rank.operations) - most, 0) :]
    timed = [operation for operation in latest if math.isfinite(operation.issued)]
    moments = (moment for operation in timed for moment in _moments(operation))
    last = max((moment for moment in moments if moment is not None and math.isfinite(moment)), default=0.0)
    for operation in timed:
        for phase, name, moment, more in _of_operation(operation, last):
            yield {
                "ph": phase,
                "name": name,
                "cat": _CATEGORY,
                "id2": {"local": hex(operation.id)},
                "pid": rank.number,
                "tid": 0,
                "ts": moment * MICROSECOND,
                **more,
            }


def _moments(operation: CommOperation) -> tuple[float | None, ...]:
    return operation.issued, operation.waited, operation.completed, operation.tensor_died, operation.storage_died


def _of_operation(operation: CommOperation, last: float) -> Iterator[tuple[str, str, float, _Event]]:
    """Phase, name, time and arguments of each event, in order."""
    issued = operation.issued
    gone = max(_finite(operation.storage_died, last), issued)
    done = min(max(_finite(operation.completed, _finite(operation.waited, gone)), issued), gone)
    name = operation_name(operation)
    yield "b", name, issued, {"args": _arguments(operation)}
    yield "b", "in flight", issued, {}
    within = (("waited for", operation.waited), ("Python tensor died", operation.tensor_died))
    known = [(moment, text) for text, moment in within if moment is not None and math.isfinite(moment)]
    marks = sorted((min(max(moment, issued), gone), text) for moment, text in known)
    yield from (("n", text, moment, {}) for moment, text in marks if moment <= done)
    yield "e", "in flight", done, {}
    yield from (("n", text, moment, {}) for moment, text in marks if moment > done)
    yield "e", name, gone, {}


def _finite(moment: float | None, otherwise: float) -> float:
    return moment if moment is not None and math.isfinite(moment) else otherwise


def _arguments(operation: CommOperation) -> _Event:
    arguments: _Event = {
        "bytes": operation.bytes,
        "step": operation.step,
        "group": operation.group,
        "shape": list(operation.shape),
        "dtype": operation.dtype,
        "issued at": operation.issued_at,
        **({} if operation.storage_died is not None else {"storage": "alive at the end"}),
        **({"failed": operation.failed} if operation.failed else {}),
    }
    return cleaned(arguments)


STEPS, SNAPSHOTS = 1, 2
"""Tracks of a rank, as threads of its process."""


def render(run: Run, findings: Findings) -> str:
    """Each rank as a process: its steps and snapshots, communication as overlapping spans, memory as counters; times in
    microseconds since the start of its recording.
    """
    run, findings = cleaned(run), cleaned(findings)
    most = MOST // max(sum(len(rank.operations) > 0 for rank in run.ranks), 1)
    events = [event for rank in run.ranks for event in _rounded([*_of_rank(rank, most)])]
    named = [event for rank in run.ranks for event in _names(rank)]
    trace = {
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
    return json.dumps(trace, allow_nan=False) + "\n"


def _names(rank: Rank) -> Iterator[_Event]:
    """Metadata events, which have no time."""
    pid = rank.number
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"rank {pid}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for tid, name in ((STEPS, "steps"), (SNAPSHOTS, "leakscope snapshots")):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _of_rank(rank: Rank, most: int) -> Iterator[_Event]:
    intervals = steps_and_snapshots(rank)
    for interval in intervals:
        yield from _interval(rank, interval)
    yield from comm_events(rank, most)
    if ended_badly(rank):
        end = max((interval.end for interval in intervals), default=0.0)
        yield {"ph": "i", "s": "p", "name": ended_text(rank), "cat": "end", "pid": rank.number, "tid": STEPS, "ts": end}


def _interval(rank: Rank, interval: Interval) -> Iterator[_Event]:
    name, tid = ("snapshot at step", SNAPSHOTS) if interval.is_snapshot else ("step", STEPS)
    yield {
        "ph": "X",
        "name": f"{name} {interval.step}",
        "cat": "snapshot" if interval.is_snapshot else "step",
        "pid": rank.number,
        "tid": tid,
        "ts": interval.begin,
        "dur": interval.end - interval.begin,
        "args": {name: size for name, size in interval.bytes},
    }
    for name, size in interval.bytes:
        yield {"ph": "C", "name": name, "pid": rank.number, "tid": 0, "ts": interval.end, "args": {"bytes": size}}


def _rounded(events: list[_Event]) -> list[_Event]:
    """Times in microseconds with nanosecond precision."""
    for event in events:
        begin = event["ts"]
        event["ts"] = round(begin, 3)
        if "dur" in event:  # of neighbours on one track the first must not reach into the second
            event["dur"] = round(round(begin + event["dur"], 3) - event["ts"], 3)
    return events
