"""What does the accelerator's allocator say? History, counters at each step, blocks and snapshots at each look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from leakscope.allocator.joining import DeviceLayout, layouts
from leakscope.allocator.load.snapshot_files import read_segments
from leakscope.allocator.snapshot import Snapshot
from leakscope.capture.device.accelerator import Accelerator, find, read_figures, untold
from leakscope.capture.device.blocks import BlocksAtLook
from leakscope.capture.device.history import History
from leakscope.capture.device.oom_observer import Failures
from leakscope.capture.device.snapshot_files import SnapshotFiles
from leakscope.capture.heap.look import Blocks
from leakscope.capture.private_names import Part, lacks
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.patches import Patches
from leakscope.capture.process.pause import paused
from leakscope.errors import LeakscopeError
from leakscope.option import When
from leakscope.record.folder import RankFolder
from leakscope.record.model import Look
from leakscope.record.rows.device import DeviceBlocks, DeviceStep

_SHARE = 0.25
"""Share of the looks' budget, chosen, that reading the allocator's layout between looks may take."""


_KEPT = ((1000, 1), (10_000, 10), (100_000, 100))
"""(up to this step, one step in so many is kept), chosen: about 3,000 lines for the first 100,000 steps."""
_KEPT_RARELY = 1000
"""One step in so many is kept beyond, chosen."""


def is_kept(step: int) -> bool:
    """Whether a step's counters are kept: the first thousand all, then ever fewer: a long run's file stays small."""
    return any(step <= last and step % every == 0 for last, every in _KEPT) or step % _KEPT_RARELY == 0


class DeviceMemory:
    """Everything that is asked of one rank's accelerator; silent where there is none or the script never uses it."""

    def __init__(
        self, folder: RankFolder, wanted: When, budget: float, accelerator: Callable[[], Accelerator | None] = find
    ) -> None:
        self._folder, self._wanted, self._share = folder, wanted, _SHARE * budget
        self._find = accelerator
        self._accelerator: Accelerator | None = None
        self._history: History | None = None
        self._files: SnapshotFiles | None = None
        self._patches: Patches | None = None
        self._spent = 0.0
        self._lacks_told = False
        self.failures = Failures(self._tell, folder)

    def attach(self, patches: Patches) -> None:
        """Find the accelerator, and record from its first use on; one whose backend comes later is found at a step."""
        self._patches = patches
        self._look_for_device()

    def _look_for_device(self) -> None:
        if self._accelerator is not None or self._patches is None:
            return
        self._accelerator = device = self._find()
        if device is not None:
            self._files = SnapshotFiles(self._folder.path, device.kind, self._wanted)
            self.failures.kind, self.failures.guard = device.kind, self._patches.guard
            self._patches.add("out-of-memory observer", self.failures.end)
            self._history = History(device, self._wanted != When.NEVER, self._tell, self._begun)
            self._history.attach(self._patches)

    def _begun(self) -> None:
        if self._accelerator is not None:
            self.failures.observe(self._accelerator)
            if not self._lacks_told:
                self._lacks_told = True
                for sentence in untold(self._accelerator):
                    self._tell(sentence)

    def step(self, number: int, elapsed: float) -> None:
        """One line of counters, and of the allocator's layout where that is cheap enough by now."""
        self._look_for_device()
        device, history = self._accelerator, self._history
        if device is None or history is None or not device.in_use() or not is_kept(number):
            return
        if device.when_in_use is None:
            history.device_in_use()
        with paused():  # the dictionaries that torch makes must not set off the program's gc
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
        except (LeakscopeError, RuntimeError):  # told at the next look
            return ()
        finally:
            self._spent += CLOCK.perf_counter() - began

    def tells_allocation_sites(self) -> bool:
        """Whether the allocator's own stacks say where memory was made, but for what autograd's threads have made."""
        return self._history is not None and self._history.is_ours()

    def one_look(self) -> Blocks | None:
        """What the next look asks; None where there is nothing to ask, or the script records by itself."""
        device, history = self._accelerator, self._history
        if device is None or history is None or device.snapshot is None or not device.in_use() or not history.is_ours():
            return None
        if lacks(Part.BLOCKS):
            return None
        seen = _Snapshots(device)

        def snapshot() -> Snapshot | None:
            try:
                return read_segments(list(seen.segments()))
            except (LeakscopeError, RuntimeError) as error:  # an allocator that keeps none, or another form of it
                self._tell(f"the allocator's blocks could not be read: {error}")
                return None

        def write(look: Look, row: DeviceBlocks) -> None:
            row = replace(row, file=self._write_file(seen, look))
            seen.let_go()
            self._folder.append(row)

        return BlocksAtLook(device.kind, True, snapshot, lambda index: self._outside(device, index), write)

    def _write_file(self, seen: _Snapshots, look: Look) -> bool:
        assert self._files is not None
        if not self._files.is_due(look.occasion, look.counted_bytes, look.heap):
            return False
        try:
            self._files.write(seen.whole(), look.step, look.occasion)
        except (OSError, RuntimeError) as error:
            self._tell(f"the allocator's snapshot at step {look.step} was not written: {error}")
            return False
        return True

    def _outside(self, device: Accelerator, index: int) -> tuple[int, int] | None:
        """The driver's (free, total); not asked while a graph is captured, when the driver may refuse."""
        if device.free_and_total is None or (device.is_capturing is not None and device.is_capturing()):
            return None
        try:
            free, total = device.free_and_total(index)
        except Exception:  # noqa: BLE001 - a backend's own error: it is asked for one figure, which may be missing
            return None
        return int(free), int(total)

    def _tell(self, text: str) -> None:
        with suppress(OSError):
            self._folder.note(text)


class _Snapshots:
    """The allocator's state while the process stands still, as cheaply as this torch allows; whole at most once."""

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

    def let_go(self) -> None:
        """Drop what was read while gc still waits, so that its hundred thousand dictionaries never count."""
        self._whole = None
