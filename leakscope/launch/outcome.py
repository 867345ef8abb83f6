"""How each rank ended, and which failed first."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from leakscope.options import Options
from leakscope.run.descriptors import UNFINISHED
from leakscope.run.model import Ended, read_header, with_what_ranks_know
from leakscope.run.multi_node import ranks_elsewhere
from leakscope.run.processes import MAIN, RankAssignment, assign_ranks
from leakscope.run.rank_end import ended_file, ranks_in, read_ends, read_stack
from leakscope.run.rows import EndKind, to_json
from leakscope.run.writer import make_private, write_json, write_run

LAUNCHER = -1
"""Used as a rank number for the launcher itself, when a signal ended it."""
_SIGNALLED = 128
"""Exit status for signal 0, as in shells: 137 is SIGKILL, 9."""
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "socket",
    "timed out waiting",
    "remote process has exited",
    "peer closed",
    "store is no longer",
)
"""Error texts of a rank whose peer went away first, from gloo, NCCL, TensorPipe and TCPStore."""


@dataclass(frozen=True)
class Outcome:
    """How a launch ended."""

    status: int
    """Status of the earliest failing rank, 128 + signal for a killed one, 0 if none failed."""
    failed: int | None = None
    """The failing rank."""
    error: str = ""
    log: str = ""
    """Its log, relative to the run's folder."""
    unwritable: str = ""
    """Why not all of it could be written into the run's folder: `No space left on device`."""


def collect_outcome(
    folder: Path, codes: Mapping[int, int], only: int | None = None, oom_kills: int = 0, read_only: bool = False
) -> Outcome:
    """Complete what the ranks wrote: ends of silent ranks, logs, common metadata.

    `codes` has the status of each rank from the operating system, negative for a signal. With `only` no other rank
    counts as failed. `oom_kills` is the number of processes that the kernel killed for lack of memory meanwhile.

    Raises OSError if the folder cannot be written; with `read_only` nothing is written.
    """
    interrupted = codes.get(LAUNCHER)
    header = read_header(folder)
    expected = int(header["ranks"])
    elsewhere = set(ranks_elsewhere(folder, header, expected, ranks_in(folder)))
    times = _end_times(folder, expected)
    failures: list[tuple[bool, float, int, Ended]] = []
    for rank, written, steps in read_ends(folder, expected):
        if rank in elsewhere:
            continue
        code = codes.get(rank, interrupted if written.how == EndKind.LOST else None)
        ended = _true_end(written, code, steps)
        log = f"logs/rank_{rank:04d}.stderr.log"
        path = folder / f"rank_{rank:04d}"
        stack = ended.stack or (read_stack(path / "stack.txt") if ended.status else ())
        kills = oom_kills if (ended.how, ended.status) == (EndKind.KILLED, _SIGNALLED + signal.SIGKILL) else 0
        ended = replace(ended, log=log if (folder / log).exists() else "", stack=stack, out_of_memory_kills=kills)
        if ended != written and not read_only:
            make_private(path)
            write_json(ended_file(path), to_json(ended))
        if ended.status and ended.how != EndKind.LOST and only in (None, rank):
            failures.append((is_secondary_failure(ended), times[rank] or time.time(), rank, ended))
    if not read_only:
        merge_run_metadata(folder)
    if interrupted is not None:
        return Outcome(_SIGNALLED - interrupted, error=f"interrupted by {signal.Signals(-interrupted).name}")
    if not failures:
        return Outcome(0)
    *_, number, ended = min(failures, key=lambda failure: failure[:3])
    error = f"hung: {ended.error}" if ended.how == EndKind.HUNG else ended.error
    return Outcome(ended.status, number, error, ended.log)


def outcome_of_statuses(codes: Mapping[int, int]) -> Outcome:
    """The outcome from the operating system alone."""
    failed = {rank: code for rank, code in codes.items() if code}
    if not failed:
        return Outcome(0)
    rank, code = next(iter(failed.items()))
    return Outcome(_SIGNALLED - code if code < 0 else code, None if rank == LAUNCHER else rank)


def _true_end(ended: Ended, code: int | None, steps: int) -> Ended:
    """What the rank wrote, unless the operating system shows otherwise: killed, or ended by `os._exit`."""
    if ended.how == EndKind.STOPPED or code is None:
        return ended
    status = _SIGNALLED - code if code < 0 else code
    if ended.how not in (EndKind.LOST, EndKind.FINISHED) or (ended.how == EndKind.FINISHED and code == 0):
        return ended
    if code < 0:
        return Ended(EndKind.KILLED, status, steps, error=f"killed by {signal.Signals(-code).name}")
    return Ended(
        EndKind.EXITED if code else EndKind.FINISHED,
        status,
        steps,
        error="" if ended.how == EndKind.FINISHED else "ended by os._exit or by native code",
    )


def is_secondary_failure(ended: Ended) -> bool:
    """Whether a rank that ended like this failed only because another one had."""
    if ended.how == EndKind.KILLED:
        return ended.status == _SIGNALLED + signal.SIGTERM
    return any(words in ended.error.lower() for words in _LOST_PEER)


def _end_times(folder: Path, world: int) -> list[float]:
    """Time at which each rank's script ended, in seconds since the epoch; 0.0 if unknown."""
    times = []
    for rank in range(world):
        path = folder / f"rank_{rank:04d}" / "ended.json"
        times.append(path.stat().st_mtime if path.exists() else 0.0)
    return times


def merge_run_metadata(folder: Path) -> None:
    """Copy device, torch, heap reader and source files from the ranks into `run.json`."""
    write_run(folder, with_what_ranks_know(folder, read_header(folder)))


VMSTAT = Path("/proc/vmstat")


def count_oom_kills(vmstat: Path = VMSTAT) -> int:
    """Number of processes killed by the kernel's out-of-memory killer on this machine since boot; 0 if unknown.

    The field `oom_kill` exists since Linux 4.13 (mm/vmstat.c) and includes kills for a control group's limit.
    """
    try:
        lines = vmstat.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


_LEFTOVERS = (f"rank_*/{UNFINISHED}", ".board*", ".group_*", ".follow.json", ".rank_*")
"""Temporary files of ranks that were killed while writing, and files for communication between processes."""


def assigned_ranks(options: Options) -> RankAssignment | None:
    """Assign ranks to the processes of a run that were followed, each in a folder of its own; None if none were.

    If nothing can be written, the process started by leakscope is rank 0.
    """
    if not options.process:
        return None
    try:
        assignment = assign_ranks(options.folder)
        if assignment.ranks != 1:
            write_run(options.folder, {**read_header(options.folder), "ranks": assignment.ranks})
    except OSError:
        return RankAssignment(1, 0)
    return assignment


def statuses_by_rank(assignment: RankAssignment | None, codes: Mapping[int, int]) -> Mapping[int, int]:
    """Status from the operating system by rank, for the process started by leakscope if it is one."""
    if assignment is None:
        return codes
    return {} if assignment.main is None else {assignment.main: codes[0]}


def with_status_of_main(assignment: RankAssignment | None, codes: Mapping[int, int], outcome: Outcome) -> Outcome:
    """The outcome with the status of the process started by leakscope, whatever happened to its children."""
    if assignment is None or assignment.main is not None:
        return outcome
    code = codes[0]
    status = _SIGNALLED - code if code < 0 else code
    if status and not outcome.status:
        error = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
        return replace(outcome, status=status, error=error)
    return replace(outcome, status=status)


def remove_leftovers(folder: Path) -> None:
    """Remove files that are unused after the run, and folders of processes that have not trained."""
    for pattern in _LEFTOVERS:
        for path in folder.glob(pattern):
            with suppress(OSError):
                path.unlink()
    for path in folder.glob("process_*"):
        if path.name != MAIN and not (path / "steps.jsonl").exists():
            shutil.rmtree(path, ignore_errors=True)
