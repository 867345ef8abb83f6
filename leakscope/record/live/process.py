"""Which process records a rank, and is it there?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass

from leakscope.errors import Unreadable
from leakscope.files import read_json
from leakscope.originals import Path, os
from leakscope.record.rows.row import from_json

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
