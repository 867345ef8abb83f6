"""The live heap as a HeapGraph, pruned to the paths to tensor memory.

While the process is paused (`gc_control.paused`), a snapshot passes through four phases. Each returns a value that the
next one reads:

1. `sweep`: everything that gc tracks, as numbers -> `Sweep`;
2. `native_graph`: what only C++ holds, and the variables of running frames -> `NativeGraph`;
3. `liveness`: reference counts, the ancestors of memory, garbage -> `Liveness`;
4. `to_graph`: internal containers folded, references named, objects described -> `HeapGraph`.

Afterwards all live objects are released.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any, Protocol

import numpy.ma  # noqa: F401 - np.unique of numpy 2.4 imports it at its first call, see below

from leakscope.graph.model import CommUse
from leakscope.heap.address_index import Growing
from leakscope.heap.garbage import Watched, watch_storage
from leakscope.heap.growth import Gains, gaining_containers, rows_of
from leakscope.heap.liveness import Liveness, find_liveness
from leakscope.heap.native_graph import NativeGraph, Storage, read_native_graph
from leakscope.heap.storages import device_of, storage_object, tensor_over
from leakscope.heap.sweep import Sweep, sweep, type_counts
from leakscope.heap.to_graph import GivenRoot, PathStarts, StorageFacts, callback_frames, given_places, to_heap_graph
from leakscope.native import gc_heap, walks
from leakscope.process import user_code as source
from leakscope.process.frames import is_alone, running_frames
from leakscope.process.gc_control import check_deadline, paused
from leakscope.process.guard import CLOCK, untraced
from leakscope.process.raw_types import is_of_leakscope
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

    def seen(self, snapshot: HeapSnapshot, places: Mapping[int, int]) -> None:
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
    explained: Callable[[Liveness], None] | None = None
    """Callback with the analysed heap, called while the process is paused; must keep no live object."""


_NOTHING_KNOWN = SnapshotContext()


@dataclass
class LiveSnapshot:
    """A snapshot with its live objects, which are released when `inspect` is left."""

    snapshot: HeapSnapshot
    objects: list[Any]
    """The live object of each node of the graph; for a storage, a tensor over it."""
    swept: list[Any]
    """Every object of the heap. Clear this list and `objects` to release them early."""


@untraced
def take_heap_snapshot(
    step: int, occasion: Occasion, context: SnapshotContext = _NOTHING_KNOWN, *, watched: Watched | None = None
) -> HeapSnapshot:
    """Take a heap snapshot. Collects nothing, runs no user code, keeps nothing alive.

    `watched`, if given, receives weak references to every storage in the graph.
    """
    with inspect(step, occasion, context) as live:
        if watched is not None:
            watched += [
                watch_storage(storage_object(live.objects[k]), int(live.snapshot.heap.bytes[k]))
                for k in live.snapshot.heap.storages.tolist()
            ]
        return live.snapshot


@contextmanager
def inspect(step: int, occasion: Occasion, context: SnapshotContext = _NOTHING_KNOWN) -> Iterator[LiveSnapshot]:
    """As `take_heap_snapshot`, with the live objects available while the block runs."""
    started = CLOCK.perf_counter()
    frames = running_frames()
    heap: Sweep | None = None
    live: LiveSnapshot | None = None
    try:
        with paused(), without_functions():
            heap = sweep(_growing(context), alone=is_alone())
            live = _inspect(heap, frames, step, occasion, context, started)
            yield live
    finally:
        # A frame listed in a list that it holds is a cycle, and nothing may outlive the snapshot. What other
        # threads have released meanwhile is freed by this, and may have finalizers.
        frames.clear()
        if heap is not None:
            heap.objects.clear()
        source.forget()
        if live is not None:
            live.objects.clear()


def _inspect(
    heap: Sweep,
    frames: list[FrameType],
    step: int,
    occasion: Occasion,
    context: SnapshotContext,
    started: float,
) -> LiveSnapshot:
    """Take the snapshot without the pause around it; `started` is its start on the clock of `time.perf_counter`."""
    native = read_native_graph(heap, frames, _growing(context), context.comm_holds)
    callbacks = callback_frames(native)
    devices = None if context.counted_on == "cpu" else _devices(native)
    of_blocks = {} if context.blocks is None else context.blocks.read(native.storages, native.sweep.objects)
    facts = StorageFacts({**of_blocks, **context.made_at}, context.comm_uses, devices)
    own = _own(native, frames, context)
    gained = {} if context.gains is None else gaining_containers(native, context.gains, own)
    check_deadline()
    liveness = find_liveness(native, own, gained)
    if context.explained is not None:
        context.explained(liveness)
    check_deadline()
    graph, order, places = to_heap_graph(liveness, facts, PathStarts(given_places(native, context.given), callbacks))
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
        unjudged=tuple(dict.fromkeys(liveness.problems)),
        containers=rows_of(gained, places, graph),
        hides=native.hides,
    )
    objects, storages, first = native.sweep.objects, native.storages, native.references.objects
    if context.blocks is not None:
        context.blocks.seen(seen, {storages[k - first].address: at for at, k in enumerate(order) if k >= first})
    return LiveSnapshot(
        snapshot=seen,
        objects=[objects[k] if k < first else _tensor_of(native, storages[k - first]) for k in order],
        swept=objects,
    )


def _growing(context: SnapshotContext) -> Growing | None:
    return None if context.gains is None else context.gains.growing_dicts


def _devices(native: NativeGraph) -> dict[int, str]:
    """The device, as `cuda:0`, by storage address, of each storage outside host memory."""
    devices = {}
    for storage in native.storages:
        try:
            device = device_of(_tensor_of(native, storage))
        except RuntimeError:  # a type that does not report it
            continue
        if device.type != "cpu":
            devices[storage.address] = str(device)
    return devices


def _bytes_on(kind: str, native: NativeGraph, devices: Mapping[int, str] | None) -> int:
    """Bytes of all storages on one kind of device; of all storages if no accelerator is in use."""
    return sum(
        storage.bytes
        for storage in native.storages
        if devices is None or devices.get(storage.address, "cpu").partition(":")[0] == kind
    )


def _tensor_of(native: NativeGraph, storage: Storage) -> Any:
    """A tensor over a storage."""
    return tensor_over(native.sweep.objects[storage.holders[0]], storage.address)


def _own(native: NativeGraph, frames: Sequence[FrameType], context: SnapshotContext) -> set[int]:
    """Indexes of leakscope's own frames and objects."""
    modules = [module for name, module in sys.modules.copy().items() if is_of_leakscope(name)]
    hidden = (context, *context.hidden, *(vars(module) for module in modules if type(module) is ModuleType))
    frames_of_ours = (frame for frame in frames if is_of_leakscope(frame.f_globals.get("__name__")))
    return {index for obj in (*hidden, *frames_of_ours) if (index := native.find(id(obj))) >= 0}
