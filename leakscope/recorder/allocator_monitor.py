"""Blocks and history of the accelerator's allocator at each snapshot."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from leakscope.errors import LeakscopeError
from leakscope.graph.model import REACHABLE, HeapGraph
from leakscope.heap.native_graph import Storage
from leakscope.heap.snapshot import BlockReader
from leakscope.heap.storages import device_of, tensor_over
from leakscope.memory_snapshot import DeviceLayout
from leakscope.memory_snapshot.analysis import Joined, Placed, join, layouts
from leakscope.memory_snapshot.model import PENDING_FREE, Snapshot, Stack
from leakscope.memory_snapshot.reader import read_segments
from leakscope.options import When
from leakscope.originals import Path, open_file, os
from leakscope.process.gc_control import paused
from leakscope.process.guard import CLOCK, in_forked_child
from leakscope.process.patches import Patches
from leakscope.process.raw_types import mro
from leakscope.process.torch_compat import RecordingPart, StorageBase, TensorBase, data_address, lacks
from leakscope.process.user_code import at, is_ours, is_users
from leakscope.recorder.accelerator import Accelerator, find, missing_functions, read_figures
from leakscope.recorder.memory_limits import DeviceFailures
from leakscope.run.descriptors import open_private
from leakscope.run.model import HeapSnapshot
from leakscope.run.rows import DeviceBlocks, DeviceStep, Elsewhere, LayoutAtSnapshot, Occasion
from leakscope.run.writer import RankFolder, snapshot_name

_NATIVE = "no Python frames (autograd or another native thread)"
_UNRECORDED = "not recorded"


def placed(storage: Storage, objects: Sequence[Any], kind: str) -> Placed | None:
    """Address where the storage's memory begins; None if it is not on this kind of device or unknown."""
    over = [tensor_over(objects[index], storage.address) for index in storage.holders]
    # tensors first: asking a storage for its data_ptr makes a lazy clone copy its memory (c10/core/StorageImpl.h,
    # mutable_data); a tensor's data address, its storage's whatever the offset (torch/csrc/Module.cpp), does not
    for holder in sorted(over, key=lambda holder: TensorBase not in mro(type(holder))):
        try:
            device = device_of(holder)
            if device.type != kind:
                return None
            is_tensor = TensorBase in mro(type(holder))
            begins = data_address(holder) if is_tensor else StorageBase.data_ptr(holder)
            return Placed(device.index or 0, int(begins), storage.bytes)
        except RuntimeError:  # a tensor without data; another holder may have some
            continue
    return None


def allocation_site_of(stack: Stack, recorded: bool) -> str:
    """`train.py:41 forward`; without a line of the user, the innermost Python line."""
    library = ""
    for frame in stack:
        if not frame.filename.endswith(".py") and not frame.filename.startswith("<ipython-input"):
            continue  # C++ frames have `??`, or the name of a C++ file
        if is_users(frame.filename):
            return f"{at(frame.filename, frame.line)} {frame.name}"
        if not library and not is_ours(frame.filename):  # our dispatch mode is the only one above autograd's threads
            library = f"{at(frame.filename, frame.line)} {frame.name}"
    return library or (_NATIVE if recorded else _UNRECORDED)


class SnapshotBlocks:
    """The allocator's blocks at one heap snapshot, joined and written."""

    def __init__(
        self,
        kind: str,
        recorded: bool,
        snapshot: Callable[[], Snapshot | None],
        outside: Callable[[int], tuple[int, int] | None],
        write: Callable[[HeapSnapshot, DeviceBlocks], None],
    ) -> None:
        self._kind, self._recorded = kind, recorded
        self._read, self._outside, self._write = snapshot, outside, write
        self._snapshot: Snapshot | None = None
        self._joined: Joined | None = None
        self._storages: list[int] = []
        self._placed: list[Placed] = []
        self._sites: list[str] = []

    def read(self, storages: Iterable[Storage], objects: Sequence[Any]) -> Mapping[int, str]:
        """Join the storages with the allocator's blocks; return the allocation site of each, by storage address."""
        self._snapshot = snapshot = self._read()
        if snapshot is None:
            return {}
        for storage in storages:
            where = placed(storage, objects, self._kind) if storage.bytes else None
            if where is not None:
                self._storages.append(storage.address)
                self._placed.append(where)
        self._joined = joined = join(snapshot, self._placed)
        self._sites = [allocation_site_of(stack, self._recorded) for stack in snapshot.stacks]
        stacks = snapshot.blocks.stack[joined.blocks].tolist()
        return {
            self._storages[storage]: self._sites[stack]
            for storage, stack in zip(joined.storage.tolist(), stacks, strict=True)
            if storage >= 0 and snapshot.stacks[stack] and self._sites[stack] != _NATIVE
        }

    def seen(self, heap_snapshot: HeapSnapshot, places: Mapping[int, int]) -> None:
        """Write one row, with storages as indexes in the graph of the snapshot."""
        if self._snapshot is not None and self._joined is not None:
            self._write(heap_snapshot, self._row(heap_snapshot, self._snapshot, self._joined, places))

    def _row(
        self, heap_snapshot: HeapSnapshot, snapshot: Snapshot, joined: Joined, places: Mapping[int, int]
    ) -> DeviceBlocks:
        """One row of `device_blocks.jsonl`: indexes and bytes, no addresses."""
        blocks, chosen = snapshot.blocks, joined.blocks
        used, number = np.unique(blocks.stack[chosen], return_inverse=True)
        device_of = np.array([segment.device for segment in snapshot.segments], np.int64)
        return DeviceBlocks(
            step=heap_snapshot.step,
            occasion=heap_snapshot.occasion,
            kind=self._kind,
            storage=tuple(places.get(self._storages[s], -1) if s >= 0 else -1 for s in joined.storage.tolist()),
            bytes=tuple(blocks.size[chosen].tolist()),
            device=tuple(device_of[blocks.segment[chosen]].tolist()),
            pending=tuple(np.flatnonzero(blocks.state[chosen] == PENDING_FREE).tolist()),
            made_at=tuple(number.tolist()),
            sites=tuple(self._sites[stack] for stack in used.tolist()),
            layout=tuple(
                LayoutAtSnapshot(**asdict(layout), driver=self._outside(layout.device)) for layout in layouts(snapshot)
            ),
            elsewhere=Elsewhere(len(joined.unplaced), sum(self._placed[k].bytes for k in joined.unplaced.tolist())),
        )


ENTRIES = 100_000
"""Events kept, the newest; an entry takes about a kilobyte of host memory, a snapshot of this many 0.7 s."""

WAITING, OURS, THEIRS, OVER = "waiting", "ours", "theirs", "over"
"""The device is unused so far; leakscope records; the script records; nothing records."""

ASIDE = (
    "the script records memory history itself: leakscope took no memory snapshots from then on (`leakscope snapshot "
    "FILE` reads the script's own)"
)


class MemoryHistory:
    """Enables history once the device is in use, and disables only what it enabled."""

    def __init__(
        self, accelerator: Accelerator, wanted: bool, note: Callable[[str], None], started: Callable[[], None]
    ) -> None:
        self.state = WAITING if wanted and accelerator.record is not None else OVER
        self._accelerator, self._note, self._started = accelerator, note, started
        self._in_forked_child = in_forked_child()
        self._callback = self.device_in_use
        """One object, so that it can be found among the callbacks that wait for the device; guarded once attached."""

    def attach(self, patches: Patches) -> None:
        """Wait for the device's first use; a process that never uses it gets no context."""
        device = self._accelerator
        self._callback = patches.guard.guarded(f"first use of {device.kind}", self.device_in_use)
        if self.state == WAITING and device.recorder_name is not None:
            patches.call_before(*device.recorder_name, self._somebody_records)
            patches.add(f"memory history of {device.kind}", self.end)
        if device.in_use():
            self.device_in_use()
        elif device.when_in_use is not None:
            device.when_in_use(self._callback)
            patches.add(f"a call waiting for the first use of {device.kind}", self._stop_waiting)

    def device_in_use(self) -> None:
        """Start, unless history is already on.

        torch calls this while initialising the device; an exception would end the script.
        """
        if self._in_forked_child:
            return
        try:
            if self.state == WAITING:
                self._begin()
            self._started()
        except Exception as error:  # noqa: BLE001 - reported as a note: see above
            self.state = OVER if self.state == WAITING else self.state
            self._note(f"device memory is not recorded: {type(error).__name__}: {error}")

    def _begin(self) -> None:
        device = self._accelerator
        assert device.record is not None
        if device.is_recording is not None and device.is_recording():
            self._step_aside()
            return
        # allocators without history refuse: cudaMallocAsync and pluggable ones ("does not yet support recordHistory")
        device.record(**device.record_arguments(ENTRIES))
        self.state = OURS

    def is_ours(self) -> bool:
        """Whether the recorded history is leakscope's own; detects a history disabled by others."""
        if self._in_forked_child:
            return False
        is_recording = self._accelerator.is_recording
        if self.state == OURS and is_recording is not None and not is_recording():
            self._step_aside()
        return self.state == OURS

    def _somebody_records(self, *_: object, **__: object) -> None:
        """Before the script enables history: clear leakscope's, so that the script sees only its own."""
        if self._in_forked_child or self.state in (THEIRS, OVER):
            return
        self._switch_off()
        self._step_aside()

    def _step_aside(self) -> None:
        self.state = THEIRS
        self._note(ASIDE)

    def _switch_off(self) -> None:
        record = self._accelerator.record
        if self.state != OURS or record is None:
            return
        self.state = OVER
        try:
            record(enabled=None)  # clears the ring as well
        except RuntimeError as error:
            self._note(f"memory history could not be switched off: {error}")

    def end(self) -> None:
        """Disable the history that is still leakscope's."""
        if self.is_ours():
            self._switch_off()
        self.state = OVER

    def _stop_waiting(self) -> None:
        queue = self._accelerator.queue
        if queue is not None:
            queue[:] = [entry for entry in queue if entry[0] is not self._callback]


MAX_FILES = {When.AUTO: 4, When.ALWAYS: 16}
"""Maximum files of one rank, by the value of `--snapshot`. Heuristic."""
MAX_BYTES = 512 << 20
"""Maximum total bytes of one rank's files. Heuristic."""
MIN_GROWTH = 1 << 20
"""Minimum growth in bytes, of device memory or of unreachable memory, for which a file is written. Heuristic."""


class SnapshotFiles:
    """Keeps the first file and the newest ones."""

    def __init__(self, folder: Path, kind: str, wanted: When) -> None:
        self._folder, self._kind, self._wanted = folder, kind, wanted
        self._written: list[tuple[Path, int]] = []
        self._lowest: int | None = None
        self._highest = 0
        self._lowest_unreachable: int | None = None

    def is_due(self, occasion: Occasion, counted: int | None, heap: HeapGraph) -> bool:
        """Whether this snapshot gets a file: every one with `always`; with `auto` if something was found."""
        if self._wanted == When.ALWAYS or occasion == Occasion.OOM:
            return True
        if occasion == Occasion.PEAK or counted is None:  # in the middle of a step there is always more
            return False
        lowest, highest = self._lowest, self._highest
        self._lowest = counted if lowest is None else min(lowest, counted)
        self._highest = max(highest, counted)
        grew = lowest is not None and counted > highest and counted - lowest >= MIN_GROWTH
        left = unreachable_bytes(heap)
        self._lowest_unreachable = min(left, self._lowest_unreachable if self._lowest_unreachable is not None else left)
        return grew or left - self._lowest_unreachable >= MIN_GROWTH

    def write(self, snapshot: Mapping[str, Any], step: int, occasion: Occasion) -> None:
        """Write one file atomically; delete older ones if there are too many."""
        path = self._folder / snapshot_name(self._kind, step, occasion)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open_file(temporary, "wb", opener=open_private) as stream:
                pickle.dump(snapshot, stream, protocol=4)
            os.replace(temporary, path)
        except BaseException:  # a full disk, or no memory for it
            temporary.unlink(missing_ok=True)
            raise
        self._written = [entry for entry in self._written if entry[0] != path]
        self._written.append((path, path.stat().st_size))
        for deleted in surplus([size for _, size in self._written], MAX_FILES.get(self._wanted, 0), MAX_BYTES):
            self._written[deleted][0].unlink(missing_ok=True)
            self._written[deleted] = (self._written[deleted][0], -1)
        self._written = [entry for entry in self._written if entry[1] >= 0]


def unreachable_bytes(heap: HeapGraph) -> int:
    """Unreachable tensor memory."""
    return int(heap.bytes[heap.freed != REACHABLE].sum())


def surplus(sizes: Sequence[int], most: int, most_bytes: int) -> list[int]:
    """Which files, oldest first, to delete: the second oldest until number and size are within bounds.

    The newest stays whatever its size.
    """
    left = list(range(len(sizes)))
    deleted = []
    while len(left) > 1 and (len(left) > most or sum(sizes[k] for k in left) > most_bytes):
        oldest, *newer = left
        deleted.append(newer[0] if len(newer) > 1 else oldest)
        left.remove(deleted[-1])
    return deleted


_LAYOUT_SHARE = 0.25
"""Share of the snapshot budget for reading the allocator's layout between snapshots. Heuristic."""


_ROW_INTERVALS = ((1000, 1), (10_000, 10), (100_000, 100))
"""(up to this step, keep one step in this many): about 3,000 rows for the first 100,000 steps. Heuristic."""
_LAST_ROW_INTERVAL = 1000
"""Beyond, keep one step in this many. Heuristic."""


def is_kept(step: int) -> bool:
    """Whether a step's counters are kept: the first thousand all, then ever fewer, so that a long run's file stays
    small.
    """
    return any(step <= last and step % every == 0 for last, every in _ROW_INTERVALS) or step % _LAST_ROW_INTERVAL == 0


class DeviceMemory:
    """The recording of one rank's accelerator; does nothing without one or if the script never uses it."""

    def __init__(
        self, folder: RankFolder, wanted: When, budget: float, accelerator: Callable[[], Accelerator | None] = find
    ) -> None:
        self._folder, self._wanted, self._share = folder, wanted, _LAYOUT_SHARE * budget
        self._find = accelerator
        self._accelerator: Accelerator | None = None
        self._history: MemoryHistory | None = None
        self._files: SnapshotFiles | None = None
        self._patches: Patches | None = None
        self._spent = 0.0
        self._gaps_reported = False
        self.failures = DeviceFailures(self._note, folder)

    def attach(self, patches: Patches) -> None:
        """Find the accelerator and record from its first use; a backend registered later is found at a step."""
        self._patches = patches
        self._find_device()

    def _find_device(self) -> None:
        if self._accelerator is not None or self._patches is None:
            return
        self._accelerator = device = self._find()
        if device is not None:
            self._files = SnapshotFiles(self._folder.path, device.kind, self._wanted)
            self.failures.kind, self.failures.guard = device.kind, self._patches.guard
            self._patches.add("out-of-memory observer", self.failures.end)
            self._history = MemoryHistory(device, self._wanted != When.NEVER, self._note, self._started)
            self._history.attach(self._patches)

    def _started(self) -> None:
        if self._accelerator is not None:
            self.failures.observe(self._accelerator)
            if not self._gaps_reported:
                self._gaps_reported = True
                for sentence in missing_functions(self._accelerator):
                    self._note(sentence)

    def step(self, number: int, elapsed: float) -> None:
        """Write one row of counters, and of the allocator's layout when it is within the budget."""
        self._find_device()
        device, history = self._accelerator, self._history
        if device is None or history is None or not device.in_use() or not is_kept(number):
            return
        if device.when_in_use is None:
            history.device_in_use()
        with paused():  # the dictionaries that torch creates must not trigger the program's gc
            counted = read_figures(device) or ()
            layout = None
            if counted and device.segments is not None and history.is_ours() and self._spent <= self._share * elapsed:
                layout = self._layout(device.segments)
        if counted:
            self._folder.append(DeviceStep(number, device.kind, tuple(counted), layout))

    def _layout(self, segments: Callable[[], Any]) -> tuple[DeviceLayout, ...]:
        began = CLOCK.perf_counter()
        try:
            return layouts(read_segments(list(segments())))
        except (LeakscopeError, RuntimeError):  # reported with the next snapshot
            return ()
        finally:
            self._spent += CLOCK.perf_counter() - began

    def has_allocation_sites(self) -> bool:
        """Whether the allocator's stacks give allocation sites, except for autograd's threads."""
        return self._history is not None and self._history.is_ours()

    def block_reader(self) -> BlockReader | None:
        """The reader for the next heap snapshot; None if there is nothing to read, or the script records by itself."""
        device, history = self._accelerator, self._history
        if device is None or history is None or device.snapshot is None or not device.in_use() or not history.is_ours():
            return None
        if lacks(RecordingPart.BLOCKS):
            return None
        state = _Snapshots(device)

        def snapshot() -> Snapshot | None:
            try:
                return read_segments(list(state.segments()))
            except (LeakscopeError, RuntimeError) as error:  # an allocator without history, or with another form of it
                self._note(f"the allocator's blocks could not be read: {error}")
                return None

        def write(heap_snapshot: HeapSnapshot, row: DeviceBlocks) -> None:
            row = replace(row, file=self._write_file(state, heap_snapshot))
            state.release()
            self._folder.append(row)

        return SnapshotBlocks(device.kind, True, snapshot, lambda index: self._outside(device, index), write)

    def _write_file(self, state: _Snapshots, heap_snapshot: HeapSnapshot) -> bool:
        assert self._files is not None
        if not self._files.is_due(heap_snapshot.occasion, heap_snapshot.counted_bytes, heap_snapshot.heap):
            return False
        try:
            self._files.write(state.whole(), heap_snapshot.step, heap_snapshot.occasion)
        except (OSError, RuntimeError) as error:
            self._note(f"the memory snapshot at step {heap_snapshot.step} was not written: {error}")
            return False
        return True

    def _outside(self, device: Accelerator, index: int) -> tuple[int, int] | None:
        """The driver's (free, total); not read while a graph is captured, when the driver may refuse."""
        if device.free_and_total is None or (device.is_capturing is not None and device.is_capturing()):
            return None
        try:
            free, total = device.free_and_total(index)
        except Exception:  # noqa: BLE001 - a backend's own error: it is asked for one figure, which may be missing
            return None
        return int(free), int(total)

    def _note(self, text: str) -> None:
        with suppress(OSError):
            self._folder.note(text)


class _Snapshots:
    """The allocator's state during the pause, read as cheaply as this torch allows; in full at most once."""

    def __init__(self, device: Accelerator) -> None:
        self._device = device
        self._whole: Mapping[str, Any] | None = None

    def segments(self) -> Sequence[Any]:
        if self._device.segments is not None:
            listed: Sequence[Any] = self._device.segments()
            return listed
        return list(self.whole().get("segments", ()))

    def whole(self) -> Mapping[str, Any]:
        if self._whole is None:
            assert self._device.snapshot is not None
            self._whole = self._device.snapshot()
        return self._whole

    def release(self) -> None:
        """Drop what was read while gc is still paused, so that its hundred thousand dictionaries are never counted."""
        self._whole = None
