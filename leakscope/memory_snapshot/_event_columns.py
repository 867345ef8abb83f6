"""Trace events as columns, without a dictionary for each."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from leakscope.errors import Unreadable

LAZY: Any = object()
"""Stands in the memo for a value inside an event that was put aside; `EventLane.resolve` reads it."""

LONG1 = 0x8A
"""Opcode of a number of a given length in bytes (`pickle.LONG1`)."""
_MAX_PATTERNS = 16
"""Shapes of events learned from one file; chosen, for each is tried on each event."""
_MAX_EVENT_BYTES = 8192
"""Length of an event that a pattern is made of: one with its stack written inside may be long."""


class ValueKind(StrEnum):
    """How a value inside an event is written; the names of the groups of `_ENTRY`."""

    GET = "get"
    """What the memo holds."""
    TUPLE = "tuple"
    INT = "int"
    TEXT = "text"
    FRAMES = "frames"
    """A list of what the memo holds."""
    LIST = "list"
    """An empty list."""
    CONSTANT = "constant"
    """None, True or False."""


_GET = rb"(?:h.|j....)"
_INT = rb"(?:K.|M..|J....|\x8a(?:" + b"|".join(b"\\x%02x" % n + b"." * n for n in range(9)) + rb"))"
_TEXT = rb"\x8c(?:" + b"|".join(b"\\x%02x" % n + b"." * n for n in range(33)) + rb")\x94"
_SHAPES = {
    ValueKind.GET: _GET,
    ValueKind.TUPLE: _INT + _INT + rb"\x86\x94",
    ValueKind.INT: _INT,
    ValueKind.TEXT: _TEXT,
    ValueKind.FRAMES: rb"\]\x94(?:\((?:j....|h.)++e|(?:h.|j....)a)",
    ValueKind.LIST: rb"\]\x94",
    ValueKind.CONSTANT: rb"[N\x88\x89]",
}
_ENTRY = re.compile(
    b"(?P<key>"
    + _GET
    + b")(?:"
    + b"|".join(b"(?P<%s>%s)" % (kind.encode(), shape) for kind, shape in _SHAPES.items())
    + b")",
    re.DOTALL,
)
_REMEMBERED = (ValueKind.TUPLE, ValueKind.TEXT, ValueKind.FRAMES, ValueKind.LIST)
"""Kinds that the pickle puts into its memo."""
_EXPECTED = {
    "action": (ValueKind.GET,),
    **dict.fromkeys(("addr", "device_free", "size", "stream", "time_us"), (ValueKind.INT,)),
    "frames": (ValueKind.GET, ValueKind.FRAMES, ValueKind.LIST),
    "pool_id": (ValueKind.GET, ValueKind.TUPLE),
    **dict.fromkeys(("compile_context", "user_metadata"), (ValueKind.GET, ValueKind.TEXT, ValueKind.CONSTANT)),
    "forward_frames": (ValueKind.LIST, ValueKind.CONSTANT),
}
"""Kinds that the value of a key may be of."""
_UNKNOWN = frozenset(_SHAPES) - {ValueKind.FRAMES}
"""The same of a key that is not read here."""


@dataclass(frozen=True)
class Pattern:
    """One shape of trace event."""

    fields: tuple[tuple[str, ValueKind, int], ...]
    """Name, kind of value, and bytes taken by the key, in the order written."""
    matches: re.Pattern[bytes]
    puts: tuple[int, ...]
    """What each memo entry made by the event is: -1 the event itself, otherwise the position in `fields`."""


@dataclass(frozen=True)
class EventRun:
    """Consecutive trace events put aside; stands in a trace's list for `len(run)` dictionaries."""

    starts: array[int]
    """Byte offset of each event."""
    patterns: array[int]
    """Which pattern each event has."""
    memo_at: array[int]
    """Length of the memo before each event."""
    frames_end: array[int]
    """Byte offset after the list of frames written inside the event, 0 where there is none."""
    end: int
    """Byte offset after the last event."""

    def __len__(self) -> int:
        return len(self.starts)


class EventLane:
    """The patterns learned from one file and the runs they matched."""

    def __init__(self, data: bytes, memo: list[Any]) -> None:
        self.data = data
        self.memo = memo
        self.patterns: list[Pattern] = []
        self.runs: list[EventRun] = []
        self._known: set[bytes] = set()
        self._matchers: list[tuple[int, re.Pattern[bytes], list[Any]]] = []

    def learn(self, start: int, end: int) -> None:
        """Learn the shape of the event dictionary written in `data[start:end]`, if it is flat and new."""
        if (
            len(self.patterns) >= _MAX_PATTERNS
            or self.data[start : start + 3] != b"}\x94("
            or end - start > _MAX_EVENT_BYTES
        ):
            return
        pos, fields, expression, seen = start + 3, [], [rb"\}\x94\("], set()
        while (entry := _ENTRY.match(self.data, pos)) is not None:
            key = self.memo[_index(entry["key"])]
            kind = ValueKind(entry.lastgroup or "")
            if type(key) is not str or key in seen or kind not in _EXPECTED.get(key, _UNKNOWN):
                return
            seen.add(key)
            fields.append((key, kind, len(entry["key"])))
            shape = _SHAPES[kind] + b"()" if kind == ValueKind.FRAMES else _SHAPES[kind]
            expression += [re.escape(entry["key"]), shape]
            pos = entry.end()
        text = b"".join(expression) + b"u"
        if self.data[pos : pos + 1] != b"u" or pos + 1 != end or text in self._known or not {"action", "size"} <= seen:
            return
        self._known.add(text)
        puts = (-1, *(at for at, (_, kind, _) in enumerate(fields) if kind in _REMEMBERED))
        self.patterns.append(Pattern(tuple(fields), re.compile(text, re.DOTALL), puts))
        self._matchers.append((len(self.patterns) - 1, self.patterns[-1].matches, [LAZY] * len(puts)))

    def follow(self, pos: int) -> EventRun | None:
        """Put aside the events that start at `pos` and follow one another; None when there is none."""
        data, memo = self.data, self.memo
        matchers = [(number, shape.match, shape.groups, blanks) for number, shape, blanks in self._matchers]
        starts, patterns, memo_at, frames_end = array("q"), array("B"), array("q"), array("q")
        following = True
        while following:
            following = False
            for number, match, groups, blanks in matchers:
                event = match(data, pos)
                if event is not None:
                    starts.append(pos)
                    patterns.append(number)
                    memo_at.append(len(memo))
                    frames_end.append(event.end(1) if groups else 0)
                    memo += blanks
                    pos = event.end()
                    following = True
                    break
        if not starts:
            return None
        self.runs.append(EventRun(starts, patterns, memo_at, frames_end, pos))
        return self.runs[-1]

    def value(self, index: int) -> Any:
        """What memo entry `index` holds; raises IndexError where the memo is shorter."""
        value = self.memo[index]
        if value is LAZY:
            value = self.memo[index] = self.resolve(index)
        return value

    def resolve(self, index: int) -> Any:
        """The text, tuple or list that memo entry `index` inside a put-aside event holds.

        Raises Unreadable when the entry is an event itself: torch refers to none twice.
        """
        run = self.runs[bisect_right(self.runs, index, key=lambda run: run.memo_at[0]) - 1]
        event = bisect_right(run.memo_at, index) - 1
        pattern = self.patterns[run.patterns[event]]
        wanted = pattern.puts[index - run.memo_at[event]]
        if wanted < 0:
            raise Unreadable("the pickle is damaged: it refers to a trace event a second time")
        entry = _ENTRY.match(self.data, run.starts[event] + 3)
        for _ in range(wanted):
            entry = entry and _ENTRY.match(self.data, entry.end())
        if entry is None:
            raise AssertionError("a pattern matched what its entries do not")
        return self.frames_in(entry["frames"]) if entry.lastgroup == ValueKind.FRAMES else _value(entry)

    def frames_in(self, text: bytes) -> list[Any]:
        """The list of remembered frames that `text`, a value of kind `frames`, spells."""
        indexes = [_index(get) for get in re.findall(_GET, text[3 if text[2:3] == b"(" else 2 :], re.DOTALL)]
        frames = [self.memo[index] for index in indexes if index < len(self.memo)]
        if len(frames) < len(indexes) or any(frame is LAZY for frame in frames):
            raise Unreadable("the pickle is damaged: a stack refers to what is no frame")
        return frames


def _index(get: bytes) -> int:
    return int.from_bytes(get[1:], "little")


def _value(entry: re.Match[bytes]) -> Any:
    """The value of a remembered entry."""
    if entry.lastgroup == ValueKind.TEXT:
        return text_in(entry["text"])
    return [] if entry.lastgroup == ValueKind.LIST else pair_in(entry["tuple"])


def text_in(written: bytes) -> str:
    """The text of a value of kind `text`; raises Unreadable where it is none."""
    try:
        return written[2:-1].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Unreadable("the pickle is damaged: a text in an event is no UTF-8") from error


def pair_in(written: bytes) -> tuple[int, ...]:
    """The two numbers of a value of kind `tuple`."""
    numbers = []
    for number in re.finditer(_INT, written[:-2], re.DOTALL):
        token = number.group()
        skip = 2 if token[0] == LONG1 else 1
        numbers.append(int.from_bytes(token[skip:], "little", signed=token[0] in b"J\x8a"))
    return tuple(numbers)


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
