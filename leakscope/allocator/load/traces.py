"""Which events does this trace hold? Dictionaries and put-aside runs become one array per field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from leakscope.allocator.load.event_columns import EMPTY_LIST, FIELDS, FIRST_SPELLED, NO_VALUE, decode_runs
from leakscope.allocator.load.event_lane import EventLane, EventRun
from leakscope.allocator.load.plain_pickle import Plain
from leakscope.allocator.load.stack_table import StackTable
from leakscope.allocator.snapshot import ACTIONS, NO_FRAMES, NOT_RECORDED, OOM, UNKNOWN, Ints, Trace
from leakscope.errors import Unreadable

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
