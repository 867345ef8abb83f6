"""What did the accelerator's allocator say? Figures are bytes where nothing else is said."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.allocator.joining import DeviceLayout
from leakscope.record.kinds import Occasion
from leakscope.record.rows.row import Row, Signed, rare


@dataclass(frozen=True)
class DeviceFigures:
    """One device's counters."""

    device: int
    allocated: int
    active: int
    """Allocated, or dead and waited for by another stream."""
    reserved: int
    peak: int
    """The highest `allocated` since somebody reset it."""
    stuck: int
    """Reserved and unused in segments that something live keeps."""
    retries: int
    """Times the allocator had to give back its cache and ask the driver again."""
    failures: int
    """Times memory ran out."""


@dataclass(frozen=True)
class DeviceStep(Row):
    """The allocator's counters at the end of one step."""

    FILE = "device"

    step: int
    kind: str
    """`cuda`, `xpu`, ..."""
    devices: tuple[DeviceFigures, ...]
    layout: tuple[DeviceLayout, ...] | None = rare(None)
    """None where reading it was too dear then."""


@dataclass(frozen=True)
class LayoutAtLook(DeviceLayout):
    """How one device's memory was used up at a look."""

    driver: tuple[int, int] | None
    """What the driver said: (free, total) bytes, all processes together; None where it was not asked."""


@dataclass(frozen=True)
class Elsewhere:
    """Storages on the device that lie in no block of the allocator."""

    storages: int
    bytes: int


@dataclass(frozen=True)
class DeviceBlocks(Row):
    """The allocator's active blocks at one look, each with the storage in it."""

    FILE = "device_blocks"

    step: int
    occasion: Occasion
    kind: str
    """`cuda`, `xpu`, ..."""
    storage: tuple[Signed, ...]
    """For each block the storage's index in the look's heap, -1 where there is none."""
    bytes: tuple[int, ...]
    """Size of each block."""
    device: tuple[int, ...]
    """Number of each block's device."""
    pending: tuple[int, ...]
    """Places of the blocks that are dead and waited for by another stream."""
    made_at: tuple[int, ...]
    """For each block the place in `sites`."""
    sites: tuple[str, ...]
    """`train.py:41 forward`."""
    layout: tuple[LayoutAtLook, ...]
    elsewhere: Elsewhere = Elsewhere(0, 0)
    file: bool = False
    """Whether the allocator's own snapshot was written as well."""


@dataclass(frozen=True)
class DeviceFailure(Row):
    """The device's memory ran out, whether the script caught that or not."""

    FILE = "device_out_of_memory"

    step: int
    """The last step that had ended."""
    kind: str
    device: int
    wanted_bytes: Signed
    limit_bytes: int
    free_bytes: int
    """What the driver had free."""
    at: str
    """The user's line, "" where there was none."""
    counted: DeviceFigures | None
    looked: bool
    """Whether the heap was looked at then."""
