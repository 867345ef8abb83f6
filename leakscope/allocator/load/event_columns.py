"""Which numbers stand in the trace events that were put aside?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from leakscope.allocator.load.event_lane import LONG1, EventLane, EventRun, ValueKind

Ints = npt.NDArray[np.int64]
NO_VALUE, EMPTY_LIST, FIRST_SPELLED = -1, -2, -3
"""In a column, where no index into the memo can stand."""
FIELDS = ("action", "addr", "device_free", "size", "stream", "time_us", "frames")


def decode_runs(lane: EventLane, runs: Sequence[EventRun]) -> tuple[dict[str, Ints], list[bytes]]:
    """One int64 array for each of `FIELDS` over the events of `runs`, in order, `NO_VALUE` where absent.

    `addr`, `device_free`, `size`, `stream` and `time_us` are the numbers themselves; `action` and `frames` are
    indexes into the memo (see `EventLane.value`), or `EMPTY_LIST`. A stack written inside its event is
    `FIRST_SPELLED` minus its place in the second value, the distinct stacks as `EventLane.frames_in` takes them.
    Other fields are not decoded.
    """
    starts = np.concatenate([np.frombuffer(run.starts, np.int64) for run in runs])
    numbers = np.concatenate([np.frombuffer(run.patterns, np.uint8) for run in runs])
    ends = np.concatenate([np.frombuffer(run.frames_end, np.int64) for run in runs])
    spelled: dict[bytes, int] = {}
    # Eight bytes are read at each number, so the end is padded.
    source = np.frombuffer(lane.data + bytes(16), np.uint8)
    columns = {name: np.full(len(starts), NO_VALUE, np.int64) for name in FIELDS}
    for number in np.unique(numbers):
        chosen = np.flatnonzero(numbers == number)
        cursor = starts[chosen] + 3
        for name, kind, key_width in lane.patterns[number].fields:
            cursor += key_width
            if kind == ValueKind.FRAMES:
                spans = zip(cursor.tolist(), ends[chosen].tolist(), strict=True)
                places = [spelled.setdefault(lane.data[start:end], len(spelled)) for start, end in spans]
                columns[name][chosen] = FIRST_SPELLED - np.array(places, np.int64)
                cursor = ends[chosen]
            else:
                if name in columns:
                    columns[name][chosen] = _values(kind, source, cursor)
                cursor += _widths(kind, source, cursor)
    return columns, list(spelled)


def _values(kind: ValueKind, source: npt.NDArray[np.uint8], at: Ints) -> Ints:
    """What is written at `at`, as a column has it."""
    if kind == ValueKind.INT:
        return _integers(source, at)
    if kind == ValueKind.GET:
        return _little_endian(source, at + 1, np.where(source[at] == ord("h"), 1, 4))
    return np.full(len(at), EMPTY_LIST if kind == ValueKind.LIST else NO_VALUE, np.int64)


def _widths(kind: ValueKind, source: npt.NDArray[np.uint8], at: Ints) -> Ints:
    """Bytes taken by what is written at `at`."""
    if kind == ValueKind.INT:
        return _integer_widths(source, at)
    if kind == ValueKind.GET:
        return np.where(source[at] == ord("h"), 2, 5).astype(np.int64)
    if kind == ValueKind.TEXT:
        return source[at + 1].astype(np.int64) + 3
    if kind == ValueKind.TUPLE:
        first = _integer_widths(source, at)
        return first + _integer_widths(source, at + first) + 2
    return np.full(len(at), 2 if kind == ValueKind.LIST else 1, np.int64)


def _integer_widths(source: npt.NDArray[np.uint8], at: Ints) -> Ints:
    """Bytes taken by the integers written at `at`, opcode included."""
    opcode = source[at]
    long_width = source[at + 1].astype(np.int64) + 2
    return np.select([opcode == ord("K"), opcode == ord("M"), opcode == ord("J")], [2, 3, 5], long_width)


def _integers(source: npt.NDArray[np.uint8], at: Ints) -> Ints:
    opcode = source[at]
    is_long = opcode == LONG1
    signed = is_long | (opcode == ord("J"))
    header = np.where(is_long, 2, 1)
    return _little_endian(source, at + header, _integer_widths(source, at) - header, signed)


def _little_endian(
    source: npt.NDArray[np.uint8], at: Ints, widths: Ints, signed: npt.NDArray[np.bool_] | None = None
) -> Ints:
    """The numbers of 0 to 8 bytes that start at `at`."""
    value = np.zeros(len(at), np.uint64)
    for byte in range(int(widths.max(initial=0))):
        value |= np.where(byte < widths, source[at + byte].astype(np.uint64) << np.uint64(8 * byte), np.uint64(0))
    if signed is None:
        return value.view(np.int64)
    spare = (64 - 8 * np.clip(widths, 1, 8)).astype(np.int64)
    extended = (value.view(np.int64) << spare) >> spare
    return np.where(signed, extended, value.view(np.int64))
