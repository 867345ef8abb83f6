"""What a rank sent, received or reduced last: one packed record in a small file, right even after SIGKILL."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from leakscope.files import parse_json
from leakscope.record.rows.comm import FinalOperation
from leakscope.record.rows.row import from_json

NAME = "wire_last.bin"
SIZE = 2048
"""Bytes of the file, chosen: half a page."""
_HEAD = struct.Struct("<8s4qdI")
"""State, id, nth, step, microbatch, seconds from the start to its issue, length of the JSON of the rest, which
follows.
"""
_NEWEST = b"!"
ISSUED, WAITING, WAITED, FAILED = b"issued" + _NEWEST, b"waits ", b"waited", b"failed"
"""What a rank is doing with its last operation, all of one length but for the mark after the first.

The mark stands until the file tells of another operation: the rank has issued none after this one.
"""


def packer(text: bytes) -> Callable[..., None]:
    """What packs operations of which `text` tells the rest: (buffer, 0, *head without the length, length, text).

    It writes no byte more than it has to; text that is too long is left out.
    """
    return struct.Struct(f"{_HEAD.format}{min(len(text), SIZE - _HEAD.size)}s").pack_into


def unpack(data: bytes) -> FinalOperation | None:
    """The operation that `wire_last.bin` tells of; None before the first.

    Raises ValueError or Unreadable for what is no such file, or was being written at the very moment when the rank was
    killed.
    """
    if len(data) != SIZE:
        raise ValueError(f"{NAME} has {len(data)} bytes, not {SIZE}")
    state, number, nth, step, microbatch, issued, length = _HEAD.unpack_from(data)
    if number == 0 or length > SIZE - _HEAD.size:
        return None
    rest = parse_json(data[_HEAD.size : _HEAD.size + length])
    if not isinstance(rest, dict):
        raise ValueError(f"{NAME} is damaged")
    word = state.rstrip(b"\0 ")
    head = {
        "state": word.removesuffix(_NEWEST).rstrip().decode(),
        "newest": word.endswith(_NEWEST),
        "id": number,
        "nth": nth,
        "step": step,
        "microbatch": microbatch,
        "issued": round(issued, 6) if math.isfinite(issued) else issued,
    }
    return from_json(FinalOperation, {**rest, **head})
