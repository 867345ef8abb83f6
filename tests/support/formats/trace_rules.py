"""What viewers of Chrome traces refuse or drop (the document "Trace Event Format", JSON object format)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

_NEEDED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    **{key: {"name", "cat", "pid", "ts", "id2"} for key in "bne"},
}
"""Phase to the keys that an event of it must have."""
_METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}


def problems(trace: Mapping[str, Any]) -> Iterator[str]:
    """What would not be shown as it is meant."""
    if not isinstance(trace.get("traceEvents"), list) or trace.get("displayTimeUnit") not in (None, "ms", "ns"):
        yield "no trace of the JSON object format"
    events = trace["traceEvents"]
    for event in events:
        yield from _of_event(event)
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    if timed != sorted(timed):
        yield "events are not sorted by time"
    yield from _overlaps(events)
    yield from _unbalanced(events)


def _of_event(event: Mapping[str, Any]) -> Iterator[str]:
    phase = event["ph"]
    if phase not in _NEEDED or _NEEDED[phase] - event.keys():
        yield f"a {phase} event has {sorted(event)}"
    if not isinstance(event["name"], str) or not isinstance(event["pid"], int):
        yield f"{event} has a name that is no text, or a pid that is no number"
    if phase == "M" and set(event["args"]) != {_METADATA.get(event["name"])}:
        yield f"{event['name']} has {event['args']}"
    if phase != "M" and not (isinstance(event["ts"], float) and event["ts"] >= 0):
        yield f"{event['name']} is at {event['ts']}"
    if event.get("dur", 0) < 0:
        yield f"{event['name']} takes {event['dur']}"
    if phase == "C" and not all(isinstance(value, (int, float)) for value in event["args"].values()):
        yield f"{event['name']} counts {event['args']}"
    if phase == "i" and event["s"] not in "gpt":
        yield f"{event['name']} is of the scope {event['s']}"


def _overlaps(events: list[Mapping[str, Any]]) -> Iterator[str]:
    ends: dict[tuple[int, int], float] = defaultdict(float)
    for event in events:
        if event["ph"] == "X":
            track = event["pid"], event["tid"]
            if event["ts"] < ends[track] - 1e-6:
                yield f"{event['name']} begins before the one before it has ended"
            ends[track] = event["ts"] + event["dur"]


def _unbalanced(events: list[Mapping[str, Any]]) -> Iterator[str]:
    """Spans of one id end in the order in which the last one opened."""
    opened: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] in "bne":
            names = opened[event["pid"], event["cat"], event["id2"]["local"]]
            if event["ph"] == "b":
                names.append(event["name"])
            elif not names:
                yield f"{event['name']} of {event['id2']} is in no span"
            elif event["ph"] == "e" and names.pop() != event["name"]:
                yield f"{event['name']} of {event['id2']} ends another span"
    yield from (f"{names} never end" for names in opened.values() if names)
