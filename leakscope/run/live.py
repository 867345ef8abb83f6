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
from leakscope.run.model import Ended, is_told, read_header
from leakscope.run.multi_node import ranks_elsewhere
from leakscope.run.rank_end import ended_file, rank_name, ranks_in
from leakscope.run.rows import Answer, EndKind, from_json
from leakscope.run.writer import ASKED


def ask(folder: Path) -> int:
    """Ask all ranks of the run for a look; gives the number of the request, 1 for the first. Raises OSError."""
    file = open_private(folder / ASKED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, b".")  # the size of the file is the number of requests
        return os.lseek(file, 0, os.SEEK_CUR)  # right after the byte that was added here, whoever else adds some
    finally:
        os.close(file)


def times_asked(file: Path) -> int:
    """How often a look was asked for so far."""
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


NAME = "process.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NUMBERS = "/proc/self/ns/pid"
_STATE, _BEGAN = 0, 19
"""Which of the words that follow the name in /proc/PID/stat (proc(5), fields 3 and 22)."""
_GONE = ("Z", "X", "x")
"""States of a process that has ended, and of which only its status is left."""


@dataclass(frozen=True)
class RecordingProcess:
    """A process, and what tells it from another one of the same number."""

    number: int
    machine: str
    """By its own name."""
    boot: str = ""
    """Which start of the machine it was, "" where the system does not say."""
    numbers: str = ""
    """Among whose numbers it has its own: a container has numbers of its own."""
    began: int = 0
    """Ticks after the start of the machine; 0 where the system does not say."""

    def is_here(self) -> bool:
        """Whether it runs on this machine, where it has the number that we know it by."""
        here = this_process()
        return (self.machine, self.boot, self.numbers) == (here.machine, here.boot, here.numbers)

    def is_running(self) -> bool | None:
        """Whether it is there; None where that cannot be seen from here."""
        if not self.is_here():
            return None
        words = _stat(self.number)
        if words is None:
            return _answers(self.number) and not self.began
        return words[_STATE] not in _GONE and int(words[_BEGAN]) == self.began


def this_process() -> RecordingProcess:
    """The one that asks."""
    words = _stat(os.getpid())
    boot, numbers = "", ""
    with suppress(OSError):  # no Linux
        boot, numbers = _BOOT.read_text().strip(), os.readlink(_NUMBERS)
    return RecordingProcess(os.getpid(), os.uname().nodename, boot, numbers, int(words[_BEGAN]) if words else 0)


def about_this_process() -> dict[str, object]:
    """What `process.json` has."""
    return asdict(this_process())


def read_process(rank: Path) -> RecordingProcess | None:
    """The process that records the rank with this folder; None where it has not begun to, or does not say."""
    try:
        return from_json(RecordingProcess, read_json(rank / NAME))
    except (Unreadable, ValueError):
        return None


def _stat(number: int) -> list[str] | None:
    """The words of /proc/PID/stat from the state on; the name before them may hold anything."""
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
"""Seconds, chosen, in which a rank of another machine that goes on has written something."""
_TAIL_BYTES = 1 << 16
"""Bytes at the end of a file that are read, chosen: some hundred lines, however long the run."""


@dataclass(frozen=True)
class LiveRank:
    """One rank that may be asked."""

    number: int
    process: RecordingProcess | None
    """None where it does not record yet."""
    ended: bool
    """It has said how it ended, or its process is gone."""
    answer: Answer | None
    """The latest."""

    def has_answered(self, asked: int) -> bool:
        """Whether what was asked by this number is answered, or never will be."""
        return self.ended or (self.answer is not None and self.answer.asked >= asked)


def live_ranks(folder: Path) -> tuple[LiveRank, ...]:
    """All ranks of a run, those too that have left nothing yet; none of other machines, where those have a folder of
    their own. Raises Unreadable where it is no run.
    """
    header = read_header(folder)
    told, there = header.get("ranks"), ranks_in(folder)
    expected = told if type(told) is int and 0 < told <= _MOST else 1
    numbers = {*there, *range(expected)}.difference(ranks_elsewhere(folder, header, expected, there))
    over = is_told(header)
    return tuple(_rank(folder / rank_name(number), number, over) for number in sorted(numbers))


_MOST = 1 << 12
"""Ranks that are asked one by one; chosen."""


def _rank(path: Path, number: int, over: bool) -> LiveRank:
    process = read_process(path)
    gone = process is not None and process.is_running() is False
    return LiveRank(number, process, over or gone or ended_file(path).exists(), last_answer(path))


def last_answer(rank: Path) -> Answer | None:
    """What the rank with this folder answered last."""
    for line in reversed(tail_of(rank / f"{Answer.FILE}.jsonl", 8)):
        try:
            return from_json(Answer, parse_json(line))
        except (Unreadable, ValueError):  # a line that is being written
            continue
    return None


def goes_on(rank: Path) -> bool:
    """Whether the rank with this folder, which says nothing of its end, has none; for one of another machine whether it
    was heard of lately.
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
    """In place of the end of a rank that goes on; with the stacks of its threads where it was asked within a step."""
    answer = last_answer(rank)
    stacks = answer.stacks if answer is not None and answer.step == steps else ()
    return Ended(EndKind.RUNNING, 0, steps, stack=stacks)


def is_over(ranks: Sequence[LiveRank]) -> bool:
    """Whether there is nobody left to answer."""
    return all(rank.ended for rank in ranks)


def tail_of(path: Path, most: int, size: int = _TAIL_BYTES) -> Sequence[bytes]:
    """The last whole lines of a file, so many at most, of what stands in so many bytes at its end; none without it."""
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
"""Of the file, in the run's folder."""


class Activity(IntEnum):
    """What a rank is doing; it never goes back from STOPPING and those after it to the ones before."""

    RUNNING = 0
    LOOKING = 1
    STOPPING = 2
    ENDED = 3
    LOST = 4
    """Its recording has ended, its script goes on: nobody waits for it, and it says no more of its steps."""


RECORD = struct.Struct("<qqdqqqqd")
"""The fields of `RankState`, in their order."""
MARK = b"ranks at"
"""The file begins with it: what does not is another file."""


@dataclass(frozen=True)
class RankState:
    """What one rank says of itself."""

    steps: int
    """Steps taken by the clock that ticks now; 0 for a rank where none does."""
    activity: int
    """One of `Activity`."""
    ended: float
    """Seconds since the epoch at which the rank's script ended; 0.0 before."""
    failed: int = 0
    """1 once an allocation has failed here that the script did not catch."""
    answered: int = 0
    """1 once this rank was looked at because of a failed allocation, its own or a peer's."""
    alone: int = 0
    """Backwards or module calls that would have ended a step here, where no optimizer steps."""
    look_at: int = 0
    """The step after which this rank has asked all to be looked at."""
    spent: float = 0.0
    """Seconds that looking took here so far, with one more look."""


def place_of(rank: int) -> int:
    """Where the record of this rank begins."""
    return len(MARK) + rank * RECORD.size


def unpacked(data: bytes, world: int) -> tuple[RankState, ...]:
    """The records of so many ranks; of one that has written none all zeros."""
    size = place_of(world)
    return tuple(RankState(*fields) for fields in RECORD.iter_unpack(data.ljust(size, b"\0")[len(MARK) : size]))


def read_states(folder: Path, world: int) -> tuple[RankState, ...]:
    """What the ranks of a run say of themselves, by number; none where they say nothing, as after its end."""
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
