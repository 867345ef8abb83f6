"""How did each rank end, and which one failed first?"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from leakscope.record.about import with_what_ranks_know
from leakscope.record.ends import as_written, ended_file, ended_to_json, ranks_in, read_ends
from leakscope.record.folder import make_private, write_json, write_run
from leakscope.record.header import read_header
from leakscope.record.kinds import EndKind
from leakscope.record.model import Ended
from leakscope.record.parts.elsewhere import ranks_elsewhere
from leakscope.record.stacks import read_stack

LAUNCHER = -1
"""In place of a rank's number: the launcher itself, which a signal ended."""
_SIGNALLED = 128
"""Exit status of a process that signal 0 would have ended, as shells count: 137 is SIGKILL, 9."""
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
"""What the errors of a rank say whose peer went away first, as gloo, NCCL, TensorPipe and TCPStore word it."""


@dataclass(frozen=True)
class Outcome:
    """How a launch ended."""

    status: int
    """The earliest failing rank's own status, 128 + signal for a killed one, 0 where none failed."""
    failed: int | None = None
    """That rank."""
    error: str = ""
    log: str = ""
    """Its log, relative to the run's folder."""
    folder: Path = Path()
    """Where all is that was recorded: the run's folder, or a copy of it where that can hold no more."""
    unwritable: str = ""
    """Why it is a copy, or why not all of it is there: `No space left on device`."""
    elsewhere: tuple[str, ...] = ()
    """Folders to be removed when everything is told."""


def collect_outcome(
    folder: Path, codes: Mapping[int, int], only: int | None = None, oom_kills: int = 0, read_only: bool = False
) -> Outcome:
    """Complete what the ranks wrote: how the silent ones ended, where the logs are, what is common to all of them.

    `codes` holds what the operating system says of a rank: its status, negative for a signal. With `only` no other rank
    counts as failed. `oom_kills` is how many processes the system ended meanwhile for want of memory.

    Raises OSError where the folder cannot be written; it is not with `read_only`.
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
            write_json(ended_file(path), ended_to_json(ended))
        if ended.status and ended.how != EndKind.LOST and only in (None, rank):
            failures.append((is_secondary_failure(ended), times[rank] or time.time(), rank, ended))
    if not read_only:
        merge_run_metadata(folder)
    if interrupted is not None:
        return Outcome(_SIGNALLED - interrupted, error=f"interrupted by {signal.Signals(-interrupted).name}")
    if not failures:
        return Outcome(0)
    *_, number, ended = min(failures, key=lambda failure: failure[:3])
    return Outcome(ended.status, number, as_written(ended).error, ended.log)


def outcome_of(codes: Mapping[int, int]) -> Outcome:
    """What the operating system says alone."""
    failed = {rank: code for rank, code in codes.items() if code}
    if not failed:
        return Outcome(0)
    rank, code = next(iter(failed.items()))
    return Outcome(_SIGNALLED - code if code < 0 else code, None if rank == LAUNCHER else rank)


def _true_end(ended: Ended, code: int | None, steps: int) -> Ended:
    """What the rank wrote, unless the operating system knows better: killed, or ended by `os._exit`."""
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
    """Did a rank that ended like this only fail because another one had?"""
    if ended.how == EndKind.KILLED:
        return ended.status == _SIGNALLED + signal.SIGTERM
    return any(words in ended.error.lower() for words in _LOST_PEER)


def _end_times(folder: Path, world: int) -> list[float]:
    """Seconds since the epoch at which each rank's script ended, 0.0 where it did not get to say so."""
    times = []
    for rank in range(world):
        path = folder / f"rank_{rank:04d}" / "ended.json"
        times.append(path.stat().st_mtime if path.exists() else 0.0)
    return times


def merge_run_metadata(folder: Path) -> None:
    """Put what the ranks know of device, torch, heap reader and source files into `run.json`."""
    write_run(folder, with_what_ranks_know(folder, read_header(folder)))
