"""The model of a recorded run and its metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leakscope.errors import Unreadable
from leakscope.files import read_json
from leakscope.originals import Path
from leakscope.run.rows import EndKind, MadeBy, Occasion, Signed, rare
from leakscope.run.suppression import Suppression

if TYPE_CHECKING:
    from leakscope.graph.model import HeapGraph
    from leakscope.memory_snapshot.analysis import SnapshotReport
    from leakscope.run.rows import (
        AllocationFailure,
        CommOperation,
        ContextsAtStep,
        CountsAtStep,
        DeviceBlocks,
        DeviceFailure,
        DeviceStep,
        FinalOperation,
        GainingContainer,
        GcFreeze,
        LifetimeRow,
        MemoryShortage,
        MemoryThere,
        RecordingEnded,
        StartedProcess,
        StepsBy,
        WorkersRow,
    )


@dataclass(frozen=True)
class Collection:
    """One garbage collection that the program itself had."""

    generation: int
    seconds: float
    collected: int
    """Objects that gc says it freed."""
    freed_bytes: Signed | None
    """Fall of the counted bytes across the collection; None where nothing counts them."""

    @property
    def is_full(self) -> bool:
        """Whether it took in CPython's oldest generation, and so all."""
        return self.generation == 2  # noqa: PLR2004 - `gc.collect`'s argument


@dataclass(frozen=True)
class Step:
    """What O(1) counters said at the end of one step."""

    number: int
    """1 for the first step."""
    seconds: float
    """Length of the step, looks not included."""
    counted_bytes: int | None
    """Bytes the allocator has out: the accelerator's, or glibc's mallinfo2 on CPU."""
    peak_bytes: int | None
    """The allocator's peak since the last step, where it keeps one."""
    collections: tuple[Collection, ...] = ()
    counted_on: str = "cpu"
    """Kind of the device that the counted bytes are of: an accelerator's from its first use on."""
    began: float | None = None
    """Seconds since the recording began, as the moments of comm operations; what lies between the end of a step and
    the beginning of the next is leakscope's own. None in runs of the first versions."""
    input_elements: int | None = rare(None)
    """Elements of the tensor arguments of the outermost calls of modules in it; None where no module was called, or
    that was not seen.
    """
    new_shapes: int = rare(0)
    """Of those calls, how many had a module and shapes that no call before had."""


@dataclass(frozen=True)
class Look:
    """One inspection of the live process."""

    step: int
    """Number of the step just finished; 0 before the first."""
    occasion: Occasion
    heap: HeapGraph
    counted_bytes: int | None
    explained_bytes: int
    """Bytes of all storages found on that kind of device, each counted once."""
    types: Mapping[str, int] = field(default_factory=dict)
    """Live objects by type name, the most frequent ones."""
    objects: int = 0
    """gc-tracked objects alive."""
    stopped_seconds: float = 0.0
    """How long the program stood still."""
    seconds: float = 0.0
    """What the look cost in all."""
    unjudged: tuple[str, ...] = ()
    """What could not be read, each a sentence."""
    peak_bytes: int | None = None
    """The allocator's peak until then, where it keeps one."""
    counted_on: str = "cpu"
    """Kind of the device that the counted bytes are of: `cuda`, ..."""
    containers: tuple[GainingContainer, ...] = ()
    """Those that have gained most of what is no tensor's, over the looks of one process."""
    hides: bool = False
    """Not all that C++ holds could be read: a cut frees more than the graph says, and what is held may be garbage."""


@dataclass(frozen=True)
class GcDiff:
    """The real gc diff, taken once when all is on disk: what collecting freed."""

    freed_bytes: tuple[Signed, ...]
    """Tensor bytes freed by collecting generation 0, then 1, then 2, then 2 again to the fixed point."""
    collections: int
    """Full collections until nothing more went."""
    seconds: tuple[float, ...]
    """Time of each collection."""
    predicted_bytes: int
    """What the last look said gc would free."""
    after: Occasion | None = rare(None)  # noqa: RUF009 - a field, as `field()` makes one
    """Occasion of the look that it came after; None where that is not known."""
    freed_storages: tuple[int, ...] = rare(())
    """Indexes in that look's heap of the storages that went free."""


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    how: EndKind
    status: Signed
    steps: int
    error: str = ""
    """Last line of the traceback, where there was one."""
    stack: tuple[str, ...] = ()
    log: str = ""
    """Path of the rank's log, relative to the run's folder."""
    at: str = rare("")
    """`train.py:12 main`: the user's line at which the error that ended it was raised, "" where that is not known."""
    is_orphan: bool = rare(False)
    """Leakscope's own process was gone, and the rank ended with it."""
    out_of_memory_kills: int = rare(0)
    """Processes that the system's out-of-memory killer ended on this machine during the run, where SIGKILL ended it."""


@dataclass(frozen=True)
class Rank:
    """Everything recorded of one rank."""

    number: int
    steps: tuple[Step, ...]
    looks: tuple[Look, ...]
    ended: Ended
    gc_diff: GcDiff | None = None
    notes: tuple[str, ...] = ()
    """What the reader should know: a dropped line, processes not seen, no step."""
    damaged: tuple[str, ...] = ()
    """Names of its files that are left out or have lost parts, as the notes say."""
    proved: Mapping[str, int | str] = field(default_factory=dict)
    """Fingerprint to the bytes a forked cut really freed, or to the reason why it was not tried."""
    operations: Sequence[CommOperation] = ()
    """P2P and collective operations in the order of issue: of the first steps all, then the late and the last ones."""
    final_operation: FinalOperation | None = None
    """What it did last, right even after SIGKILL."""
    final_operation_known: bool = False
    """Whether that was written and could be read: where it is None then, the rank issued no operation."""
    contexts: tuple[ContextsAtStep, ...] = ()
    """Distributed-autograd contexts, for each step after which one was open or had just been closed."""
    lifetimes: tuple[LifetimeRow, ...] = ()
    """Of the storages of a watched step, or why they were not watched."""
    device_steps: tuple[DeviceStep, ...] = ()
    """The accelerator's counters at steps."""
    device_blocks: tuple[DeviceBlocks, ...] = ()
    """The accelerator's blocks at looks."""
    device_failures: tuple[DeviceFailure, ...] = ()
    """Each time the device's memory ran out, caught or not."""
    allocation_failures: tuple[AllocationFailure, ...] = ()
    """Those that ended the script."""
    memory_shortages: tuple[MemoryShortage, ...] = ()
    """Limits of the host that came near, and looks taken because a peer ran out of memory."""
    gc_freezes: tuple[GcFreeze, ...] = ()
    """What gc.freeze() would save, where the gc diff was taken."""
    host_memory: tuple[MemoryThere, ...] = ()
    """What the host lets it have; none in runs of the first versions."""
    loader_workers: tuple[WorkersRow, ...] = ()
    """What the workers of its data loaders took; none where it has none, and in runs of the first versions."""
    clocks: tuple[StepsBy, ...] = ()
    """What ended the steps, one after the other; none in runs of the first versions."""
    processes: tuple[StartedProcess, ...] = ()
    """Python processes that the script started and that are not seen."""
    recording_ended: tuple[RecordingEnded, ...] = ()
    """Where that was before the script had ended."""
    counts: tuple[CountsAtStep, ...] = ()
    """What it had beside tensors, at some of its steps; none in runs of the first versions."""
    snapshots: tuple[SnapshotReport, ...] = ()
    """What the rank's newest allocator snapshots say, where `read_run` was asked for them."""

    @property
    def clock(self) -> StepsBy | None:
        """What ended the steps that are judged; None where that is not known."""
        return self.clocks[-1] if self.clocks else None


ROWS = frozenset(
    (
        "operations", "final_operation", "contexts", "lifetimes", "device_steps", "device_blocks", "device_failures",
        "allocation_failures", "memory_shortages", "gc_freezes", "host_memory",
        "loader_workers",
    )
)  # fmt: skip
"""Fields of a rank that hold rows of its files: many, and their text is as the run wrote it."""


@dataclass(frozen=True)
class InRepository:
    """Where in its repository a script was run; paths from the repository's root."""

    folder: str = ""
    """The working folder, `.` for the root itself; "" where it is in none."""
    script: str = ""
    """The script; "" where it is in none, or a module was run."""


@dataclass(frozen=True, repr=False)
class Run:
    """A recorded run: one script on one or more ranks.

    >>> from pathlib import Path
    >>> import leakscope
    >>> run = leakscope.read_run(Path("sample_runs/p2p_pipeline/none"))
    >>> run.expected_ranks, run.device, [rank.number for rank in run.ranks]
    (2, 'cpu', [0, 1])
    """

    command: tuple[str, ...]
    ranks: tuple[Rank, ...]
    expected_ranks: int
    device: str
    torch: str
    leakscope: str
    folder: str = ""
    warmup: int = 2
    min_bytes: int | None = None
    """Growth a step below which a finding is a note; None where its kind and the memory there is decide."""
    horizon: int = 100_000
    """Steps over which growth is projected."""
    options: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Lines of the user's own source files, as they were when the run ended."""
    heap_reader: str = ""
    """Which reader of the heap served the ranks, `native` or `Python`, or both; empty where it was not recorded."""
    notes: tuple[str, ...] = ()
    """What of the run itself is damaged and left out, or of ranks that left nothing."""
    started: str = ""
    """UTC date and time, `2026-11-23T04:27:19Z`; "" in runs of the first versions."""
    suppressions: tuple[Suppression, ...] = ()
    """What is known of it already and decides no verdict: its baseline's findings, and suppressions."""
    repository: InRepository = InRepository()
    """Nothing in runs of the first versions."""
    made_by: MadeBy = MadeBy.COMMAND

    def __repr__(self) -> str:
        steps = max((len(rank.steps) for rank in self.ranks), default=0)
        looks = sum(len(rank.looks) for rank in self.ranks)
        counts = ((len(self.ranks), "rank"), (steps, "step"), (looks, "look"))
        told = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
        return f"<Run of {' '.join(self.command)[:80]!r}: {told}, {self.device}>"

    def warmup_of(self, rank: Rank) -> int:
        """Count the steps of a rank that are not judged; warm-up restarts when another step signal takes over.

        Args:
            rank: A rank of this run.

        Returns:
            The number of steps.

        """
        return self.warmup + (0 if rank.clock is None else rank.clock.since)


FORMAT = 1
"""Number of the folder's format; a newer one is refused."""
MOST_RANKS = 1 << 20
"""More than any job has; chosen."""


def read_header(folder: Path) -> dict[str, Any]:
    """What `run.json` says; raises Unreadable where the folder is no run, or one of a newer format."""
    try:
        data = read_json(folder / "run.json")
    except Unreadable as error:
        raise Unreadable(f"{folder} is not a leakscope run: it has no readable run.json ({error})") from None
    if not isinstance(data, dict) or type(data.get("format")) is not int:
        raise Unreadable(f"{folder} is not a leakscope run: run.json names no format")
    if data["format"] > FORMAT:
        raise Unreadable(
            f"{folder} was recorded by a newer leakscope (format {str(data['format'])[:20]}, this one reads up to "
            f"{FORMAT}); upgrade leakscope"
        )
    return data


NAME = "about.json"


def is_told(header: Mapping[str, Any]) -> bool:
    """Whether `run.json` has it: a launcher that was killed has not come to that."""
    return "sources" in header  # the first versions knew no heap reader


def with_what_ranks_know(folder: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """What `run.json` says, with device, torch, heap reader and source files as the ranks have told them.

    What is damaged counts as not written.
    """
    data = dict(header)
    sources: dict[str, Any] = {}
    readers: set[str] = set()
    for path in sorted(folder.glob(f"rank_*/{NAME}")):
        try:
            about = read_json(path)
            told = {name: str(about[name]) for name in ("device", "torch", "heap_reader")}
            sources.update(about["sources"].items())
        except (Unreadable, AttributeError, KeyError, TypeError):
            continue
        readers.add(told.pop("heap_reader"))
        data = told | data
    return {**data, "heap_reader": " and ".join(sorted(readers)), "sources": sources}
