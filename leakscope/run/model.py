"""The model of a recorded run and its metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leakscope.errors import Unreadable
from leakscope.files import read_json
from leakscope.originals import Path
from leakscope.run.fixes import Fix
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
        TrainingState,
        WorkersRow,
    )


@dataclass(frozen=True)
class Collection:
    """One garbage collection of the program."""

    generation: int
    seconds: float
    collected: int
    """Number of objects freed, according to gc."""
    freed_bytes: Signed | None
    """Decrease of the counted bytes during the collection; None if nothing counts them."""

    @property
    def is_full(self) -> bool:
        """Whether it included CPython's oldest generation, and so all."""
        return self.generation == 2  # noqa: PLR2004 - `gc.collect`'s argument


@dataclass(frozen=True)
class Step:
    """Values of cheap counters at the end of one step."""

    number: int
    """1 for the first step."""
    seconds: float
    """Duration of the step, without heap snapshots."""
    counted_bytes: int | None
    """Bytes allocated: by the accelerator's allocator, or glibc's mallinfo2 on the CPU."""
    peak_bytes: int | None
    """The allocator's peak since the last step, if it keeps one."""
    collections: tuple[Collection, ...] = ()
    counted_on: str = "cpu"
    """Kind of device of the counted bytes: an accelerator from its first use on."""
    began: float | None = None
    """Seconds since the recording began, like the times of comm operations; time between two steps is leakscope's own.
    None in runs of the first versions.
    """
    input_elements: int | None = rare(None)
    """Elements of the tensor arguments of outermost module calls; None if no module was called, or it
    was not recorded.
    """
    new_shapes: int = rare(0)
    """Number of those calls whose module and shapes occurred for the first time."""


@dataclass(frozen=True)
class HeapSnapshot:
    """One heap snapshot."""

    step: int
    """Number of the last finished step; 0 before the first."""
    occasion: Occasion
    heap: HeapGraph
    counted_bytes: int | None
    explained_bytes: int
    """Bytes of all storages found on that kind of device, each counted once."""
    types: Mapping[str, int] = field(default_factory=dict)
    """Number of live objects by type name, for the most frequent types."""
    objects: int = 0
    """Number of live gc-tracked objects."""
    stopped_seconds: float = 0.0
    """Seconds for which the program was paused."""
    seconds: float = 0.0
    """Total seconds of the snapshot."""
    unjudged: tuple[str, ...] = ()
    """What could not be read, one sentence each."""
    peak_bytes: int | None = None
    """The allocator's peak until then, if it keeps one."""
    counted_on: str = "cpu"
    """Kind of device of the counted bytes: `cuda`, ..."""
    containers: tuple[GainingContainer, ...] = ()
    """Containers that gained most non-tensor memory over the snapshots of one process."""
    hides: bool = False
    """Whether some C++ references could not be read: a cut then frees more than the graph shows, and what seems held
    may be garbage.
    """


@dataclass(frozen=True)
class GcDiff:
    """The real gc diff, taken once at the end: what a collection freed."""

    freed_bytes: tuple[Signed, ...]
    """Tensor bytes freed by collecting generations 0, 1, 2 and then 2 until nothing more is freed."""
    collections: int
    """Full collections until nothing more was freed."""
    seconds: tuple[float, ...]
    """Seconds of each collection."""
    predicted_bytes: int
    """Prediction of the last snapshot."""
    after: Occasion | None = rare(None)  # noqa: RUF009 - a field, as `field()` makes one
    """Occasion of the preceding snapshot; None if unknown."""
    freed_storages: tuple[int, ...] = rare(())
    """Indexes in that snapshot's heap of the storages that were freed."""


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    how: EndKind
    status: Signed
    steps: int
    error: str = ""
    """Last line of the traceback, if there was one."""
    stack: tuple[str, ...] = ()
    log: str = ""
    """Path of the rank's log, relative to the run's folder."""
    at: str = rare("")
    """`train.py:12 main`: the user's line that raised the final error, "" if unknown."""
    is_orphan: bool = rare(False)
    """Whether the rank was ended because leakscope's own process was gone."""
    out_of_memory_kills: int = rare(0)
    """Processes that the kernel's out-of-memory killer ended on this machine during the run, if
    SIGKILL ended the rank.
    """


@dataclass(frozen=True)
class Rank:
    """The recording of one rank."""

    number: int
    steps: tuple[Step, ...]
    heap_snapshots: tuple[HeapSnapshot, ...]
    ended: Ended
    gc_diff: GcDiff | None = None
    notes: tuple[str, ...] = ()
    """Notes for the reader: a damaged line, unrecorded processes, no step."""
    damaged: tuple[str, ...] = ()
    """Names of its omitted or incomplete files, as described in the notes."""
    proved: Mapping[str, int | str] = field(default_factory=dict)
    """Fingerprint, mapped to the bytes that a forked cut freed, or to the reason why it was not tried."""
    operations: Sequence[CommOperation] = ()
    """P2P and collective operations in order of issue: all of the first steps, then late ones and those of the last
    steps.
    """
    final_operation: FinalOperation | None = None
    """The last operation, correct even after SIGKILL."""
    final_operation_known: bool = False
    """Whether it was recorded and readable: if it is None then, the rank issued no operation."""
    contexts: tuple[ContextsAtStep, ...] = ()
    """Distributed-autograd contexts after each step at which one was open or had just been closed."""
    lifetimes: tuple[LifetimeRow, ...] = ()
    """Lifetimes of storages of a watched step, or the reason why there are none."""
    device_steps: tuple[DeviceStep, ...] = ()
    """The accelerator's counters at steps."""
    device_blocks: tuple[DeviceBlocks, ...] = ()
    """The accelerator's blocks at heap snapshots."""
    device_failures: tuple[DeviceFailure, ...] = ()
    """Each failed allocation on the device, caught or not."""
    allocation_failures: tuple[AllocationFailure, ...] = ()
    """Allocation failures that ended the script."""
    memory_shortages: tuple[MemoryShortage, ...] = ()
    """Host limits that came near, and snapshots taken because a peer ran out of memory."""
    gc_freezes: tuple[GcFreeze, ...] = ()
    """What gc.freeze() would save, if the gc diff was taken."""
    host_memory: tuple[MemoryThere, ...] = ()
    """Memory limits of the host; empty in runs of the first versions."""
    loader_workers: tuple[WorkersRow, ...] = ()
    """Memory of DataLoader workers; empty without workers and in runs of the first versions."""
    step_sources: tuple[StepsBy, ...] = ()
    """What ended the steps, in order; empty in runs of the first versions."""
    processes: tuple[StartedProcess, ...] = ()
    """Python processes that the script started and that are not recorded."""
    recording_ended: tuple[RecordingEnded, ...] = ()
    """Whether recording ended before the script."""
    counts: tuple[CountsAtStep, ...] = ()
    """Resources other than tensors, at some steps; empty in runs of the first versions."""
    training: tuple[TrainingState, ...] = ()
    """Checksums of the training at each step; empty without the option `checksums`."""
    memory_snapshots: tuple[SnapshotReport, ...] = ()
    """Analyses of the rank's newest allocator snapshots, if `read_run` was told to make them."""

    @property
    def step_source(self) -> StepsBy | None:
        """What ended the judged steps; None if unknown."""
        return self.step_sources[-1] if self.step_sources else None


ROWS = frozenset(
    (
        "operations", "final_operation", "contexts", "lifetimes", "device_steps", "device_blocks", "device_failures",
        "allocation_failures", "memory_shortages", "gc_freezes", "host_memory",
        "loader_workers", "training",
    )
)  # fmt: skip
"""Fields of a rank with rows of its files, which are many and contain text of the run."""


@dataclass(frozen=True)
class InRepository:
    """The place of a script in its repository; paths are relative to the repository's root."""

    folder: str = ""
    """The working directory, `.` for the root itself; "" if it is outside."""
    script: str = ""
    """The script; "" if it is outside, or a module was run."""


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
    """Minimum growth per step of a leak; None if its kind and the available memory decide."""
    horizon: int = 100_000
    """Steps over which growth is projected."""
    options: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Lines of the user's source files, as of the end of the run."""
    source_paths: Mapping[str, str] = field(default_factory=dict)
    """Real paths of these files."""
    heap_reader: str = ""
    """The reader of the heap, `native`, `Python` or both; "" if it was not recorded."""
    notes: tuple[str, ...] = ()
    """Notes about damaged parts of the run, and about ranks that left nothing."""
    started: str = ""
    """UTC date and time, `2026-11-23T04:27:19Z`; "" in runs of the first versions."""
    suppressions: tuple[Suppression, ...] = ()
    """Known findings that do not affect the verdict: those of the baseline, and suppressions."""
    repository: InRepository = InRepository()
    """None in runs of the first versions."""
    made_by: MadeBy = MadeBy.COMMAND
    can_repeat: bool = False
    """Whether the folder has a record of how the run was started, on one machine, which `leakscope fix` needs."""
    fix: Fix | None = None
    """The result of `leakscope fix`; None if it was not run."""

    def __repr__(self) -> str:
        steps = max((len(rank.steps) for rank in self.ranks), default=0)
        snapshots = sum(len(rank.heap_snapshots) for rank in self.ranks)
        counts = ((len(self.ranks), "rank"), (steps, "step"), (snapshots, "snapshot"))
        text = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
        return f"<Run of {' '.join(self.command)[:80]!r}: {text}, {self.device}>"

    def warmup_of(self, rank: Rank) -> int:
        """Count the steps of a rank that are not judged; warm-up restarts when another step signal takes over.

        Args:
            rank: A rank of this run.

        Returns:
            The number of steps.

        """
        return self.warmup + (0 if rank.step_source is None else rank.step_source.since)


RUNS = "leakscope_runs"
"""The folder of runs that were recorded without --output."""
FORMAT = 1
"""Format number of the folder; newer ones are refused."""
MAX_RANKS = 1 << 20
"""Upper bound on the number of ranks. Heuristic."""


def read_header(folder: Path) -> dict[str, Any]:
    """Read `run.json`; raises Unreadable if the folder is not a run, or has a newer format."""
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


_BESIDE = ("warmup", "min_bytes", "horizon")
"""Options that runs of the first versions have beside the others."""


def recorded_options(header: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run, from its `run.json`; none if they are damaged."""
    options = header.get("options")
    beside = {name: header[name] for name in _BESIDE if name in header}
    return {**beside, **options} if isinstance(options, Mapping) else beside


NAME = "about.json"


def is_complete(header: Mapping[str, Any]) -> bool:
    """Whether `run.json` contains the value: it is missing if the launcher was killed."""
    return "sources" in header  # the first versions knew no heap reader


def with_what_ranks_know(folder: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `run.json`, with device, torch, heap reader and source files from the ranks.

    Damaged entries are treated as missing.
    """
    data = dict(header)
    sources: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    readers: set[str] = set()
    for path in sorted(folder.glob(f"rank_*/{NAME}")):
        try:
            about = read_json(path)
            known = {name: str(about[name]) for name in ("device", "torch", "heap_reader")}
            sources.update(about["sources"].items())
            paths.update(about.get("source_paths", {}).items())
        except (Unreadable, AttributeError, KeyError, TypeError):
            continue
        readers.add(known.pop("heap_reader"))
        data = known | data
    return {**data, "heap_reader": " and ".join(sorted(readers)), "sources": sources, "source_paths": paths}
