"""Loads pickles of plain data from anybody, at a bounded cost."""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

from leakscope.errors import Unreadable

BUDGET_PER_BYTE = 32
"""Bytes that the dictionaries and lists of a pickle may take for each of its own; torch's take at most 12.

The values in them take less than as much again: an opcode of one byte never makes more than a slot of a list and of
the memo, and the smallest value that takes memory of its own is a text of 64 bytes written in four.
"""
FREE_BUDGET = 1 << 20
"""And so many bytes beside, for files that are nearly empty."""
_DICT, _LIST = 240, 88
"""Bytes of a dictionary of up to five items, and of a list before it grows, in CPython 3.11."""

_PROTOCOLS = range(2, 6)
"""Protocols whose opcodes are known here; 5 is the newest of Python 3.8 to 3.14."""
_MAX_TUPLES = 1000
"""Maximum distinct tuples, which are memory pools.

The hash of a tuple is predictable, so each insertion into a dictionary could be made to collide with all earlier
tuples.
"""
_GLOBALS = b"ciRo\x81\x92\x93\x82\x83\x84bPQ\x97\x98"
"""Opcodes that import, call, or build anything but plain data (`pickletools.opcodes`)."""
_LENGTH_WIDTHS = {b"\x8c": 1, b"X": 4, b"\x8d": 8, b"\x95": 8}
"""Opcodes followed by a length, of a text or of a frame, and the bytes that give it."""
_FRAME = b"\x95"
_FIXED = b"\x8aKMJGhjqr"
"""Other opcodes followed by an operand."""

_NUMBER = rb"(?:K.|M..|J.{4}|\x8a(?:" + b"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(9)) + rb"|\x09.{8}\x00))"
"""An integer of 64 bits; larger ones could be made to have the same hash by the thousand."""
_SHORT_TEXT = rb"\x8c(?:" + b"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(64)) + rb")"
_PLAIN = re.compile(
    rb"(?:j.{4}|h.|[(eN\x94}\]\x88\x89uas)]|" + _NUMBER + rb"(?![KMJ\x8a\x85-\x87])|" + _SHORT_TEXT + rb"|q.|G.{8})*+",
    re.DOTALL,
)
"""Opcodes of plain data that are cheap and whose length is known."""
_ONE_NUMBER = re.compile(_NUMBER, re.DOTALL)
_TUPLE = re.compile(rb"%b\x85|%b{2}\x86|%b{3}\x87" % (_NUMBER, _NUMBER, _NUMBER), re.DOTALL)


class PlainUnpickler(pickle.Unpickler):
    """Refuses everything that is looked up by name or kept outside of the pickle."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        named = f"{module_name}.{global_name}"[:80]
        raise Unreadable(f"the pickle imports {named!r}, which no memory snapshot does; it was not opened")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        kind = type(pid).__name__
        raise Unreadable(f"the pickle has an external reference ({kind}), which no memory snapshot has")


def load_plain(data: bytes) -> Any:
    """The one value in `data`, a pickle of protocol 2 to 5 made of dict, list, tuple, str, int, float, bool and None.

    The opcodes are checked before the first is executed. The unpickler of the standard library refuses globals, but
    would allocate whatever a length or an index into the memo claims, overflow the stack over the hash of nested
    tuples, and build a dictionary of 200 bytes from each byte.

    Raises:
        Unreadable: The pickle is cut short or damaged, has an opcode that imports, calls or builds other types, holds
            tuples of anything but numbers, or would take many times its own size in memory.

    """
    if data[:1] != b"\x80":
        raise Unreadable("it is not a pickle of protocol 2 or later")
    if data[1:2] and data[1] not in _PROTOCOLS:
        raise Unreadable(f"it is a pickle of protocol {data[1]}, and only 2 to 5 are supported")
    _check_opcodes(data)
    if _DICT * data.count(b"}") + _LIST * data.count(b"]") > BUDGET_PER_BYTE * len(data) + FREE_BUDGET:
        raise Unreadable(
            f"the pickle would need more than {BUDGET_PER_BYTE} bytes of memory for each of its own, "
            "which no memory snapshot does; it was not opened"
        )
    try:
        # Without a buffer that can be peeked into, each opcode outside of a frame is a call of `read`.
        return PlainUnpickler(io.BufferedReader(io.BytesIO(data))).load()
    except UnicodeDecodeError as error:
        raise Unreadable("the pickle is damaged: a string in it is not UTF-8") from error
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError, MemoryError) as error:
        raise Unreadable(f"the pickle is damaged ({error})") from error


def _check_opcodes(data: bytes) -> None:
    """Raise Unreadable unless the opcodes after the protocol, up to STOP, are those of plain data."""
    tuples: set[bytes] = set()
    pos = 2
    while True:
        if (plain := _PLAIN.match(data, pos)) is None:
            raise AssertionError("a pattern that may be empty matches everywhere")
        pos = plain.end()
        opcode = data[pos : pos + 1]
        if opcode == b".":
            return
        if (width := _LENGTH_WIDTHS.get(opcode)) is not None:
            start = pos + 1 + width
            end = start + int.from_bytes(data[pos + 1 : start], "little")
            if end > len(data):
                raise _cut_short(data)
            pos = start if opcode == _FRAME else end
        elif opcode == b"r" and pos + 5 <= len(data):
            # The size of the unpickler's memo follows the index.
            if int.from_bytes(data[pos + 1 : pos + 5], "little") > pos:
                raise Unreadable(f"the pickle is damaged at byte {pos}")
            pos += 5
        elif (pools := _TUPLE.match(data, pos)) is not None:
            tuples.add(pools.group())
            if len(tuples) > _MAX_TUPLES:
                raise Unreadable(f"the pickle holds more than {_MAX_TUPLES} different tuples")
            pos = pools.end()
        elif (number := _ONE_NUMBER.match(data, pos)) is not None:
            pos = number.end()
        else:
            raise _refusal(data, pos, opcode)


def _refusal(data: bytes, pos: int, opcode: bytes) -> Unreadable:
    """Describes what is wrong with the opcode at `pos`."""
    if opcode == b"\x8a" and data[pos + 1 : pos + 2] > b"\x08":
        return Unreadable(
            f"the pickle holds a number of {data[pos + 1]} bytes at byte {pos + 1}, "
            "and no counter has more than 64 bits"
        )
    if opcode in _FIXED:  # also at the very end, if it is empty
        return _cut_short(data)
    if opcode in b"\x85\x86\x87t":
        return Unreadable(f"the pickle holds a tuple with an item that is not a number at byte {pos}")
    if opcode in _GLOBALS:
        return Unreadable(
            f"the pickle imports or calls something at byte {pos}, which no memory snapshot does; it was not opened"
        )
    return Unreadable(f"the pickle is damaged or not a memory snapshot: opcode 0x{opcode.hex()} at byte {pos}")


def _cut_short(data: bytes) -> Unreadable:
    return Unreadable(f"the pickle is cut short after {len(data)} bytes")
