"""Reads a run's folder: ranks, rows and heap snapshots, the latter when they are needed."""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.files import read_json, read_regular
from leakscope.graph.model import HeapGraph
from leakscope.graph.serialize import from_json as heap_from_json
from leakscope.graph.serialize import is_same
from leakscope.originals import Path, os, signal
from leakscope.run.damage import Damage, is_there
from leakscope.run.fixes import NAME as FIX
from leakscope.run.fixes import Fix
from leakscope.run.live import is_recording, running
from leakscope.run.model import (
    MAX_RANKS,
    Ended,
    GcDiff,
    HeapSnapshot,
    InRepository,
    Rank,
    Run,
    Step,
    is_complete,
    read_header,
    recorded_options,
    with_what_ranks_know,
)
from leakscope.run.multi_node import ranks_elsewhere
from leakscope.run.operations import NAME as LAST_OPERATION
from leakscope.run.operations import read_operations, unpack
from leakscope.run.rank_end import ended_file, lost, no_word, rank_name, ranks_in
from leakscope.run.rows import (
    LARGEST,
    LIFETIME_ROWS,
    LONGEST,
    SHORTAGE_ROWS,
    WORKERS_ROWS,
    AllocationFailure,
    ContextsAtStep,
    CountsAtStep,
    DeviceBlocks,
    DeviceFailure,
    DeviceStep,
    EndKind,
    FinalOperation,
    GainingContainer,
    GcFreeze,
    LifetimeRow,
    MadeBy,
    MemoryThere,
    Occasion,
    RecordingEnded,
    Row,
    StartedProcess,
    StepsBy,
    StorageLife,
    TrainingState,
    UntouchedStorage,
    WatchedStep,
    from_json,
    from_line,
)
from leakscope.run.suppression import NAME as SUPPRESSIONS
from leakscope.run.suppression import kept_suppressions
from leakscope.run.writer import heap_file_name
from leakscope.units import ranks_text

if TYPE_CHECKING:
    from leakscope.memory_snapshot.analysis import SnapshotReport


_TYPES = {"HeapGraph": HeapGraph, "GainingContainer": GainingContainer}


def read_heap_snapshots(folder: Path, damage: Damage) -> tuple[HeapSnapshot, ...]:
    """Read the heap snapshots of a rank in order; damaged ones are omitted."""
    snapshots: list[HeapSnapshot] = []
    for path in sorted(folder.glob("heap_*.json")):
        snapshot = damage.read(path, partial(_read_heap_snapshot, path.name), None)
        if snapshot is not None:
            # what is worked out of a heap is worked out once for all snapshots with equal heaps
            same = (other.heap for other in snapshots if is_same(other.heap, snapshot.heap))
            snapshots.append(replace(snapshot, heap=next(same, snapshot.heap)))
    return tuple(sorted(snapshots, key=lambda snapshot: (snapshot.step, snapshot.occasion != Occasion.STEP)))


def _read_heap_snapshot(name: str, data: Any) -> HeapSnapshot:
    if not isinstance(data, Mapping):
        raise ValueError("it contains no heap snapshot")
    snapshot = from_json(HeapSnapshot, {**data, "heap": heap_from_json(data.get("heap"))}, _TYPES)
    if heap_file_name(snapshot) != name:
        raise ValueError(f"it is of step {snapshot.step} ({snapshot.occasion})")
    outside = [row.container for row in snapshot.containers if row.container >= len(snapshot.heap)]
    if outside:
        raise ValueError(f"object {outside[0]} is out of range ({len(snapshot.heap)} objects)")
    return snapshot


def blocks_that_fit(
    rows: Iterable[DeviceBlocks], snapshots: Sequence[HeapSnapshot], damage: Damage
) -> tuple[DeviceBlocks, ...]:
    """The rows whose columns have equal lengths and valid indexes."""
    lengths = {(snapshot.step, snapshot.occasion): len(snapshot.heap) for snapshot in snapshots}
    fitting = []
    for row in rows:
        why = _misfit(row, lengths.get((row.step, row.occasion)))
        if why:
            damage.of_part(f"{row.FILE}.jsonl", f"the row of step {row.step}", why)
        else:
            fitting.append(row)
    return tuple(fitting)


def _misfit(row: DeviceBlocks, objects: int | None) -> str:
    """Why the columns of a row, or a heap of this many objects, do not match; "" if they do."""
    count = len(row.bytes)
    for name, column in (("storage", row.storage), ("device", row.device), ("made_at", row.made_at)):
        if len(column) != count:
            return f"{name} has {len(column)} rows, bytes {count}"
    most = (
        ("storage", row.storage, objects),
        ("pending", row.pending, count),
        ("made_at", row.made_at, len(row.sites)),
    )
    for name, column, end in most:
        if end is not None and max(column, default=-1) >= end:
            return f"{name} has index {max(column)}, out of range ({end})"
    return ""


def lifetimes_that_fit(
    rows: Sequence[LifetimeRow], snapshots: Sequence[HeapSnapshot], damage: Damage
) -> tuple[LifetimeRow, ...]:
    """The rows with valid indexes into the heap at the peak."""
    counts = [len(snapshot.heap) for snapshot in snapshots if snapshot.occasion == Occasion.PEAK]
    fitting = tuple(row for row in rows if not counts or _highest(row) < min(counts))
    if len(fitting) < len(rows):
        part = f"a part ({len(rows) - len(fitting)} rows)"
        damage.of_part(f"{LifetimeRow.FILE}.jsonl", part, f"the heap at the peak has {min(counts)} objects")
    return fitting


def _highest(row: LifetimeRow) -> int:
    """The highest index into the heap at the peak in a row, -1 for none."""
    if isinstance(row, UntouchedStorage | StorageLife):
        return row.storage
    return max((place for place, _ in row.unread), default=-1) if isinstance(row, WatchedStep) else -1


R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class _Noted:
    """One line of `notes.jsonl`."""

    note: str


@dataclass(frozen=True)
class _Proved:
    """`proved.json` as a field."""

    proved: dict[str, int | str]


def read_rank(path: Path, number: int, snapshots: bool, may_run: bool = False) -> Rank:
    """Read the rank with this folder, with its newest allocator snapshots analysed on request; `may_run` if it may
    still be running.
    """
    runs = may_run and not is_there(ended_file(path)) and is_recording(path)
    damage = Damage(grows=runs)
    steps = _steps(path, damage)
    noted = tuple(damage.each(path / "notes.jsonl", lambda line: from_json(_Noted, line).note))
    heap_snapshots = read_heap_snapshots(path, damage)
    rows = read_rows(path, damage)
    rows["lifetimes"] = lifetimes_that_fit(rows["lifetimes"], heap_snapshots, damage)
    rows["device_blocks"] = blocks_that_fit(rows["device_blocks"], heap_snapshots, damage)
    final, final_known = _final_operation(path, damage)
    analysed: tuple[SnapshotReport, ...] = ()
    problems: tuple[str, ...] = ()
    if snapshots:
        from leakscope.memory_snapshot.verdict import snapshots_in

        analysed, problems = snapshots_in(path, number)
    rank = Rank(
        number=number,
        steps=steps,
        heap_snapshots=heap_snapshots,
        ended=damage.read(ended_file(path), lambda data: from_json(Ended, data), None)
        or (running(path, len(steps)) if runs else no_word(path, len(steps))),
        gc_diff=damage.read(path / "gc_diff.json", lambda data: from_json(GcDiff, data), None),
        proved=damage.read(path / "proved.json", lambda data: from_json(_Proved, {"proved": data}).proved, {}),
        final_operation=final,
        final_operation_known=final_known,
        memory_snapshots=analysed,
        **rows,
    )
    return replace(rank, notes=(*noted, *damage.notes(), *problems), damaged=damage.files())


def read_rows(path: Path, damage: Damage) -> dict[str, Any]:
    """Read the fields of a rank with rows of its files."""

    def rows(*kinds: type[R]) -> tuple[R, ...]:
        file = path / f"{kinds[0].FILE}.jsonl"
        read: Iterator[R | None] = damage.each(file, lambda line: from_line(kinds, line))
        return tuple(row for row in read if row is not None)

    return {
        "operations": read_operations(path, damage),
        "contexts": rows(ContextsAtStep),
        "lifetimes": rows(*LIFETIME_ROWS),
        "device_steps": rows(DeviceStep),
        "device_blocks": rows(DeviceBlocks),
        "device_failures": rows(DeviceFailure),
        "allocation_failures": rows(AllocationFailure),
        "memory_shortages": rows(*SHORTAGE_ROWS),
        "gc_freezes": rows(GcFreeze),
        "host_memory": rows(MemoryThere),
        "loader_workers": rows(*WORKERS_ROWS),
        "step_sources": rows(StepsBy),
        "processes": rows(StartedProcess),
        "recording_ended": rows(RecordingEnded),
        "counts": rows(CountsAtStep),
        "training": rows(TrainingState),
    }


def _steps(path: Path, damage: Damage) -> tuple[Step, ...]:
    """Steps with ascending numbers: each number occurs once."""
    last = 0

    def read(line: Any) -> Step:
        nonlocal last
        step = from_json(Step, line)
        if step.number <= last:
            raise ValueError(f"step {step.number} does not follow step {last}")
        last = step.number
        return step

    return tuple(damage.each(path / "steps.jsonl", read))


def _final_operation(path: Path, damage: Damage) -> tuple[FinalOperation | None, bool]:
    """The rank's last operation, and whether its file was readable: if it contains none, there was none."""
    file = path / LAST_OPERATION
    if not is_there(file):
        return None, False
    try:
        return unpack(read_regular(file)), True
    except (ValueError, Unreadable) as error:
        damage.note(f"the rank's last communication operation is unknown: {error}")
        return None, False


MAX_ANALYSED = 16
"""Maximum ranks whose allocator snapshots a report analyses; `leakscope snapshot` reads all."""
_MAX_LOST = 64
"""Maximum missing ranks listed one by one. Heuristic."""
_LONGEST_SOURCE = 1 << 22
"""Maximum characters of a source file that is shown. Heuristic."""
_RUN = "run.json"


def read_run(folder: Path, snapshots: bool = False) -> Run:
    """Read a recorded run.

    A damaged file of a rank is skipped, as are damaged lines, and listed in the notes of the rank. Links are followed;
    only regular files are opened.

    Args:
        folder: Folder of the run, as given with `--output`; it contains `run.json`.
        snapshots: Also analyze the memory snapshots in it, about one second each.

    Returns:
        The run, with all ranks.

    Raises:
        Unreadable: The folder is not a run, `run.json` cannot be read, or its format is newer.

    >>> from pathlib import Path
    >>> import leakscope
    >>> run = leakscope.read_run(Path("sample_runs/p2p_pipeline/none"))
    >>> len(run.ranks), len(run.ranks[0].steps), str(run.ranks[0].ended.how)
    (2, 12, 'stopped')

    """
    opened = open_run(folder, snapshots)
    return opened.with_ranks(map(opened.rank, opened.numbers))


@dataclass(frozen=True)
class OpenRun:
    """A run of which everything except the ranks has been read."""

    folder: Path
    run: Run
    """The run without its ranks."""
    numbers: tuple[int, ...]
    """Numbers of the ranks with a folder."""
    lost: tuple[Rank, ...]
    """Ranks that left nothing, as far as they are listed one by one."""
    snapshots: bool
    """Whether allocator snapshots are analysed."""
    launcher_ended: bool
    """Whether leakscope's own process ended normally."""

    def rank(self, number: int) -> Rank:
        """Read one rank."""
        analysed = self.snapshots and number in self.numbers[:MAX_ANALYSED]
        return self._with_notes(read_rank(self.folder / rank_name(number), number, analysed, not self.launcher_ended))

    def with_ranks(self, ranks: Iterable[Rank]) -> Run:
        """The run with these ranks, and with those that left nothing."""
        every = (*ranks, *map(self._with_notes, self.lost))
        return replace(self.run, ranks=tuple(sorted(every, key=lambda rank: rank.number)))

    def _with_notes(self, rank: Rank) -> Rank:
        if self.launcher_ended or rank.ended.how != EndKind.LOST:
            return rank
        return replace(rank, ended=replace(rank.ended, is_orphan=True))


def open_run(folder: Path, snapshots: bool = False) -> OpenRun:
    """Open a run for reading its ranks one by one; arguments and errors are those of `read_run`."""
    data = read_header(folder)
    launcher_ended = is_complete(data)
    if not launcher_ended:
        data = with_what_ranks_know(folder, data)
    damage = Damage()
    header = _header(data, damage)
    numbers = _numbers(folder)
    expected = _expected(header.ranks, numbers, damage)
    elsewhere = ranks_elsewhere(folder, data, expected, numbers)
    if elsewhere:
        damage.note(
            f"{ranks_text(elsewhere)} ran on other machines and recorded nothing in this folder: leakscope merge "
            "combines the folders of several machines and judges all ranks"
        )
    lost = _lost(expected, [*numbers, *elsewhere], damage)
    run = Run(
        command=header.command,
        ranks=(),
        expected_ranks=expected,
        device=header.device,
        torch=header.torch,
        leakscope=header.leakscope,
        heap_reader=header.heap_reader,
        folder=str(folder),
        warmup=header.warmup,
        min_bytes=header.min_bytes,
        horizon=header.horizon,
        options=dict(_options(data.get("options", {}), damage)),
        sources=dict(_sources(data.get("sources", {}), damage)),
        source_paths=_paths(data.get("source_paths", {}), damage),
        started=header.started,
        suppressions=damage.read(folder / SUPPRESSIONS, kept_suppressions, ()),
        repository=header.repository,
        made_by=header.made_by,
        can_repeat=_can_repeat(data.get("launch")),
        fix=damage.read(folder / FIX, lambda content: from_json(Fix, content), None),
        notes=damage.notes(),
    )
    return OpenRun(folder, run, tuple(numbers), tuple(lost), snapshots, launcher_ended)


@dataclass(frozen=True)
class _Header:
    """The content of `run.json`, with defaults."""

    command: tuple[str, ...] = ()
    ranks: int | None = None
    device: str = "cpu"
    torch: str = ""
    leakscope: str = ""
    heap_reader: str = ""
    warmup: int = Run.warmup
    min_bytes: int | None = Run.min_bytes
    horizon: int = Run.horizon
    started: str = ""
    repository: InRepository = Run.repository
    made_by: MadeBy = Run.made_by


_IN_HEADER = tuple(field.name for field in fields(_Header))
"""Names of `run.json`, or of its options, that have a field of their own."""


def _header(data: Mapping[str, Any], damage: Damage) -> _Header:
    header, data = _Header(), {**recorded_options(data), **data}
    for name in _IN_HEADER:
        try:
            if name in data:
                header = replace(header, **{name: getattr(from_json(_Header, {name: data[name]}), name)})
            elif name in ("command", "ranks"):
                raise ValueError("it is missing")
        except ValueError as error:
            damage.of_part(_RUN, name, error)
    return header


def _options(options: Any, damage: Damage) -> Iterator[tuple[str, object]]:
    if not isinstance(options, dict):
        damage.of_part(_RUN, "options", "not a JSON object")
        return
    for name, value in options.items():
        if name in _IN_HEADER:
            continue
        number = isinstance(value, int | float) and math.isfinite(value) and abs(value) <= LARGEST
        if value is None or number or (isinstance(value, str) and len(value) <= LONGEST):
            yield name, value
        else:
            damage.of_part(_RUN, f"option {name[:40]!r}", "not a valid value")


def _can_repeat(launch: Any) -> bool:
    """Whether the start of the run was recorded, and it had one machine."""
    try:
        return int(launch["options"]["nnodes"]) == 1
    except (TypeError, KeyError, ValueError):
        return False


def _paths(paths: Any, damage: Damage) -> dict[str, str]:
    if isinstance(paths, dict) and set(map(type, paths.values())) <= {str}:
        return paths
    damage.of_part(_RUN, "source_paths", "not a JSON object of paths")
    return {}


def _sources(sources: Any, damage: Damage) -> Iterator[tuple[str, tuple[str, ...]]]:
    if not isinstance(sources, dict):
        damage.of_part(_RUN, "sources", "not a JSON object")
        return
    for name, lines in sources.items():
        if not isinstance(lines, list) or not set(map(type, lines)) <= {str}:
            damage.of_part(_RUN, f"source {name[:80]!r}", "not a list of lines")
        elif sum(map(len, lines)) > _LONGEST_SOURCE or len(name) > LONGEST:
            damage.of_part(_RUN, f"source {name[:80]!r}", f"it is longer than {_LONGEST_SOURCE} characters")
        else:
            yield name, tuple(lines)


def _numbers(folder: Path) -> list[int]:
    try:
        return ranks_in(folder)
    except OSError as error:
        raise Unreadable(f"{folder} cannot be read ({error.strerror})") from None


def _expected(given: int | None, numbers: Sequence[int], damage: Damage) -> int:
    """Number of ranks of the run; that of the folders if `run.json` has none or an impossible one."""
    if given is not None and 1 <= given <= MAX_RANKS:
        return given
    if given is not None:
        damage.of_part(_RUN, "ranks", f"{given} is out of range; there are {len(numbers)} folders")
    return max(len(numbers), 1)


def _lost(expected: int, numbers: Sequence[int], damage: Damage) -> list[Rank]:
    """The ranks that left nothing: the first as ranks, all others in a note."""
    there = set(numbers)
    missing = [number for number in range(expected) if number not in there]
    if others := missing[_MAX_LOST:]:
        damage.note(f"nothing was recorded for {ranks_text(others)}")
    for number in [number for number in numbers if number >= expected][:1]:
        damage.note(f"rank {number} has a folder, but run.json lists {expected} ranks")
    return [Rank(n, (), (), lost(), notes=("nothing was recorded for this rank",)) for n in missing[:_MAX_LOST]]


_COLUMNS = frozenset(field.name for field in fields(HeapGraph))


class LazyHeapGraph(HeapGraph):
    """A heap graph that is read from its file on first use and kept.

    Access raises Unreadable if the file is gone or has changed.
    """

    def __init__(self, file: Path) -> None:
        self.__dict__["_file"] = file

    def __getattr__(self, name: str) -> Any:
        if name not in _COLUMNS:
            raise AttributeError(name)
        file: Path = self.__dict__["_file"]
        try:
            self.__dict__.update(vars(heap_from_json(read_json(file)["heap"])))
        except (Unreadable, ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"{file} can no longer be read: {error}") from None
        return self.__dict__[name]


def without_heaps(rank: Rank, folder: Path) -> Rank:
    """A rank read from a folder, with heaps that are read again on demand."""
    snapshots = tuple(
        replace(snapshot, heap=LazyHeapGraph(folder / heap_file_name(snapshot))) for snapshot in rank.heap_snapshots
    )
    return replace(rank, heap_snapshots=snapshots)


T = TypeVar("T")
Work = Callable[[Run, Rank], T]
"""Function of a run without its ranks and one rank; a module function with a picklable result."""

RANKS_A_PROCESS = 4
"""Ranks for which another process pays off. Heuristic: reading and judging one took 40 ms, starting a process 30 ms."""
MAX_PROCESSES = 8
"""Maximum processes. Heuristic: each has the heaps of one rank in memory."""
_PR_SET_PDEATHSIG = 1
"""Option of prctl(2), from linux/prctl.h: the signal that a process receives when its parent ends."""


def read_each(opened: OpenRun, work: Work[T], processes: int | None = None) -> tuple[Run, tuple[T, ...]]:
    """Return the run, with heaps that are read again on demand, and the result of `work` for each rank.

    Each rank is read once, and the results do not depend on the number of processes.

    Args:
        opened: The run's folder.
        work: Called for each rank while its heaps are in memory.
        processes: Number of reading processes; None for as many as pay off, 1 for this one alone.

    Raises:
        LeakscopeError: A reading process was killed.

    """
    count = processes_for(len(opened.numbers)) if processes is None else processes
    with closing(_in_turn(opened, work) if count <= 1 else _in_processes(opened, work, count)) as answers:
        found = {rank.number: (rank, answer) for rank, answer in answers}
    run = opened.with_ranks(rank for rank, _ in found.values())
    return run, tuple(found[r.number][1] if r.number in found else work(opened.run, r) for r in run.ranks)


def processes_for(ranks: int) -> int:
    """Number of processes for this many ranks; 1, this one, if it must not be forked because of
    threads or the system.
    """
    if threading.active_count() > 1 or ranks < 2 * RANKS_A_PROCESS or sys.platform != "linux":
        return 1
    return min(len(os.sched_getaffinity(0)), ranks // RANKS_A_PROCESS, MAX_PROCESSES)


def _in_turn(opened: OpenRun, work: Work[T]) -> Generator[tuple[Rank, T]]:
    for number in opened.numbers:
        yield _read(opened, work, number)


def _read(opened: OpenRun, work: Work[T], number: int) -> tuple[Rank, T]:
    rank = opened.rank(number)
    answer = work(opened.run, rank)
    return without_heaps(rank, opened.folder / rank_name(number)), answer


def _in_processes(opened: OpenRun, work: Work[T], count: int) -> Generator[tuple[Rank, T]]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # forked, so that they need not import numpy again: there is no other thread that could hold a lock
    pool = ProcessPoolExecutor(count, get_context("fork"), _begin, (opened, work, os.getpid()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Python 3.12 counts the threads of OpenBLAS, which wait
            answers = pool.map(_read_here, opened.numbers)
        yield from answers
    except BrokenProcessPool:
        raise LeakscopeError(
            "a process that read the ranks was killed, most likely because memory ran out; "
            "try a machine with more memory"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_given: list[tuple[OpenRun, Work[Any]]] = []
"""In a reading process, the run and the function to apply."""


def _begin(opened: OpenRun, work: Work[Any], parent: int) -> None:
    """Initialise a new process, which ends with its parent, and silently at Ctrl-C."""
    _given.append((opened, work))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with suppress(Exception):  # no ctypes: then it ends when it has read its rank
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before this was set
        os._exit(1)


def _read_here(number: int) -> tuple[Rank, Any]:
    (opened, work) = _given[0]
    return _read(opened, work, number)
