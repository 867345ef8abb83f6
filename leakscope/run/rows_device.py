"""Rows of the accelerator's allocator and of communication."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.memory_snapshot.analysis import DeviceLayout
from leakscope.run.kinds import Occasion, OperationState
from leakscope.run.rows import Row, Signed, rare


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


@dataclass(frozen=True, kw_only=True)
class IssuedOperation:
    """A P2P or collective operation as it was issued."""

    id: int
    """Counts the operations of the rank, from 1."""
    direction: str
    """`send`, `recv` (see `Direction`), or the name of a collective such as `allreduce`."""
    peer: Signed | None
    """Global rank of the other side; None for collectives and receives from any rank."""
    tag: Signed | None
    group: str
    bytes: int
    step: int
    """The step it was issued in, 1 for the first."""
    microbatch: int
    """Which operation of its channel (group, direction, peer, tag) in the step, from 0."""
    nth: int
    """Which operation of its channel in all, from 1."""
    issued_at: str
    """`train.py:41 forward`, "" where no line of the user's issued it."""
    issued: float
    """Seconds since the recording of operations began, as all moments here."""


@dataclass(frozen=True, kw_only=True)
class CommOperation(IssuedOperation, Row):
    """An operation and when each of its lives ended; a moment is None for what was not seen to happen."""

    FILE = "wire"

    shape: tuple[int, ...]
    """Of the first buffer."""
    dtype: str
    buffers: int
    """How many tensors it moves."""
    waited: float | None = None
    """When its Work's wait() returned."""
    completed: float | None = None
    tensor_died: float | None = None
    """When the last Python tensor of a buffer died."""
    storage_died: float | None = None
    work_died: float | None = None
    reused: float | None = rare(None)
    """When the same storage was given to a later operation."""
    dropped: bool = rare(False)
    """Its Work died before anybody waited for it and before it was seen completed."""
    failed: str = rare("")
    """The error that it raised."""
    source: int | None = rare(None)
    """Of a receive from any rank: who sent it."""
    called_from: str = rare("")
    """The user's line that called the function which issued it."""


@dataclass(frozen=True, kw_only=True)
class FinalOperation(IssuedOperation):
    """The last operation of a rank, as `wire_last.bin` has it."""

    state: OperationState
    newest: bool
    """Whether the rank has certainly issued none after it."""


@dataclass(frozen=True)
class OpenContext:
    """A distributed-autograd context that a worker's container still holds."""

    id: Signed
    opened_at: str
    """Line of the user's that entered it; "" where another worker did."""
    step: int | None
    """The step it was opened in."""
    workers: tuple[int, ...]
    """Ids of the other workers that it has talked to."""
    gradients: int
    """How many it has gathered."""
    bytes: int
    """Of their storages."""


@dataclass(frozen=True)
class ContextsAtStep(Row):
    """The contexts that were open on a worker when a step had ended."""

    FILE = "contexts"

    step: int
    open: int
    """How many, as torch counts them."""
    backward_passes: int
    """Distributed backward passes still running."""
    bytes: int
    """Of the gradients in all of them."""
    contexts: tuple[OpenContext, ...]
    """The first of them."""
