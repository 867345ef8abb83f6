"""The live heap becomes a HeapGraph, pruned to the ways to tensor memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

import numpy as np
import torch

from leakscope.capture.heap.garbage import Watched, freed_by, watch_storage
from leakscope.capture.heap.gc_heap import counts_of, sweep
from leakscope.capture.heap.hook_owners import ask_nodes
from leakscope.capture.heap.native_references import Explorer, Storage
from leakscope.capture.heap.pause import still
from leakscope.capture.heap.prune import prune
from leakscope.capture.heap.refcounts import Account, account
from leakscope.capture.heap.reference_names import Names
from leakscope.capture.heap.storages import device_of, storage_object, tensor_over, type_counts
from leakscope.capture.heap.to_graph import columns
from leakscope.capture.source import user_source as source
from leakscope.capture.source.user_frames import running_frames
from leakscope.graph.model import CommUse, HeapGraph
from leakscope.graph.reach import reachable
from leakscope.record.kinds import Occasion
from leakscope.record.model import Look


class Blocks(Protocol):
    """What a look asks about the accelerator's allocator, while the process stands still."""

    def read(self, storages: Iterable[Storage], objects: Sequence[Any]) -> Mapping[int, str]:
        """Join the storages found; gives the place that made each, by the storage's address, where it was recorded."""

    def seen(self, look: Look, places: Mapping[int, int]) -> None:
        """The look is complete; `places` is each storage's index in its graph, by the storage's address."""


def look(
    step: int,
    occasion: Occasion,
    *,
    counted_bytes: int | None = None,
    hidden: Sequence[object] = (),
    made_at: Mapping[int, str] | None = None,
    wire: Iterable[tuple[Any, Any, str]] = (),
    comm_uses: Mapping[int, CommUse] | None = None,
    device: Blocks | None = None,
    counted_on: str = "cpu",
    peak_bytes: int | None = None,
    watched: Watched | None = None,
) -> Look:
    """Inspect the process now. Nothing is collected, no user code runs, nothing live is kept.

    `hidden` are leakscope's own objects; `made_at` maps a storage's address to the place that made it;
    `wire` are owners that C++ hides and the wire's watch knows: (Work, tensor, name of the reference);
    `comm_uses` maps a storage's address to the operation that used it last; `device` joins the accelerator's blocks;
    `counted_on` is the kind of device that `counted_bytes` and `peak_bytes` are of.
    """
    # `watched`, where given, is filled with weak references to every storage found.
    with inspect(
        step,
        occasion,
        counted_bytes=counted_bytes,
        hidden=hidden,
        made_at=made_at,
        wire=wire,
        comm_uses=comm_uses,
        device=device,
        counted_on=counted_on,
        peak_bytes=peak_bytes,
    ) as live:
        if watched is not None:
            watched += [
                watch_storage(storage_object(live.objects[k]), int(live.look.heap.bytes[k]))
                for k in live.look.heap.storages.tolist()
            ]
        return live.look


@dataclass
class Live:
    """A look with the objects it saw; they are let go when `inspect` is left."""

    look: Look
    objects: list[Any]
    """For each object of the graph the live one; for a storage, a tensor over it."""
    holding: tuple[list[Any], ...]
    """Every list through which the look itself holds live objects; clear them to let go early."""


@contextmanager
def inspect(
    step: int,
    occasion: Occasion,
    *,
    counted_bytes: int | None = None,
    hidden: Sequence[object] = (),
    made_at: Mapping[int, str] | None = None,
    wire: Iterable[tuple[Any, Any, str]] = (),
    comm_uses: Mapping[int, CommUse] | None = None,
    device: Blocks | None = None,
    counted_on: str = "cpu",
    peak_bytes: int | None = None,
) -> Iterator[Live]:
    """As `look`, with the live objects at hand while the block runs."""
    started = time.perf_counter()
    frames = running_frames()
    with still(), torch._C.DisableTorchFunction():
        found = Explorer(sweep())
        live: Live | None = None
        try:
            for holder, held, name in wire:
                found.extra.add(found.index_of(holder), found.index_of(held), "wire", name, 0)
            found.explore()
            running = found.read_frames(frames)
            on = None if counted_on == "cpu" else _devices(found)
            made = {} if device is None else device.read(found.storages.values(), found.sweep.objects)
            result, order = _graph(
                found, running, _own(found, frames, hidden), {**made, **(made_at or {})}, comm_uses or {}, on
            )
            types = type_counts(found.sweep.objects, found.sweep.types[: found.sweep.tracked])
            stopped = time.perf_counter() - started
            seen = Look(
                step=step,
                occasion=occasion,
                heap=result,
                counted_bytes=counted_bytes,
                counted_on=counted_on,
                peak_bytes=peak_bytes,
                explained_bytes=sum(
                    s.bytes for s in found.storages.values() if on is None or _kind(on, s) == counted_on
                ),
                types=types,
                objects=found.sweep.tracked,
                stopped_seconds=stopped,
                seconds=time.perf_counter() - started,
                unjudged=tuple(dict.fromkeys(found.problems)),
            )
            if device is not None:
                device.seen(seen, _places(found, order))
            live = _live(seen, found, order)
            yield live
        finally:
            # A frame listed in a list that the same frame holds is a cycle; and nothing may outlive the look.
            frames.clear()
            found.sweep.objects.clear()
            found.new.clear()
            source.forget()
            if live is not None:
                live.objects.clear()


def _devices(found: Explorer) -> dict[int, str]:
    """`cuda:0` by the storage's address, for each that is not in host memory."""
    objects, on = found.sweep.objects, {}
    for storage in found.storages.values():
        try:
            device = device_of(tensor_over(objects[storage.holders[0]], storage.address))
        except RuntimeError:  # one that cannot say
            continue
        if device.type != "cpu":
            on[storage.address] = str(device)
    return on


def _kind(on: Mapping[int, str], storage: Storage) -> str:
    return on.get(storage.address, "cpu").partition(":")[0]


def _places(found: Explorer, order: Sequence[int]) -> dict[int, int]:
    """Index in the graph of each storage, by the storage's address."""
    entries, first = list(found.storages.values()), len(found.sweep.objects)
    return {entries[k - first].address: place for place, k in enumerate(order) if k >= first}


def _live(seen: Look, found: Explorer, order: Sequence[int]) -> Live:
    objects = found.sweep.objects
    entries = list(found.storages.values())
    first = len(objects)
    return Live(
        look=seen,
        objects=[objects[k] if k < first else _over(objects, entries[k - first]) for k in order],
        holding=(objects, found.new),
    )


def _over(objects: Sequence[Any], storage: Storage) -> Any:
    return tensor_over(objects[storage.holders[0]], storage.address)


def _own(found: Explorer, frames: Sequence[FrameType], hidden: Sequence[object]) -> set[int]:
    own = {found.index_of(frame) for frame in frames if _is_ours(frame.f_code, frame.f_globals)}
    return own | {index for index in (found.find(id(obj)) for obj in hidden) if index >= 0}


def _is_ours(code: CodeType, names: Mapping[str, Any]) -> bool:
    name = names.get("__name__")
    return type(name) is str and (name == "leakscope" or name.startswith(("leakscope.", "leakscope_cli")))


def _graph(
    found: Explorer,
    running: dict[int, str],
    own: set[int],
    made_at: Mapping[int, str],
    comm_uses: Mapping[int, CommUse],
    on: Mapping[int, str] | None,
) -> tuple[HeapGraph, list[int]]:
    books = account(found)
    kept = prune(found, books, running, own)
    if ask_nodes(found, books, kept):
        books = account(found)
        kept = prune(found, books, running, own)
    if _leave_unjudged_what_changed(found, books):
        kept = prune(found, books, running, own)
    tracked = np.zeros(books.objects, dtype=bool)
    tracked[: found.sweep.tracked] = True
    tracked[found.sweep.tracked :] = found.role[found.sweep.tracked :] > 0
    freed = freed_by(books, found.role, tracked)
    names = Names(found, books, kept)
    return columns(found, books, kept, running, freed, names, made_at, comm_uses, on)


def _leave_unjudged_what_changed(found: Explorer, books: Account) -> bool:
    """Take as held what seemed garbage but whose count has changed since the sweep: another thread has it.

    An object whose count moves is alive; it becomes a root and is counted among what could not be judged.
    """
    starts = np.flatnonzero(books.unexplained > 0)
    reached = reachable(books.count, books.holder, books.held, starts)
    dead = np.flatnonzero(~reached[: found.sweep.tracked])
    objects = [found.sweep.objects[k] for k in dead.tolist()]
    before = found.sweep.counts[dead]
    moved = dead[counts_of(objects) - 1 > before + (found.role[dead] > 0)]
    if len(moved) == 0:
        return False
    books.unexplained[moved] = 1
    found.problems.append(f"{len(moved)} objects changed while they were looked at and are left unjudged")
    return True
