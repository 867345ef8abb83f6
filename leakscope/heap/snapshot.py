"""The live heap becomes a HeapGraph, pruned to the paths to tensor memory.

The steps of a snapshot, while the process is paused (`process/gc_control.py`, `paused`):

1. `running_frames` (process/frames.py): the frames of all threads.
2. `sweep` (heap/sweep.py): all objects that gc tracks and their references, as numbers.
3. `NativeReferences.walk`, `read_frames` (heap/native_graph.py): references held by C++ only, and local variables.
4. `BlockReader.read`: on an accelerator, the block and allocation site of each storage.
5. `explain` (heap/garbage.py): what is alive by reference counts, the paths to memory, garbage (heap/liveness.py).
6. `to_heap_graph` (heap/to_graph.py): names references (heap/naming.py), describes objects, makes the HeapGraph.
7. Every live object is released.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any, Protocol

import numpy.ma  # noqa: F401 - np.unique of numpy 2.4 imports it at its first call, see below

from leakscope.graph.model import CommUse, ReferenceKind
from leakscope.heap.address_index import Growing
from leakscope.heap.garbage import ExplainedHeap, Watched, explain, watch_storage
from leakscope.heap.growth import Gains, gaining_containers, rows_of
from leakscope.heap.native_graph import NativeReferences, Storage, read_frames
from leakscope.heap.storages import device_of, storage_object, tensor_over
from leakscope.heap.sweep import sweep, type_counts
from leakscope.heap.to_graph import GivenRoot, PathStarts, StorageFacts, callback_frames, given_places, to_heap_graph
from leakscope.native import gc_heap, walks
from leakscope.process import user_code as source
from leakscope.process.frames import is_alone, running_frames
from leakscope.process.gc_control import check_deadline, paused
from leakscope.process.guard import CLOCK, unheard
from leakscope.process.torch_compat import without_functions
from leakscope.run.model import HeapSnapshot
from leakscope.run.rows import Occasion
from leakscope.shield import contextmanager

# not within the first snapshot, after which their objects and memory would count as the program's
gc_heap()
walks()


class BlockReader(Protocol):
    """The interface to the accelerator's allocator, used while the process is paused."""

    def read(self, storages: Iterable[Storage], objects: Sequence[Any]) -> Mapping[int, str]:
        """Join the storages found; return the allocation site of each, by storage address, where recorded."""

    def seen(self, look: HeapSnapshot, places: Mapping[int, int]) -> None:
        """Called when the snapshot is complete; `places` maps storage addresses to indexes in the graph."""


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """What the caller knows that the heap does not show."""

    counted_bytes: int | None = None
    """Bytes currently allocated."""
    counted_on: str = "cpu"
    """Kind of device of `counted_bytes` and `peak_bytes`."""
    peak_bytes: int | None = None
    """Peak of allocated bytes in this step."""
    hidden: Sequence[object] = ()
    """leakscope's own objects, which the graph leaves out."""
    made_at: Mapping[int, str] = field(default_factory=dict)
    """Storage address, mapped to its allocation site."""
    comm_holds: Iterable[tuple[Any, Any, str]] = ()
    """Owners in C++ known to the comm monitor: (Work, tensor, name of the reference)."""
    comm_uses: Mapping[int, CommUse] = field(default_factory=dict)
    """Storage address, mapped to the operation that used it last."""
    blocks: BlockReader | None = None
    """Joins the blocks of the accelerator's allocator."""
    given: Sequence[GivenRoot] = ()
    """Names given by the user."""
    gains: Gains | None = None
    """Growth of containers over earlier snapshots; None if not requested."""
    explained: Callable[[ExplainedHeap], None] | None = None
    """Callback with the analysed heap, called while the process is paused; must keep no live object."""


_NOTHING_KNOWN = SnapshotContext()


@dataclass
class LiveSnapshot:
    """A snapshot with its live objects, which are released when `inspect` is left."""

    look: HeapSnapshot
    objects: list[Any]
    """The live object of each node of the graph; for a storage, a tensor over it."""
    holding: tuple[list[Any], ...]
    """Every list through which the snapshot holds live objects; clear them to release early."""


@unheard
def look(
    step: int, occasion: Occasion, context: SnapshotContext = _NOTHING_KNOWN, *, watched: Watched | None = None
) -> HeapSnapshot:
    """Take a heap snapshot. Collects nothing, runs no user code, keeps nothing alive.

    `watched`, if given, receives weak references to every storage in the graph.
    """
    with inspect(step, occasion, context) as live:
        if watched is not None:
            watched += [
                watch_storage(storage_object(live.objects[k]), int(live.look.heap.bytes[k]))
                for k in live.look.heap.storages.tolist()
            ]
        return live.look


@contextmanager
def inspect(step: int, occasion: Occasion, context: SnapshotContext = _NOTHING_KNOWN) -> Iterator[LiveSnapshot]:
    """As `look`, with the live objects available while the block runs."""
    started = CLOCK.perf_counter()
    frames = running_frames()
    native: NativeReferences | None = None
    live: LiveSnapshot | None = None
    try:
        with paused(), without_functions():
            native = NativeReferences(sweep(_growing(context), alone=is_alone()))
            live = _inspect(native, frames, step, occasion, context, started)
            yield live
    finally:
        # A frame listed in a list that it holds is a cycle, and nothing may outlive the snapshot. What other
        # threads have released meanwhile is freed by this, and may have finalizers.
        frames.clear()
        if native is not None:
            native.sweep.objects.clear()
            native.new.clear()
        source.forget()
        if live is not None:
            live.objects.clear()


def _inspect(
    native: NativeReferences,
    frames: list[FrameType],
    step: int,
    occasion: Occasion,
    context: SnapshotContext,
    started: float,
) -> LiveSnapshot:
    """Take the snapshot without the pause around it; `started` is its start on the clock of `time.perf_counter`."""
    for holder, held, name in context.comm_holds:
        native.extra.add(native.index_of(holder), native.index_of(held), ReferenceKind.COMM, name, 0)
    native.walk()
    check_deadline()
    running = read_frames(native, frames, _growing(context))
    callbacks = callback_frames(native)
    devices = None if context.counted_on == "cpu" else _devices(native)
    of_blocks = {} if context.blocks is None else context.blocks.read(native.storages.values(), native.sweep.objects)
    facts = StorageFacts({**of_blocks, **context.made_at}, context.comm_uses, devices)
    own = _own(native, frames, context)
    gained = {} if context.gains is None else gaining_containers(native, context.gains, own)
    check_deadline()
    explained = explain(native, running, own, gained)
    if context.explained is not None:
        context.explained(explained)
    check_deadline()
    graph, order, places = to_heap_graph(explained, facts, PathStarts(given_places(native, context.given), callbacks))
    types = type_counts(native.sweep)
    stopped = CLOCK.perf_counter() - started
    seen = HeapSnapshot(
        step=step,
        occasion=occasion,
        heap=graph,
        counted_bytes=context.counted_bytes,
        counted_on=context.counted_on,
        peak_bytes=context.peak_bytes,
        explained_bytes=_bytes_on(context.counted_on, native, devices),
        types=types,
        objects=native.sweep.tracked,
        stopped_seconds=stopped,
        seconds=CLOCK.perf_counter() - started,
        unjudged=tuple(dict.fromkeys(native.problems)),
        containers=rows_of(gained, places, graph),
        hides=native.hides,
    )
    if context.blocks is not None:
        context.blocks.seen(seen, _places(native, order))
    return _live(seen, native, order)


def _growing(context: SnapshotContext) -> Growing | None:
    return None if context.gains is None else context.gains.growing_dicts


def _devices(native: NativeReferences) -> dict[int, str]:
    """The device, as `cuda:0`, by storage address, of each storage outside host memory."""
    devices = {}
    for storage in native.storages.values():
        try:
            device = device_of(_tensor_of(native, storage))
        except RuntimeError:  # a type that does not report it
            continue
        if device.type != "cpu":
            devices[storage.address] = str(device)
    return devices


def _bytes_on(kind: str, native: NativeReferences, devices: Mapping[int, str] | None) -> int:
    """Bytes of all storages on one kind of device; of all storages if no accelerator is in use."""
    return sum(
        storage.bytes
        for storage in native.storages.values()
        if devices is None or devices.get(storage.address, "cpu").partition(":")[0] == kind
    )


def _places(native: NativeReferences, order: Sequence[int]) -> dict[int, int]:
    """Index in the graph of each storage, by address."""
    storages, first = list(native.storages.values()), len(native.sweep.objects)
    return {storages[k - first].address: place for place, k in enumerate(order) if k >= first}


def _live(seen: HeapSnapshot, native: NativeReferences, order: Sequence[int]) -> LiveSnapshot:
    objects, storages = native.sweep.objects, list(native.storages.values())
    first = len(objects)
    return LiveSnapshot(
        look=seen,
        objects=[objects[k] if k < first else _tensor_of(native, storages[k - first]) for k in order],
        holding=(objects, native.new),
    )


def _tensor_of(native: NativeReferences, storage: Storage) -> Any:
    """A tensor over a storage."""
    return tensor_over(native.sweep.objects[storage.holders[0]], storage.address)


def _own(native: NativeReferences, frames: Sequence[FrameType], context: SnapshotContext) -> set[int]:
    """Indexes of leakscope's own frames and objects."""
    frames_of_ours = {native.index_of(frame) for frame in frames if _is_ours(frame.f_globals)}
    modules = [module for name, module in sys.modules.copy().items() if _names_ours(name)]
    namespaces = (vars(module) for module in modules if type(module) is ModuleType)
    hidden = (native.find(id(obj)) for obj in (context, *context.hidden, *namespaces))
    return frames_of_ours | {index for index in hidden if index >= 0}


def _is_ours(names: Mapping[str, Any]) -> bool:
    name = names.get("__name__")
    return type(name) is str and _names_ours(name)


def _names_ours(name: str) -> bool:
    return name == "leakscope" or name.startswith(("leakscope.", "leakscope_cli"))
