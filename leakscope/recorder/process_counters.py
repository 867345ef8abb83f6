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
_MOST_KINDS = 64
"""Kinds that are told apart, chosen; the others together are `OTHERS`."""
_MOST_READ = 2048
"""Descriptors whose kinds are read at a time; chosen: 20 ms where the system is slow."""
_MOST_SOCKETS = 256
"""Sockets that are asked for their peers at a time; chosen: 3 microseconds each were measured."""
_DELETED = " (deleted)"
_DIGITS = re.compile(r"\d+")


def open_descriptors(own: str) -> dict[str, int] | None:
    """How many there are of each kind; None where the system does not say. Those below the folder `own` are left out.

    Of very many the latest are told apart, which what leaks is among. Takes 2 to 10 microseconds a descriptor; nothing
    of what they lead to is touched.
    """
    try:
        listed = os.listdir(_FOLDER)
    except OSError:  # none may be opened any more, or no such system
        return None
    numbers = sorted(listed, key=int)[-_MOST_READ:]
    targets = Counter[str]()
    sockets = 0
    for number in numbers:
        try:
            target = os.readlink(f"{_FOLDER}/{number}")
        except OSError:  # the one by which they were listed
            continue
        if target.startswith("socket:"):
            sockets += 1
            target = _socket_kind(int(number)) if sockets <= _MOST_SOCKETS else "socket"
        if not target.startswith(own):
            targets[target] += 1
    return _few(_kinds(targets), len(listed) - len(numbers))


def _kinds(targets: Mapping[str, int]) -> Counter[str]:
    """Files that are open once by folder and ending, those that are open several times by their path."""
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
    """`socket to 127.0.0.1:29500`; asked of a copy of the descriptor, which is closed again."""
    try:
        copy = os.dup(number)
    except OSError:  # it is gone, or there is room for no other
        return "socket"
    try:
        asked = socket(fileno=copy)
    except OSError:
        os.close(copy)
        return "socket"
    try:
        if asked.family not in (AF_INET, AF_INET6):
            return "unix socket"
        host, port, *_ = asked.getpeername()
        return f"socket to {host}:{port}"
    except OSError:
        return "datagram socket" if asked.type == SOCK_DGRAM else "socket that is not connected"
    finally:
        asked.close()


def _few(kinds: Counter[str], others: int) -> dict[str, int]:
    few = dict(kinds.most_common(_MOST_KINDS))
    others += kinds.total() - sum(few.values())
    return few | ({OTHERS: others} if others else {})


_MAPPED = b" /dev/shm/"


def shared_memory() -> SharedMemory | None:
    """Segments and their bytes; None where the system does not say. Takes 0.5 ms for 360 mappings."""
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
"""What dynamo's counter of what it does not compile says of a function that came to its limit."""
_MOST = 5
"""Functions that are told; chosen."""
_MOST_COMPILED_READ = 512
"""Reasons that are read of a function; chosen: its limit is 8 compilations, 36 reasons."""
_LONGEST = 200
"""Characters of a reason; chosen."""


def compiled_code() -> Compiled | None:
    """None where dynamo is not there, or keeps other books. Takes microseconds; nothing of dynamo's is kept."""
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
    return tuple(sorted(found, key=lambda one: (-one.times, one.at))[:_MOST])


def _times(why: Sequence[object]) -> int:
    """Each time all that is compiled of a function has failed its guards, and all are told: `0/0: ...`, `0/1: ...`."""
    return len({str(one).partition(":")[0] for one in why[-_MOST_COMPILED_READ:]})


def _reason(told: object) -> str:
    """`n == 0.0` of `0/0: n == 0.0      # def forward(...)` and lines below."""
    line = str(told).partition("\n")[0]
    number, colon, rest = line.partition(": ")
    text = rest if colon and "/" in number else line
    return text.partition("  # ")[0].strip()[:_LONGEST]


_SHARE = 0.125
"""Share of the looks' budget, chosen, that counting between looks may take."""
_EVERY = 32
"""So many of the latest steps as there are in this share of a run, chosen, lie between two countings at least: a long
run's file stays small.
"""


class Counts:
    """Counts for one rank, and writes down what there is."""

    def __init__(self, folder: RankFolder, budget: float) -> None:
        self._folder, self._share = folder, _SHARE * budget
        self._own = os.path.realpath(folder.path.parent) + os.sep
        self._step = 0
        """The last one that was counted at."""
        self._spent = self._dearest = 0.0

    def step(self, step: int, elapsed: float) -> None:
        """The end of a step, so many seconds after the recording began."""
        if step - self._step > step // _EVERY and self._spent + self._dearest <= self._share * elapsed:
            self.now(step)

    def now(self, step: int) -> None:
        """Count, where that was not done at this step. Raises OSError where it cannot be written."""
        if step <= self._step:
            return
        began, self._step = CLOCK.perf_counter(), step
        self._folder.append(
            CountsAtStep(
                step=step,
                descriptors=open_descriptors(self._own),
                most_descriptors=_most_descriptors(),
                shared=shared_memory(),
                compiled=compiled_code(),
                pinned_bytes=pinned_bytes(),
            )
        )
        seconds = CLOCK.perf_counter() - began
        self._spent, self._dearest = self._spent + seconds, max(self._dearest, seconds)


def _most_descriptors() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit
