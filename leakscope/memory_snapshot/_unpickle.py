"""A pickle reader that takes built-in containers, text and numbers only."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakscope.errors import Unreadable
from leakscope.memory_snapshot._event_columns import (
    EMPTY_LIST,
    FIELDS,
    FIRST_SPELLED,
    LAZY,
    NO_VALUE,
    EventLane,
    EventRun,
    decode_runs,
)
from leakscope.memory_snapshot.model import ACTIONS, NO_FRAMES, NOT_RECORDED, OOM, UNKNOWN, Frame, Ints, Stack, Trace
from leakscope.memory_snapshot.sites import is_ours

BUDGET_PER_BYTE = 32
"""Bytes of Python objects that may be built for each byte of input; files written by torch need at most 15."""

FREE_BUDGET = 1 << 20
"""Bytes of Python objects that may be built whatever the length of the input."""

_DICT, _LIST, _TEXT, _NUMBER, _RUN = 264, 96, 72, 40, 480
"""Bytes that each is taken to need, a little above `sys.getsizeof` of CPython 3.11, for the budget."""
_MAX_DEPTH = 100
"""Containers in containers: chosen, far above what a snapshot needs."""
_PROTOCOLS = range(2, 6)
"""Protocols whose opcodes are known here; 5 is the newest of Python 3.8 to 3.14."""
_MAX_NUMBER_BYTES = 9
"""Of an unsigned 64-bit counter, with its sign."""
_PROTO, _STOP, _BINGET, _LONG_BINGET, _MEMOIZE = 0x80, 0x2E, 0x68, 0x6A, 0x94
_GLOBALS = b"ciRo\x81\x92\x93\x82\x83\x84bPQ\x97\x98"
"""Opcodes that import, call, or build what is no plain data (`pickletools.opcodes`)."""


@dataclass(frozen=True)
class Plain:
    """What a pickle holds, and the lane in which runs of similar trace events were put aside undecoded."""

    root: Any
    lane: EventLane


def load_plain(data: bytes) -> Plain:
    """The one value in `data`, a pickle of protocol 2 to 5 made of dict, list, tuple, str, int, float, bool and None.

    Lists may hold `EventRun` objects, each standing for as many dictionaries; decode them through `.lane`.
    Raises Unreadable for anything else: cut short, damaged, an opcode that imports, calls or builds other types, or a
    pickle that would need more than `BUDGET_PER_BYTE` bytes of memory for each of its own.
    """
    machine = _Machine(data)
    try:
        root = machine.run()
    except (IndexError, struct.error) as error:
        if machine.pos >= len(data):
            raise Unreadable(f"the pickle is cut short after {len(data)} bytes") from error
        raise Unreadable(f"the pickle is damaged at byte {machine.pos}") from error
    except (UnicodeDecodeError, TypeError, AttributeError) as error:
        raise Unreadable(f"the pickle is damaged at byte {machine.pos}") from error
    return Plain(root, machine.lane)


class _Machine:
    """The stack, marks and memo of one pickle being read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.last_dict = 0
        self.memo: list[Any] = []
        self.spent = 0
        self.allowed = BUDGET_PER_BYTE * len(data) + FREE_BUDGET
        self.lane = EventLane(data, self.memo)

    def run(self) -> Any:
        data = self.data
        if data[0] != _PROTO:
            raise Unreadable("it is not a pickle of protocol 2 or later")
        handlers, stop, get1, get4, remember = _HANDLERS, _STOP, _BINGET, _LONG_BINGET, _MEMOIZE
        push, memo, stack, from_bytes = self.stack.append, self.memo, self.stack, int.from_bytes
        while True:
            at = self.pos
            opcode = data[at]
            if opcode == get1 and (value := memo[data[at + 1]]) is not LAZY:
                push(value)
                self.pos = at + 2
                continue
            if opcode == get4 and (value := memo[from_bytes(data[at + 1 : at + 5], "little")]) is not LAZY:
                push(value)
                self.pos = at + 5
                continue
            self.pos = at + 1
            if opcode == remember:
                memo.append(stack[-1])
                continue
            handler = handlers[opcode]
            if handler is None:
                if opcode == stop:
                    break
                self.refuse(opcode, at)
            else:
                handler(self)
        if len(self.stack) != 1:
            raise Unreadable(f"the pickle is damaged: it stops at byte {self.pos} with {len(self.stack)} values")
        return self.stack[0]

    def refuse(self, opcode: int, at: int) -> None:
        if opcode in _GLOBALS:
            raise Unreadable(
                f"the pickle imports or calls something at byte {at}, as no memory snapshot does, so it was not opened"
            )
        raise Unreadable(f"the pickle is damaged or no memory snapshot: opcode 0x{opcode:02x} at byte {at}")

    def spend(self, cost: int) -> None:
        self.spent += cost
        if self.spent > self.allowed:
            raise Unreadable(
                f"the pickle would need more than {BUDGET_PER_BYTE} bytes of memory for each of its own, "
                "which no memory snapshot does, so it was not opened"
            )

    # -- numbers and constants

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def protocol(self) -> None:
        if self.data[self.pos] not in _PROTOCOLS:
            raise Unreadable(f"it is a pickle of protocol {self.data[self.pos]}, and only 2 to 5 are known")
        self.pos += 1

    def frame(self) -> None:
        self.pos += 8

    def int1(self) -> None:
        self.stack.append(self.data[self.pos])
        self.pos += 1

    def int2(self) -> None:
        self.stack.append(self.data[self.pos] | self.data[self.pos + 1] << 8)
        self.pos += 2
        self.spend(_NUMBER)

    def int4(self) -> None:
        self.stack.append(struct.unpack_from("<i", self.data, self.pos)[0])
        self.pos += 4
        self.spend(_NUMBER)

    def long1(self) -> None:
        length = self.data[self.pos]
        if length > _MAX_NUMBER_BYTES:
            raise Unreadable(
                f"the pickle holds a number of {length} bytes at byte {self.pos}, "
                f"and no counter needs more than {_MAX_NUMBER_BYTES}"
            )
        end = self.pos + 1 + length
        self.stack.append(int.from_bytes(self.data[self.pos + 1 : end], "little", signed=True))
        self.pos = end
        self.spend(_NUMBER)

    def float8(self) -> None:
        self.stack.append(struct.unpack_from(">d", self.data, self.pos)[0])
        self.pos += 8
        self.spend(_NUMBER)

    # -- text

    def text(self, width: int) -> None:
        start = self.pos + width
        length = int.from_bytes(self.data[self.pos : start], "little")
        if start + length > len(self.data):
            self.pos = len(self.data)
            raise IndexError
        # A character above U+FFFF makes Python store every character in four bytes.
        self.spend(_TEXT + 4 * length)
        self.stack.append(self.data[start : start + length].decode("utf-8", "surrogatepass"))
        self.pos = start + length

    # -- containers

    def mark(self) -> None:
        if len(self.marks) >= _MAX_DEPTH:
            raise Unreadable(f"the pickle is nested more than {_MAX_DEPTH} deep, which no memory snapshot is")
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def empty_dict(self) -> None:
        run = self.lane.follow(self.pos - 1)
        if run is not None:
            self.spend(_RUN)
            self.stack.append(run)
            self.pos = run.end
            return
        self.spend(_DICT)
        self.last_dict = self.pos - 1
        self.stack.append({})

    def empty_list(self) -> None:
        self.spend(_LIST)
        self.stack.append([])

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        values = tuple(self.stack[-count:])
        self.spend(_LIST)
        self.stack[-count:] = [values]

    def tuple_since_mark(self) -> None:
        values = tuple(self.since_mark())
        self.spend(_LIST)
        self.stack.append(values)

    def extend_last(self, values: list[Any]) -> None:
        last = self.stack[-1]
        if type(last) is not list:
            raise TypeError("only a list grows")
        last.extend(values)
        self.spend(8 * len(values))

    def set_item(self) -> None:
        value = self.stack.pop()
        self.fill_last([self.stack.pop(), value])

    def fill_last(self, values: list[Any]) -> None:
        last = self.stack[-1]
        if type(last) is not dict or len(values) % 2:
            raise TypeError("only a dictionary takes pairs")
        for key in values[::2]:
            if type(key) is not str:
                raise Unreadable(
                    f"the pickle holds a dictionary key that is not text at byte {self.pos}, as no memory snapshot does"
                )
        last.update(zip(values[::2], values[1::2], strict=True))
        self.spend(20 * len(values))
        if "action" in last:
            self.lane.learn(self.last_dict, self.pos)

    # -- memo

    def remember(self) -> None:
        self.memo.append(self.stack[-1])

    def remember_at(self, index: int) -> None:
        memo = self.memo
        if index == len(memo):
            memo.append(self.stack[-1])
        elif index < self.pos:
            memo.extend([None] * (index + 1 - len(memo)))
            memo[index] = self.stack[-1]
        else:
            raise IndexError

    def put1(self) -> None:
        index = self.data[self.pos]
        self.pos += 1
        self.remember_at(index)

    def put4(self) -> None:
        (index,) = struct.unpack_from("<I", self.data, self.pos)
        self.pos += 4
        self.remember_at(index)

    def recall(self, index: int) -> None:
        self.stack.append(self.lane.value(index))

    def get1(self) -> None:
        index = self.data[self.pos]
        self.pos += 1
        self.recall(index)

    def get4(self) -> None:
        (index,) = struct.unpack_from("<I", self.data, self.pos)
        self.pos += 4
        self.recall(index)


_OPCODES: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.protocol, b"\x95": _Machine.frame,
    b"K": _Machine.int1, b"M": _Machine.int2, b"J": _Machine.int4, b"\x8a": _Machine.long1, b"G": _Machine.float8,
    b"N": lambda m: m.push(None), b"\x88": lambda m: m.push(True), b"\x89": lambda m: m.push(False),
    b"\x8c": lambda m: m.text(1), b"X": lambda m: m.text(4), b"\x8d": lambda m: m.text(8),
    b"(": _Machine.mark, b"}": _Machine.empty_dict, b"]": _Machine.empty_list, b")": lambda m: m.push(()),
    b"\x85": lambda m: m.tuple_of(1), b"\x86": lambda m: m.tuple_of(2), b"\x87": lambda m: m.tuple_of(3),
    b"t": _Machine.tuple_since_mark,
    b"a": lambda m: m.extend_last([m.stack.pop()]), b"e": lambda m: m.extend_last(m.since_mark()),
    b"s": _Machine.set_item, b"u": lambda m: m.fill_last(m.since_mark()),
    b"\x94": _Machine.remember, b"q": _Machine.put1, b"r": _Machine.put4, b"h": _Machine.get1, b"j": _Machine.get4,
}  # fmt: skip
_HANDLERS: list[Callable[[_Machine], None] | None] = [_OPCODES.get(bytes([code])) for code in range(256)]


_TRACEBACK_LINE = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9}), in ([^\n]{1,512})')


class StackTable:
    """Numbers stacks and frames by the identity of the objects the pickle shares.

    leakscope's own frames, which stand on the stacks of a run that it started and of a step that it watched, are left
    out.
    """

    def __init__(self) -> None:
        self._frames: dict[int, Frame] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._same: dict[Stack, int] = {(): NO_FRAMES}
        self._stacks: list[Stack] = [(), ()]

    def number(self, frames: Any, forward: Any = None) -> int:
        """The number of a list of frame dictionaries; of None `NOT_RECORDED`, of an empty list `NO_FRAMES`.

        `forward` is torch's text of where the forward of this autograd node ran; its frames follow the others.
        """
        if frames is None:
            return NOT_RECORDED
        if type(frames) is not list:
            raise Unreadable(f"a stack is of type {type(frames).__name__}, not a list of frames")
        if not frames and not forward:
            return NO_FRAMES
        key = (id(frames), id(forward) if forward else 0)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._same_frames(tuple(map(id, frames)), frames, forward)
        return number

    def number_of_new(self, frames: list[Any]) -> int:
        """The number of a list that nothing else shares, so that its identity says nothing."""
        return self._same_frames(tuple(map(id, frames)), frames, None)

    def _same_frames(self, identities: tuple[int, ...], frames: list[Any], forward: Any) -> int:
        """Torch 2.11 writes a new list for nearly every event but shares the frames in them."""
        number = None if forward else self._by_frames.get(identities)
        if number is None:
            whole = tuple(self._frame(frame) for frame in frames) + _forward_frames(forward)
            stack = tuple(frame for frame in whole if not is_ours(frame.filename))
            number = self._same.setdefault(stack, len(self._stacks))
            if number == len(self._stacks):
                self._stacks.append(stack)
            if not forward:
                self._by_frames[identities] = number
        return number

    def stacks(self) -> tuple[Stack, ...]:
        """All stacks, by their numbers."""
        return tuple(self._stacks)

    def _frame(self, frame: Any) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            if type(frame) is not dict:
                raise Unreadable(f"a stack holds something of type {type(frame).__name__} where a frame should stand")
            name, filename, line = frame.get("name", ""), frame.get("filename", ""), frame.get("line", 0)
            if not (type(name) is str and type(filename) is str and type(line) is int):
                raise Unreadable("a frame's name or file is not text, or its line is no number")
            known = self._frames[id(frame)] = Frame(name, filename, line)
        return known


def _forward_frames(forward: Any) -> Stack:
    """Torch 2.15 gives the forward's traceback as pieces of text, outermost first."""
    if type(forward) is not list:
        return ()
    text = "".join(piece for piece in forward if type(piece) is str)
    lines = [
        Frame(f"backward of {name}", filename, int(line)) for filename, line, name in _TRACEBACK_LINE.findall(text)
    ]
    return tuple(reversed(lines))


LARGEST_SIZE = 1 << 48
"""No block is larger than 256 TiB; a damaged number would overflow every sum after it."""

MAX_DEVICES = 256
"""Devices of one process at the most, chosen: more is a damaged file."""
_LARGEST_NUMBER = 1 << 62
_REQUIRED: Any = object()
_NO_CONTEXT = "N/A"
"""What torch writes as `compile_context` outside of compiled regions."""
_LONGEST_TEXT = 200
"""Characters kept of a region's name or of metadata, chosen."""


def whole_number(
    holder: dict[str, Any], key: str, owner: str, default: Any = _REQUIRED, least: int = 0, most: int = LARGEST_SIZE
) -> int:
    """The integer at `key`, or `default`; raises Unreadable when it is missing or not between `least` and `most`."""
    value = holder.get(key, default)
    if type(value) is int and (least <= value <= most or value is default):
        return value
    article = "an" if owner[0] in "aeiou" else "a"
    raise Unreadable(f"{article} {owner} has {'no' if value is _REQUIRED else 'a strange'} {key}")


def wrapped(value: int) -> int:
    """The 64 bits of an address as numpy's signed integers hold them."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def pool_in(value: Any) -> tuple[int, int] | None:
    """The pool that `value` names; None for what is no pair of numbers."""
    if type(value) in (list, tuple) and [type(part) for part in value] == [int, int]:
        return (value[0], value[1])
    return None


def read_trace(device: int, items: Any, plain: Plain, stacks: StackTable) -> Trace:
    """The trace of one device from the list in the file; raises Unreadable where an entry is no event."""
    if type(items) is not list:
        raise Unreadable(f"the trace of device {device} is of type {type(items).__name__}, not a list")
    widths = np.fromiter((len(item) if type(item) is EventRun else 1 for item in items), np.int64, len(items))
    aside = np.fromiter((type(item) is EventRun for item in items), np.bool_, len(items))
    offsets = np.cumsum(widths) - widths
    columns = {name: np.full(int(widths.sum()), UNKNOWN, np.int64) for name in FIELDS}
    names = _Names()
    runs = [item for item in items if type(item) is EventRun]
    if runs:
        places = np.repeat(offsets[aside] - (np.cumsum(widths[aside]) - widths[aside]), widths[aside])
        places += np.arange(len(places))
        for name, values in _decoded(runs, plain.lane, names, stacks).items():
            columns[name][places] = values
    for item, offset in zip(items, offsets.tolist(), strict=True):
        if type(item) is not EventRun:
            _put_event(columns, offset, item, names, stacks)
    action, size = columns["action"], columns["size"]
    if (size[action < OOM] < 0).any() or (size >= LARGEST_SIZE).any():
        raise Unreadable(f"the trace of device {device} holds an event whose size is no count of bytes")
    for name in ("device_free", "time_us"):
        if ((columns[name] < UNKNOWN) | (columns[name] > _LARGEST_NUMBER)).any():
            raise Unreadable(f"the trace of device {device} holds an event with a strange {name}")
    if len(names.actions) > np.iinfo(np.uint8).max:
        raise Unreadable(
            f"the trace of device {device} holds {len(names.actions)} kinds of events, and torch knows {len(ACTIONS)}"
        )
    return Trace(
        device=device,
        action=action.astype(np.uint8),
        action_names=tuple(names.actions),
        address=columns["addr"],
        size=size,
        device_free=columns["device_free"],
        time_us=columns["time_us"],
        stream=columns["stream"],
        stack=columns["frames"].astype(np.int32),
        compiled=np.maximum(columns["compile_context"], 0).astype(np.int32),
        metadata=np.maximum(columns["user_metadata"], 0).astype(np.int32),
        pool=columns["pool_id"].astype(np.int32),
        texts=tuple(names.texts),
        pools=tuple(names.pools),
    )


class _Names:
    """What the columns of a trace are indexes into, each met so far with its index."""

    def __init__(self) -> None:
        self.actions: dict[str, int] = {name: code for code, name in enumerate(ACTIONS)}
        self.texts: dict[str, int] = {"": 0}
        self.pools: dict[tuple[int, int], int] = {}

    def action(self, value: Any) -> int:
        """Raises Unreadable where it is no text."""
        if type(value) is not str:
            raise Unreadable("an event's action is not text")
        return self.actions.setdefault(value, len(self.actions))

    def text(self, value: Any) -> int:
        """0 for what is none, and for torch's words for none."""
        if type(value) is not str or value == _NO_CONTEXT:
            return 0
        return self.texts.setdefault(value[:_LONGEST_TEXT], len(self.texts))

    def pool(self, value: Any) -> int:
        """`UNKNOWN` for what is no pair of numbers."""
        pool = pool_in(value)
        return UNKNOWN if pool is None else self.pools.setdefault(pool, len(self.pools))


def _decoded(runs: list[EventRun], lane: EventLane, names: _Names, stacks: StackTable) -> dict[str, Ints]:
    """The columns of the events of `runs`, in order."""
    decoded = decode_runs(lane, runs)
    lists = [lane.frames_in(text) for text in decoded.stacks]

    def stack(index: int) -> int:
        if index <= FIRST_SPELLED:
            return stacks.number_of_new(lists[FIRST_SPELLED - index])
        if index == NO_VALUE:
            return NOT_RECORDED
        return NO_FRAMES if index == EMPTY_LIST else stacks.number(_memo_value(lane, index))

    def value(index: int) -> Any:
        if index <= FIRST_SPELLED:
            return decoded.values[FIRST_SPELLED - index]
        return _memo_value(lane, index) if index >= 0 else None

    meanings: dict[str, Callable[[int], int]] = {
        "frames": stack,
        "action": lambda index: names.action(value(index)),
        "compile_context": lambda index: names.text(value(index)),
        "user_metadata": lambda index: names.text(value(index)),
        "pool_id": lambda index: names.pool(value(index)),
    }
    mapped = {name: _mapped(decoded.columns[name], meaning) for name, meaning in meanings.items()}
    return decoded.columns | mapped


def _mapped(indexes: Ints, meaning: Callable[[int], int]) -> Ints:
    distinct, place = np.unique(indexes, return_inverse=True)
    return np.array([meaning(index) for index in distinct.tolist()], np.int64)[place]


def _memo_value(lane: EventLane, index: int) -> Any:
    try:
        return lane.value(index)
    except IndexError as error:
        raise Unreadable("the pickle is damaged: an event refers to what was never written") from error


def _put_event(columns: dict[str, Ints], at: int, event: Any, names: _Names, stacks: StackTable) -> None:
    if type(event) is not dict:
        raise Unreadable(f"a trace holds something of type {type(event).__name__} where an event should stand")
    columns["action"][at] = names.action(event.get("action"))
    columns["compile_context"][at] = names.text(event.get("compile_context"))
    columns["user_metadata"][at] = names.text(event.get("user_metadata"))
    columns["pool_id"][at] = names.pool(event.get("pool_id"))
    columns["addr"][at] = wrapped(whole_number(event, "addr", "event", UNKNOWN, -(1 << 63), 1 << 64))
    if "stream" in event:
        columns["stream"][at] = wrapped(whole_number(event, "stream", "event", UNKNOWN, -(1 << 63), 1 << 64))
    for name in ("size", "device_free", "time_us"):
        columns[name][at] = whole_number(event, name, "event", UNKNOWN, most=_LARGEST_NUMBER)
    columns["frames"][at] = stacks.number(event.get("frames"), event.get("forward_frames"))
