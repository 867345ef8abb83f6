"""What did the workers of a DataLoader take? The kernel's figures, read by their parent and by the workers."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.record.kinds import RowTag
from leakscope.record.rows.row import Row, Signed, rare


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
