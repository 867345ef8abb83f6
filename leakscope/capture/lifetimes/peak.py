"""At which moment of a step was most alive, and what was there then?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from itertools import chain
from typing import Any

import numpy as np

from leakscope.capture.heap.look import Live
from leakscope.capture.heap.native.storages import storage_object
from leakscope.capture.heap.python.code_referents import held_by_frame
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.lifetimes.table import Table
from leakscope.capture.source.unread import unread_globals, unread_variables
from leakscope.capture.source.user_frames import arguments_of_running_calls, running_frames
from leakscope.capture.source.user_source import is_users
from leakscope.capture.torch_private import StorageBase, address_of_storage
from leakscope.graph.model import ObjectKind

_INTERFACE: Any = np.ndarray.__dict__["__array_interface__"].__get__


@dataclass
class Peak:
    """The moment of a step at which most was alive."""

    operation: int
    """Number in its step of the operation after which it was reached, -1 where the step makes nothing."""
    sign: int
    """What `Table.sign` said then."""
    start: int
    """Bytes alive when the second step began."""
    live: int = 0
    """Bytes alive then, in the second step."""
    unseen: int = 0
    """Bytes then of storages that nobody saw being made or used."""
    arguments: list[tuple[str, str]] = field(default_factory=list)
    """(function, argument) of the user's calls that ran then."""
    unread: list[tuple[int, str]] = field(default_factory=list)
    """(index in the heap graph of a running function or a script's namespace, variable) where none of the code that
    still runs reads it."""


def begin_peak(peak: Peak, table: Table) -> None:
    """Note what is alive now, at the peak of the second step."""
    peak.live = table.live
    for record in table.alive.values():
        record.at_peak = record.bytes
    peak.arguments = arguments_of_running_calls()


def match_live(live: Live, peak: Peak, table: Table) -> None:
    """Find the storages of the look at the peak among the records; those without one are unseen. Find the variables
    that are not read again.
    """
    graph = live.look.heap
    peak.unread = list(_unread(live))
    for index in graph.storages.tolist():
        record = table.alive.get(int(address_of_storage(storage_object(live.objects[index]))))
        if record is None and table.counts(graph.device.get(index, "cpu")):
            peak.unseen += int(graph.bytes[index])
        elif record is not None:
            record.storage = index
    _note_shared(live, table)


def _note_shared(live: Live, table: Table) -> None:
    """Note which of the storages that nobody has used yet others may use unseen, and whose memory outlives them: that
    of an array (torch.from_numpy), and what other processes share.
    """
    borrowed = {}
    for record in table.alive.values():
        if record.storage >= 0 and record.last < 0:
            storage = storage_object(live.objects[record.storage])
            on_host = StorageBase.device.__get__(storage).type == "cpu"  # all of an accelerator's says it is shared
            record.handed_out = on_host and bool(StorageBase.is_shared(storage))
            if on_host and not StorageBase.resizable(storage):  # its memory came from elsewhere
                borrowed[int(StorageBase.data_ptr(storage))] = record
    if borrowed:
        # an array that only a running function has is not among what gc leads to
        of_frames = (value for frame in running_frames() for value in held_by_frame(frame))
        for obj in chain(live.holding[0], of_frames):
            if np.ndarray in mro(type(obj)) and (at := _INTERFACE(obj)["data"][0]) in borrowed:
                borrowed[at].handed_out = True


def _unread(live: Live) -> Iterator[tuple[int, str]]:
    """Variables of the user's running functions, and of the script itself while it runs as `__main__`, that lead to
    memory.
    """
    graph, objects = live.look.heap, live.objects
    frames = {id(objects[index]): index for index in graph.of_kind(ObjectKind.FRAME).tolist()}
    scripts = {id(objects[index]): index for index in graph.of_kind(ObjectKind.NAMESPACE).tolist()}
    for frame in running_frames():
        code, names = frame.f_code, frame.f_globals
        if not is_users(code.co_filename):
            continue
        if code.co_flags & CO_OPTIMIZED:
            place = frames.get(id(frame), -1)
            unread = {f"local {name}" for name in unread_variables(frame)} if place >= 0 else set()
        else:
            # a notebook's cells have no `__file__`: what one sets the next may read
            script = names.get("__name__") == "__main__" and names.get("__file__") == code.co_filename
            place = scripts.get(id(names), -1) if script else -1
            unread = {f".{name}" for name in unread_globals(frame)} if place >= 0 else set()
        if unread:
            held = (graph.reference(r).name for r in graph.out_of(place).tolist())
            yield from ((place, name) for name in held if name in unread)
