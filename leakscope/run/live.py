"""Files of a running job: requests for a snapshot, answers, and the state of each rank."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum

from leakscope.errors import Unreadable
from leakscope.files import parse_json, read_json
from leakscope.originals import Path, os, time
from leakscope.run.descriptors import open_private
from leakscope.run.model import Ended, is_complete, read_header
from leakscope.run.multi_node import ranks_elsewhere
from leakscope.run.rank_end import ended_file, rank_name, ranks_in
from leakscope.run.rows import Answer, EndKind, from_json
from leakscope.run.writer import REQUEST_FILE


def request_snapshot(folder: Path) -> int:
    """Request a heap snapshot from all ranks; return the number of the request, from 1. Raises OSError."""
    file = open_private(folder / REQUEST_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, b".")  # the size of the file is the number of requests
        return os.lseek(file, 0, os.SEEK_CUR)  # right after the byte that was added here, whoever else adds some
    finally:
        os.close(file)


def request_count(file: Path) -> int:
    """Number of snapshots requested so far."""
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


NAME = "process.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NUMBERS = "/proc/self/ns/pid"
_STATE, _BEGAN = 0, 19
"""Positions of the fields after the name in /proc/PID/stat (proc(5), fields 3 and 22)."""
_GONE = ("Z", "X", "x")
"""States of a process that has ended but not been reaped."""


@dataclass(frozen=True)
class RecordingProcess:
    """A process, identified beyond its process id."""

    number: int
    machine: str
    """Host name."""
    boot: str = ""
    """Identifies the boot of the machine, "" if unknown."""
    numbers: str = ""
    """Its PID namespace: a container has its own."""
    began: int = 0
    """Start time in clock ticks after boot; 0 if unknown."""

    def is_here(self) -> bool:
        """Whether it runs on this machine and in this PID namespace."""
        here = this_process()
        return (self.machine, self.boot, self.numbers) == (here.machine, here.boot, here.numbers)

    def is_running(self) -> bool | None:
        """Whether it is running; None if that cannot be determined from here."""
        if not self.is_here():
            return None
        words = _stat(self.number)
        if words is None:
            return _answers(self.number) and not self.began
        return words[_STATE] not in _GONE and int(words[_BEGAN]) == self.began


def this_process() -> RecordingProcess:
    """Identify the calling process."""
    words = _stat(os.getpid())
    boot, numbers = "", ""
    with suppress(OSError):  # no Linux
        boot, numbers = _BOOT.read_text().strip(), os.readlink(_NUMBERS)
    return RecordingProcess(os.getpid(), os.uname().nodename, boot, numbers, int(words[_BEGAN]) if words else 0)


def about_this_process() -> dict[str, object]:
    """The content of `process.json`."""
    return asdict(this_process())


def read_process(rank: Path) -> RecordingProcess | None:
    """The process that records the rank with this folder; None if it has not begun or is unknown."""
    try:
        return from_json(RecordingProcess, read_json(rank / NAME))
    except (Unreadable, ValueError):
        return None


def _stat(number: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may contain anything."""
    try:
        words = Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return words if len(words) > _BEGAN and words[_BEGAN].isdigit() else None


def _answers(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


_LATELY_S = 600.0
"""Seconds within which a running rank of another machine has written something. Heuristic."""
_TAIL_BYTES = 1 << 16
"""Bytes read at the end of a file: some hundred lines. Heuristic."""


@dataclass(frozen=True)
class LiveRank:
    """A rank that can be sent requests."""

    number: int
    process: RecordingProcess | None
    """None if it does not record yet."""
    ended: bool
    """Whether it has recorded its end, or its process is gone."""
    answer: Answer | None
    """The latest."""

    def has_answered(self, number: int) -> bool:
        """Whether the request of this number has been answered, or never will be."""
        return self.ended or (self.answer is not None and self.answer.asked >= number)


def live_ranks(folder: Path) -> tuple[LiveRank, ...]:
    """All ranks of a run, including those that have written nothing yet; without ranks of other machines that have
    their own folder. Raises Unreadable if it is not a run.
    """
    header = read_header(folder)
    given, there = header.get("ranks"), ranks_in(folder)
    expected = given if type(given) is int and 0 < given <= _MAX_QUERIED_RANKS else 1
    numbers = {*there, *range(expected)}.difference(ranks_elsewhere(folder, header, expected, there))
    over = is_complete(header)
    return tuple(_rank(folder / rank_name(number), number, over) for number in sorted(numbers))


_MAX_QUERIED_RANKS = 1 << 12
"""Maximum ranks queried one by one. Heuristic."""


def _rank(path: Path, number: int, over: bool) -> LiveRank:
    process = read_process(path)
    gone = process is not None and process.is_running() is False
    return LiveRank(number, process, over or gone or ended_file(path).exists(), last_answer(path))


def last_answer(rank: Path) -> Answer | None:
    """The latest answer of the rank with this folder."""
    for line in reversed(tail_of(rank / f"{Answer.FILE}.jsonl", 8)):
        try:
            return from_json(Answer, parse_json(line))
        except (Unreadable, ValueError):  # a line that is being written
            continue
    return None


def is_recording(rank: Path) -> bool:
    """Whether the rank with this folder, which has not recorded an end, is still running; for another machine whether
    it has written lately.
    """
    process = read_process(rank)
    running = None if process is None else process.is_running()
    return process is not None and (_heard_lately(rank) if running is None else running)


def _heard_lately(rank: Path) -> bool:
    try:
        return time.time() - max(path.stat().st_mtime for path in rank.iterdir()) < _LATELY_S
    except (OSError, ValueError):
        return False


def running(rank: Path, steps: int) -> Ended:
    """A placeholder for the end of a running rank, with thread stacks if a snapshot was requested within a step."""
    answer = last_answer(rank)
    stacks = answer.stacks if answer is not None and answer.step == steps else ()
    return Ended(EndKind.RUNNING, 0, steps, stack=stacks)


def is_over(ranks: Sequence[LiveRank]) -> bool:
    """Whether no rank is left to answer."""
    return all(rank.ended for rank in ranks)


def tail_of(path: Path, most: int, size: int = _TAIL_BYTES) -> Sequence[bytes]:
    """The last complete lines of a file, at most this many, from this many bytes at its end; empty without a file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        end = os.fstat(file).st_size
        begin = max(end - size, 0)
        data = os.pread(file, end - begin, begin)
    except OSError:
        return ()
    finally:
        os.close(file)
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
    return tuple(deque(lines[1:] if begin else lines, most))


RANK_STATES = ".board"
"""Name of the file in the run's folder."""


class Activity(IntEnum):
    """What a rank is doing; it never returns from STOPPING and later values to earlier ones."""

    RUNNING = 0
    SNAPSHOT = 1
    STOPPING = 2
    ENDED = 3
    LOST = 4
    """Recording has ended while the script continues: nobody waits for the rank, and it reports no more steps."""


RECORD = struct.Struct("<qqdqqqqd")
"""The fields of `RankState`, in order."""
MARK = b"ranks at"
"""Magic bytes at the start of the file."""


@dataclass(frozen=True)
class RankState:
    """The state of one rank, published by itself."""

    steps: int
    """Steps of the current step source; 0 without one."""
    activity: int
    """One of `Activity`."""
    ended: float
    """Time at which the rank's script ended, in seconds since the epoch; 0.0 before."""
    failed: int = 0
    """1 after an uncaught allocation failure."""
    answered: int = 0
    """1 after a snapshot because of a failed allocation, its own or a peer's."""
    alone: int = 0
    """Backwards or module calls that would have ended a step, without a stepping optimizer."""
    snapshot_at: int = 0
    """The step after which this rank has requested a snapshot from all."""
    spent: float = 0.0
    """Seconds spent on snapshots, including one more."""


def place_of(rank: int) -> int:
    """Offset of this rank's record."""
    return len(MARK) + rank * RECORD.size


def unpacked(data: bytes, world: int) -> tuple[RankState, ...]:
    """The records of this many ranks; zeros for one that has not written."""
    size = place_of(world)
    return tuple(RankState(*fields) for fields in RECORD.iter_unpack(data.ljust(size, b"\0")[len(MARK) : size]))


def read_states(folder: Path, world: int) -> tuple[RankState, ...]:
    """The published states of a run's ranks, by number; empty if there are none, as after its end."""
    try:
        file = os.open(folder / RANK_STATES, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        data = os.pread(file, place_of(world), 0)
    except OSError:
        return ()
    finally:
        os.close(file)
    return unpacked(data, world) if data.startswith(MARK) else ()
