"""Which numbers stand in the trace events that were put aside?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from leakscope.allocator.load.event_lane import LONG1, EventLane, EventRun, ValueKind, pair_in, text_in

Ints = npt.NDArray[np.int64]
NO_VALUE, EMPTY_LIST, FIRST_SPELLED = -1, -2, -3
"""In a column, where no index into the memo can stand."""
NUMBERS = ("addr", "device_free", "size", "stream", "time_us")
_WRITTEN: Mapping[ValueKind, Callable[[bytes], Any]] = {ValueKind.TEXT: text_in, ValueKind.TUPLE: pair_in}
"""How what is written inside an event is read."""
REMEMBERED = ("action", "frames", "compile_context", "user_metadata", "pool_id")
FIELDS = (*NUMBERS, *REMEMBERED)


@dataclass(frozen=True)
class Decoded:
    """The fields of events that were put aside, in order."""

    columns: dict[str, Ints]
    """One array for each of `FIELDS`, `NO_VALUE` where absent: of `NUMBERS` the numbers themselves, of `REMEMBERED`
    indexes into the memo (see `EventLane.value`), `EMPTY_LIST`, or, for what is written inside its event,
    `FIRST_SPELLED` minus its place in `stacks` or `values`."""
    stacks: list[bytes]
    """The distinct lists of frames, as `EventLane.frames_in` takes them."""
    values: list[Any]
    """The distinct texts and pairs of numbers."""


def decode_runs(lane: EventLane, runs: Sequence[EventRun]) -> Decoded:
    """The fields of the events of `runs`; others than `FIELDS` are not decoded."""
    starts = np.concatenate([np.frombuffer(run.starts, np.int64) for run in runs])
    numbers = np.concatenate([np.frombuffer(run.patterns, np.uint8) for run in runs])
    ends = np.concatenate([np.frombuffer(run.frames_end, np.int64) for run in runs])
    stacks: dict[bytes, int] = {}
    values: dict[Any, int] = {}
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
                places = [stacks.setdefault(lane.data[start:end], len(stacks)) for start, end in spans]
                columns[name][chosen] = FIRST_SPELLED - np.array(places, np.int64)
                cursor = ends[chosen]
                continue
            width = _widths(kind, source, cursor)
            if name in columns and kind in _WRITTEN:
                columns[name][chosen] = FIRST_SPELLED - _written(kind, source, cursor, width, values)
            elif name in columns:
                columns[name][chosen] = _values(kind, source, cursor)
            cursor += width
    return Decoded(columns, list(stacks), list(values))


def _written(kind: ValueKind, source: npt.NDArray[np.uint8], at: Ints, widths: Ints, values: dict[Any, int]) -> Ints:
    """The place in `values` of each text or pair of numbers written at `at`."""
    places = np.zeros(len(at), np.int64)
    for width in np.unique(widths).tolist():
        mine = np.flatnonzero(widths == width)
        begin, rows = at[mine], np.empty((len(mine), width), np.uint8)
        for byte in range(width):
            rows[:, byte] = source[begin + byte]
        if (rows == rows[0]).all():  # as of most files every event's
            places[mine] = values.setdefault(_WRITTEN[kind](rows[0].tobytes()), len(values))
            continue
        distinct, place = np.unique(rows.view(np.dtype((np.void, width))).ravel(), return_inverse=True)
        known = [values.setdefault(_WRITTEN[kind](row.tobytes()), len(values)) for row in distinct]
        places[mine] = np.array(known, np.int64)[place]
    return places


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
