"""Numbers the stacks of a memory snapshot and turns the events of a trace into arrays, one per field."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from leakscope.errors import Unreadable
from leakscope.memory_snapshot.model import ACTIONS, NO_FRAMES, NOT_RECORDED, OOM, UNKNOWN, Frame, Ints, Stack, Trace
from leakscope.memory_snapshot.sites import is_ours

_TRACEBACK_LINE = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9}), in ([^\n]{1,512})')
_MAX_FRAMES = 20_000_000
"""Maximum frames of all distinct stacks together.

Real files have some hundred thousand; a hostile one can combine many forwards with many stacks.
"""


class StackTable:
    """Numbers stacks and frames by the identity of the objects that the pickle shares.

    Frames of leakscope, which are on the stacks of a run that it started and of a step that it watched, are left out.
    """

    def __init__(self) -> None:
        self._frames: dict[int, Frame] = {}
        self._forward: dict[int, Stack] = {}
        self._numbers: dict[int | tuple[int, int], int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._same: dict[Stack, int] = {(): NO_FRAMES}
        self._stacks: list[Stack] = [(), ()]
        self._frame_count = 0

    def number(self, frames: Any, forward: Any = None) -> int:
        """The number of a list of frame dictionaries; `NOT_RECORDED` for None, `NO_FRAMES` for an empty list.

        `forward` is torch's text of the forward traceback of this autograd node; its frames follow the others.
        """
        if frames is None:
            return NOT_RECORDED
        if type(frames) is not list:
            raise Unreadable(f"a stack is of type {type(frames).__name__}, not a list of frames")
        if not frames and not forward:
            return NO_FRAMES
        key = (id(frames), id(forward)) if forward else id(frames)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._same_frames(frames, forward)
        return number

    def _same_frames(self, frames: list[Any], forward: Any) -> int:
        """Torch 2.11 writes a new list for nearly every event, with shared frames."""
        identities = tuple(map(id, frames))
        number = None if forward else self._by_frames.get(identities)
        if number is None:
            whole = tuple(self._frame(frame) for frame in frames) + self._forward_frames(forward)
            stack = tuple(frame for frame in whole if not is_ours(frame.filename))
            number = self._same.setdefault(stack, len(self._stacks))
            if number == len(self._stacks):
                self._stacks.append(stack)
                self._frame_count += len(stack)
                if self._frame_count > _MAX_FRAMES:
                    raise Unreadable(f"its stacks have more than {_MAX_FRAMES} frames")
            if not forward:
                self._by_frames[identities] = number
        return number

    def _forward_frames(self, forward: Any) -> Stack:
        """Torch 2.15 writes the forward's traceback as pieces of text, outermost first."""
        if type(forward) is not list:
            return ()
        known = self._forward.get(id(forward))
        if known is None:
            text = "".join(piece for piece in forward if type(piece) is str)
            lines = [
                Frame(f"backward of {name}", filename, int(line))
                for filename, line, name in _TRACEBACK_LINE.findall(text)
            ]
            known = self._forward[id(forward)] = tuple(reversed(lines))
        return known

    def stacks(self) -> tuple[Stack, ...]:
        """All stacks, by their numbers."""
        return tuple(self._stacks)

    def _frame(self, frame: Any) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            if type(frame) is not dict:
                raise Unreadable(f"a stack entry is of type {type(frame).__name__}, not a frame")
            name, filename, line = frame.get("name", ""), frame.get("filename", ""), frame.get("line", 0)
            if not (type(name) is str and type(filename) is str and type(line) is int):
                raise Unreadable("a frame's name or file is not text, or its line is not a number")
            known = self._frames[id(frame)] = Frame(name, filename, line)
        return known


LARGEST_SIZE = 1 << 48
"""Maximum size of a block, 256 TiB; a damaged number would overflow every sum after it."""

MAX_DEVICES = 256
"""Maximum devices of one process. Heuristic: more indicates a damaged file."""
_LARGEST_NUMBER = 1 << 62
_REQUIRED: Any = object()
_NO_CONTEXT = "N/A"
"""What torch writes as `compile_context` outside of compiled regions."""
_LONGEST_TEXT = 200
"""Maximum characters kept of a region's name or of metadata. Heuristic."""


def whole_number(
    holder: dict[str, Any], key: str, owner: str, default: Any = _REQUIRED, least: int = 0, most: int = LARGEST_SIZE
) -> int:
    """The integer at `key`, or `default`; raises Unreadable when it is missing or not between `least` and `most`."""
    value = holder.get(key, default)
    if type(value) is int and (least <= value <= most or value is default):
        return value
    article = "an" if owner[0] in "aeiou" else "a"
    raise Unreadable(f"{article} {owner} has {'no' if value is _REQUIRED else 'an invalid'} {key}")


def wrapped(value: int) -> int:
    """The 64 bits of an address as numpy's signed integers hold them."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def pool_in(value: Any) -> tuple[int, int] | None:
    """The pool in `value`; None if it is not a pair of numbers."""
    if type(value) in (list, tuple) and [type(part) for part in value] == [int, int]:
        return (value[0], value[1])
    return None


def read_trace(device: int, items: Any, stacks: StackTable) -> Trace:
    """Read the trace of one device from its list; raises Unreadable if an entry is not an event."""
    if type(items) is not list:
        raise Unreadable(f"the trace of device {device} is of type {type(items).__name__}, not a list")
    for kind in set(map(type, items)) - {dict}:
        raise Unreadable(f"a trace entry is of type {kind.__name__}, not an event")
    names = _Names()
    action = _column(names.action(item.get("action")) for item in items)
    size = _numbers(items, "size")
    if (size[action < OOM] < 0).any() or (size >= LARGEST_SIZE).any():
        raise Unreadable(f"the trace of device {device} has an event with an invalid size")
    if len(names.actions) > np.iinfo(np.uint8).max:
        raise Unreadable(
            f"the trace of device {device} has {len(names.actions)} kinds of events; torch has {len(ACTIONS)}"
        )
    return Trace(
        device=device,
        action=action.astype(np.uint8),
        action_names=tuple(names.actions),
        address=_words(items, "addr"),
        size=size,
        device_free=_numbers(items, "device_free"),
        time_us=_numbers(items, "time_us"),
        stream=_words(items, "stream"),
        stack=_column(stacks.number(item.get("frames"), item.get("forward_frames")) for item in items).astype(np.int32),
        compiled=_column(names.text(item.get("compile_context")) for item in items).astype(np.int32),
        metadata=_column(names.text(item.get("user_metadata")) for item in items).astype(np.int32),
        pool=_column(names.pool(item.get("pool_id")) for item in items).astype(np.int32),
        texts=tuple(names.texts),
        pools=tuple(names.pools),
    )


class _Names:
    """Distinct values that the columns of a trace index into."""

    def __init__(self) -> None:
        self.actions: dict[str, int] = {name: code for code, name in enumerate(ACTIONS)}
        self.texts: dict[str, int] = {"": 0}
        self.pools: dict[tuple[int, int], int] = {}

    def action(self, value: Any) -> int:
        """Raises Unreadable if it is not a text."""
        if type(value) is not str:
            raise Unreadable("an event's action is not text")
        return self.actions.setdefault(value, len(self.actions))

    def text(self, value: Any) -> int:
        """0 for no text, and for torch's texts for none."""
        if type(value) is not str or value == _NO_CONTEXT:
            return 0
        return self.texts.setdefault(value[:_LONGEST_TEXT], len(self.texts))

    def pool(self, value: Any) -> int:
        """`UNKNOWN` if it is not a pair of numbers."""
        pool = pool_in(value)
        return UNKNOWN if pool is None else self.pools.setdefault(pool, len(self.pools))


def _column(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _numbers(events: list[dict[str, Any]], name: str, least: int = UNKNOWN, most: int = _LARGEST_NUMBER) -> Ints:
    """The values at `name`, `UNKNOWN` where missing; raises Unreadable for numbers outside the range."""
    values = [event.get(name, UNKNOWN) for event in events]
    if set(map(type, values)) - {int} or min(values, default=least) < least or max(values, default=most) > most:
        raise Unreadable(f"an event has an invalid {name}")
    return _column(values if most <= _LARGEST_NUMBER else map(wrapped, values))


def _words(events: list[dict[str, Any]], name: str) -> Ints:
    """64-bit numbers, signed or not, as returned by `wrapped`."""
    return _numbers(events, name, -(1 << 63), 1 << 64)
