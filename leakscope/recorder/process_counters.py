"""Counters beside memory: open descriptors, shared memory, compilations."""

from __future__ import annotations

import re
import sys
from _socket import AF_INET, AF_INET6, SOCK_DGRAM, socket
from collections import Counter
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from leakscope.originals import open_file, os, resource
from leakscope.process.guard import CLOCK
from leakscope.process.torch_compat import pinned_bytes
from leakscope.process.user_code import at
from leakscope.run.rows import OTHERS, Compiled, CountsAtStep, Recompiled, SharedMemory
from leakscope.run.writer import RankFolder

_FOLDER = "/proc/self/fd"
_MAX_KINDS = 64
"""Maximum kinds with a line of their own; the others together are `OTHERS`. Heuristic."""
_MAX_READ = 2048
"""Maximum descriptors whose kinds are read at a time. Heuristic: 20 ms on a slow system."""
_MAX_SOCKETS = 256
"""Maximum sockets whose peers are read at a time. Heuristic: 3 microseconds each were measured."""
_DELETED = " (deleted)"
_DIGITS = re.compile(r"\d+")


def open_descriptors(own: str) -> dict[str, int] | None:
    """Number of descriptors of each kind; None if the system does not show them. Those below the folder `own` are left
    out.

    Of very many the latest are classified, which include what leaks. Takes 2 to 10 microseconds a descriptor; nothing
    they refer to is accessed.
    """
    try:
        listed = os.listdir(_FOLDER)
    except OSError:  # the limit of open files is reached, or no such system
        return None
    numbers = sorted(listed, key=int)[-_MAX_READ:]
    targets = Counter[str]()
    sockets = 0
    for number in numbers:
        try:
            target = os.readlink(f"{_FOLDER}/{number}")
        except OSError:  # the descriptor used for listing
            continue
        if target.startswith("socket:"):
            sockets += 1
            target = _socket_kind(int(number)) if sockets <= _MAX_SOCKETS else "socket"
        if not target.startswith(own):
            targets[target] += 1
    return _few(_kinds(targets), len(listed) - len(numbers))


def _kinds(targets: Mapping[str, int]) -> Counter[str]:
    """Files opened once, by folder and extension; files opened several times, by path."""
    kinds = Counter[str]()
    for target, count in targets.items():
        kinds[_kind(target, count)] += count
    return kinds


def _kind(target: str, count: int) -> str:
    if not target.startswith("/"):  # `pipe:[79029]`, `anon_inode:[eventpoll]`, `socket to node0:29500`
        word, _, name = target.partition(":[")
        return name.rstrip("]") if word == "anon_inode" else word if name else target.removeprefix("anon_inode:")
    path = target.removesuffix(_DELETED)
    if path.startswith(("/dev/", "/memfd:")):
        return _DIGITS.sub("*", path)
    return path if count > 1 else f"{os.path.dirname(path)}/*{os.path.splitext(path)[1]}"


def _socket_kind(number: int) -> str:
    """As `socket to 127.0.0.1:29500`; read from a copy of the descriptor, which is closed again."""
    try:
        copy = os.dup(number)
    except OSError:  # it is gone, or no further one can be opened
        return "socket"
    try:
        duplicate = socket(fileno=copy)
    except OSError:
        os.close(copy)
        return "socket"
    try:
        if duplicate.family not in (AF_INET, AF_INET6):
            return "unix socket"
        host, port, *_ = duplicate.getpeername()
        return f"socket to {host}:{port}"
    except OSError:
        return "datagram socket" if duplicate.type == SOCK_DGRAM else "unconnected socket"
    finally:
        duplicate.close()


def _few(kinds: Counter[str], others: int) -> dict[str, int]:
    few = dict(kinds.most_common(_MAX_KINDS))
    others += kinds.total() - sum(few.values())
    return few | ({OTHERS: others} if others else {})


_MAPPED = b" /dev/shm/"


def shared_memory() -> SharedMemory | None:
    """Segments and their bytes; None if the system does not show them. Takes 0.5 ms for 360 mappings."""
    try:
        with open_file("/proc/self/maps", "rb") as stream:
            lines = stream.read().split(b"\n")
    except OSError:
        return None
    sizes: dict[bytes, int] = {}
    for line in lines:
        span, _, rest = line.partition(b" ")
        if _MAPPED in rest:
            first, _, last = span.partition(b"-")
            path = rest[rest.index(_MAPPED) :]
            sizes[path] = sizes.get(path, 0) + int(last, 16) - int(first, 16)
    return SharedMemory(len(sizes), sum(sizes.values()))


_UTILS = "torch._dynamo.utils"
_LIMITS = ("recompile limit", "recompile_limit", "cache_size_limit", "cache size limit")
"""Texts of dynamo's counter of uncompiled code for a function that reached its limit."""
_MAX_FUNCTIONS = 5
"""Maximum functions reported. Heuristic."""
_MAX_REASONS = 512
"""Maximum reasons read per function. Heuristic: its limit is 8 compilations, 36 reasons."""
_MAX_REASON_LENGTH = 200
"""Maximum characters of a reason. Heuristic."""


def compiled_code() -> Compiled | None:
    """Counters of compiled code; None without dynamo, or if its records differ. Takes microseconds; nothing of dynamo's
    is kept.
    """
    utils = sys.modules.get(_UTILS)
    counters, failures = getattr(utils, "counters", None), getattr(utils, "guard_failures", None)
    if not isinstance(counters, Mapping):
        return None
    frames, unimplemented = counters.get("frames"), counters.get("unimplemented")
    done = frames.get("ok", 0) if isinstance(frames, Mapping) else 0
    words = " ".join(map(str, list(unimplemented))) if isinstance(unimplemented, Mapping) else ""
    again = _again(failures) if isinstance(failures, Mapping) else ()
    return Compiled(int(done), again, any(limit in words for limit in _LIMITS))


def _again(failures: Mapping[Any, Any]) -> tuple[Recompiled, ...]:
    found = [
        Recompiled(code.co_name, at(code.co_filename, code.co_firstlineno), _times(why), _reason(why[-1]))
        for code, why in list(failures.items())
        if isinstance(code, CodeType) and isinstance(why, list) and why
    ]
    return tuple(sorted(found, key=lambda one: (-one.times, one.at))[:_MAX_FUNCTIONS])


def _times(why: Sequence[object]) -> int:
    """Split into the times that all compiled versions of a function have failed their guards: `0/0:
    ...`, `0/1: ...`.
    """
    return len({str(one).partition(":")[0] for one in why[-_MAX_REASONS:]})


def _reason(error: object) -> str:
    """The guard, `n == 0.0`, from `0/0: n == 0.0      # def forward(...)` and following lines."""
    line = str(error).partition("\n")[0]
    number, colon, rest = line.partition(": ")
    text = rest if colon and "/" in number else line
    return text.partition("  # ")[0].strip()[:_MAX_REASON_LENGTH]


_COUNTING_SHARE = 0.125
"""Share of the snapshot budget for counting between snapshots. Heuristic."""
_EVERY = 32
"""Minimum interval between two counts, as a share of the run's steps, so that a long run's file stays
small. Heuristic.
"""


class Counts:
    """Counts for one rank, and writes the results."""

    def __init__(self, folder: RankFolder, budget: float) -> None:
        self._folder, self._share = folder, _COUNTING_SHARE * budget
        self._own = os.path.realpath(folder.path.parent) + os.sep
        self._step = 0
        """The last step counted."""
        self._spent = self._dearest = 0.0

    def step(self, step: int, elapsed: float) -> None:
        """Called at the end of a step, this many seconds after the recording began."""
        if step - self._step > step // _EVERY and self._spent + self._dearest <= self._share * elapsed:
            self.now(step)

    def now(self, step: int) -> None:
        """Count, unless done at this step. Raises OSError if the result cannot be written."""
        if step <= self._step:
            return
        began, self._step = CLOCK.perf_counter(), step
        self._folder.append(
            CountsAtStep(
                step=step,
                descriptors=open_descriptors(self._own),
                most_descriptors=_descriptor_limit(),
                shared=shared_memory(),
                compiled=compiled_code(),
                pinned_bytes=pinned_bytes(),
            )
        )
        seconds = CLOCK.perf_counter() - began
        self._spent, self._dearest = self._spent + seconds, max(self._dearest, seconds)


def _descriptor_limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit
