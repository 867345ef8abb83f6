"""What did a rank send, receive and gather, and which distributed-autograd contexts were open?"""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.record.kinds import OperationState
from leakscope.record.rows.row import Row, Signed, rare


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
