"""Rows of watched steps and of DataLoader workers."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.run.kinds import Phase, RowTag
from leakscope.run.rows import Row, Signed, rare


class LifetimeRow(Row):
    """One line of what two watched steps said of the second one's peak."""

    FILE = "lifetimes"


@dataclass(frozen=True)
class WatchedStep(LifetimeRow):
    """The step that was watched storage by storage; operations are counted from its beginning."""

    TAG = RowTag.STEP

    step: int
    device: str
    """`cuda:0`, `cpu`: whose memory was watched."""
    operations: int
    start_bytes: int
    """Alive when the step began."""
    peak_bytes: int
    """Alive when most was."""
    peak_operation: Signed
    """The operation after which the peak was reached, -1 where the step makes nothing."""
    peak_at: str
    """The user's line that ran then, "" where none did."""
    peak_phase: Phase
    backward_follows: bool
    """Whether a backward ran after the peak."""
    unseen_bytes: Signed
    """At the peak, of storages that nobody saw being made or used."""
    arguments: tuple[tuple[str, str], ...]
    """(function, argument) of the user's calls that ran at the peak."""
    curve: tuple[tuple[Signed, int], ...]
    """(operation, bytes alive after it) where they are not far below the peak."""
    storages: int
    """How many the step before made and let go."""
    lag_byte_seconds: float
    """Of those storages: bytes times seconds before the first use."""
    use_byte_seconds: float
    """From the first use to the last."""
    drag_byte_seconds: float
    """After the last use."""
    unread: tuple[tuple[int, str], ...] = ()
    """(index in the heap at the peak of a running function or a script's namespace, reference such as `local ckpt`):
    variables that no code of that function or script reads from there on."""


@dataclass(frozen=True)
class UntouchedStorage(LifetimeRow):
    """A storage that was there before the watched step and the one before it, and that no operation of them touched."""

    TAG = RowTag.UNTOUCHED

    storage: int
    """Its index in the heap at the peak."""


@dataclass(frozen=True)
class StorageLife(LifetimeRow):
    """One storage of the watched step."""

    storage: Signed
    """Its index in the heap at the peak, -1 where it is not there."""
    bytes: int
    made_at: str
    """The line, "" where it was made before the watched steps, as `module` and `phase`."""
    module: str
    """Name of the module in whose forward it was made."""
    phase: Phase
    last_use_at: str
    """The line, "" where nothing but its making used it."""
    last_phase: Phase
    drag_byte_seconds: float
    """Bytes times seconds between the last use and the release."""
    last: Signed
    """The operation that used it last; negative ones were before the step."""
    died: Signed
    """The operation after which it was released."""


@dataclass(frozen=True)
class IdleStorage(StorageLife):
    """A storage that was alive at the peak and not used again."""

    TAG = RowTag.IDLE

    one_statement: bool = False
    """The statement that used it last is the one that ran at the peak."""


@dataclass(frozen=True)
class AlikeStorage(StorageLife):
    """A storage that was made and last used where an idle one was."""

    TAG = RowTag.ALIKE


@dataclass(frozen=True)
class DraggedStorage(StorageLife):
    """One of the storages that lay unused for most byte-seconds; operations are counted from the step before."""

    TAG = RowTag.DRAG


@dataclass(frozen=True)
class LifetimesUnjudged(LifetimeRow):
    """No lifetimes of a step, and why."""

    TAG = RowTag.UNJUDGED

    step: int
    why: str


LIFETIME_ROWS = (WatchedStep, UntouchedStorage, IdleStorage, AlikeStorage, DraggedStorage, LifetimesUnjudged)
"""All kinds of rows of `lifetimes.jsonl`."""


class WorkersRow(Row):
    """Of the workers of one of the script's loaders."""

    FILE = "loader_workers"


@dataclass(frozen=True)
class SharedObjects:
    """A large container of Python objects that the parent had when workers were forked from it."""

    written: str
    """`self.samples`, as in the class that has it, or the name of a module's variable."""
    owner: str
    """The class's name, or the module's."""
    type: str
    item: str
    """What most items are: `str`, `dict of str and int`."""
    items: int
    objects: int
    """In it and in the containers in it."""
    bytes: int
    """Of the pages that its objects lie on."""
    where: str = ""
    """`train.py:12`, the line that sets it; "" where the source does not show it."""


@dataclass(frozen=True)
class WorkersStarted(WorkersRow):
    """An iterator over a loader has started its workers; the same loader starts them again, epoch after epoch."""

    TAG = RowTag.STARTED

    step: int
    """The last step that had ended."""
    loader: int
    """Which loader of the script's: those of one line, dataset and number of workers are one."""
    life: int
    """1 for its first iterator."""
    workers: int
    method: str
    """`fork`, `spawn` or `forkserver`."""
    dataset: str
    """Its class's name."""
    started_at: str
    """The user's line: `train.py:41 main`, "" where there is none."""
    prefetch: int | None = None
    """Batches that each worker may be ahead."""
    persistent: bool = False
    pinned: bool = False
    """A thread of the parent's copies each batch into pinned memory."""
    shared: tuple[SharedObjects, ...] = ()


@dataclass(frozen=True)
class WorkerMemory:
    """What one worker took at one moment, in bytes."""

    worker: int
    unique: int
    """Of no other process (USS)."""
    proportional: int
    """PSS."""
    anonymous: int
    """Its own and shared since the fork: grows by what the worker allocates, not by what is copied."""
    mapped: int
    """Those of the unique ones that are of files and shared memory."""
    copied: tuple[int, ...] = rare(())
    """Of each of the `shared` of its start, those that it has a copy of."""


@dataclass(frozen=True)
class WorkersRead(WorkersRow):
    """One reading of all workers of one loader."""

    TAG = RowTag.READ

    step: int
    loader: int
    life: int
    workers: tuple[WorkerMemory, ...]
    sent_bytes: Signed = 0
    """Of batches that wait to be taken, in shared memory."""
    sent: int = 0
    """Pieces of shared memory they lie in: one for each tensor."""
    pinned_bytes: int | None = None
    """Pinned host memory that the parent's tensors have, as in `CountsAtStep`; None where nothing counts it."""
    last: bool = rare(False)
    """The workers are being ended."""


@dataclass(frozen=True)
class GrowingInWorker:
    """A container that a worker has put more into since it was started."""

    written: str
    owner: str
    where: str
    """`train.py:12`, the line that sets it; "" where the source does not show it."""
    type: str
    item: str
    items: int
    """How many it has."""
    gained: int
    """How many of them are new."""
    bytes: int
    """Of the new ones, some measured."""


@dataclass(frozen=True)
class WorkerLook(WorkersRow):
    """What a worker found when it looked at itself, between two batches."""

    TAG = RowTag.INSIDE

    loader: int
    life: int
    worker: int
    batches: int
    """That it had been asked for by then."""
    grown: tuple[GrowingInWorker, ...] = ()


WORKERS_ROWS = (WorkersStarted, WorkersRead, WorkerLook)
"""All kinds of rows of `loader_workers.jsonl`."""
