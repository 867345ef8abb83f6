"""What does a pickle hold when it may hold only built-in containers, text and numbers?

The bytes are read by a small machine of our own, not by `pickle`: nothing can be imported or called, dictionary keys
are text only (Python's own hashing of crafted integers and nested tuples can be made to run for hours or overflow the
C stack), and memory is budgeted against the length of the input (CPython's unpickler allocates what a length or a
memo index claims before it looks, gh-115952).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leakscope.allocator.load.event_lane import LAZY, EventLane
from leakscope.errors import Unreadable

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
