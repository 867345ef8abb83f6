"""The memory limits of the host and cgroup, and allocation failures."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from leakscope.originals import Path, _thread, open_file, os, resource
from leakscope.process.frames import raised_at, users_line, waiting
from leakscope.process.guard import CLOCK, Guard, in_forked_child
from leakscope.process.raw_types import mro
from leakscope.recorder.accelerator import Accelerator, read_figures
from leakscope.run.rows import DeviceFailure
from leakscope.run.writer import RankFolder
from leakscope.shield import Block, PureBlock

NEAR = 0.9
"""Share of a limit from which a process is near it. Heuristic."""
_EARLIEST = 0.75
"""Share of a limit below which nothing is near it. Heuristic."""
_BYTES_A_BLOCK = 128
"""Bytes that a snapshot takes per block of Python's allocator; 60 to 84 were measured, for 300,000 to 1,300,000
objects.
"""
_PAGE = resource.getpagesize()
_SIZE, _RESIDENT, _DATA = 0, 1, 5
"""Fields of /proc/self/statm, in pages (proc(5))."""


@dataclass(frozen=True)
class LimitReached:
    """A limit that is near."""

    limit: str
    """The limit, as `the control group's limit`."""
    limit_bytes: int
    used_bytes: int
    """Bytes that count against the limit now."""


@dataclass(frozen=True)
class ControlGroup:
    """A control group of this process with a limit, its own or a parent."""

    limit_bytes: int
    usage: Path
    statistics: Path
    inactive: str
    """Name of the reclaimable page cache in `statistics`."""

    def used(self) -> int:
        """Bytes in use: the group's, less what the kernel can reclaim at once.

        The statistics are read only near the limit.
        """
        used = int(_text(self.usage) or 0)
        if used < NEAR * self.limit_bytes:
            return used
        for line in _text(self.statistics).splitlines():
            name, _, count = line.partition(" ")
            if name == self.inactive:
                return used - int(count)
        return used


class HostLimits:
    """Reports once that a limit is near, and whether a snapshot still fits; about 40 microseconds a call."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._groups = tuple(control_groups(proc / "self"))
        self._reported = False

    def near(self) -> LimitReached | None:
        """The nearest limit, the first time that one is near."""
        if self._reported:
            return None
        limits = [near for near, ours in self._used() if ours and _is_near(near)]
        self._reported = bool(limits)
        return max(limits, key=lambda near: near.used_bytes / near.limit_bytes, default=None)

    def lowest(self) -> LimitReached | None:
        """The lowest limit; None if none is known."""
        return min((near for near, _ in self._used()), key=lambda near: near.limit_bytes, default=None)

    def has_room_for_snapshot(self) -> bool:
        """Whether a snapshot would stay below every limit; otherwise the kernel could kill the script."""
        return all(near.used_bytes + _snapshot_bytes() <= near.limit_bytes for near, _ in self._used())

    def _used(self) -> Iterator[tuple[LimitReached, bool]]:
        """Every limit, and whether the process or its group approaches it."""
        fields = _text(self._proc / "self" / "statm").split()
        if len(fields) <= _DATA:
            return
        size, resident, data = (int(fields[place]) * _PAGE for place in (_SIZE, _RESIDENT, _DATA))
        for kind, used in (("RLIMIT_AS", size), ("RLIMIT_DATA", data)):
            soft, _ = resource.getrlimit(getattr(resource, kind))  # read each time: a script may set it late
            if soft != resource.RLIM_INFINITY:
                yield LimitReached(f"the process's {kind}", soft, used), True
        for group in self._groups:
            yield LimitReached("its control group's memory limit", group.limit_bytes, group.used()), True
        fields_of = dict(line.split(":", 1) for line in _text(self._proc / "meminfo").splitlines() if ":" in line)
        if "MemAvailable" in fields_of:
            total, available = (int(fields_of[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
            # a machine filled by others is not this process's fault
            yield LimitReached("the machine's memory", total, total - available), resident >= available


def _is_near(near: LimitReached) -> bool:
    if near.used_bytes >= NEAR * near.limit_bytes:
        return True
    # earlier if that would leave no room for a snapshot
    return (
        near.used_bytes >= _EARLIEST * near.limit_bytes and near.limit_bytes - near.used_bytes < 2 * _snapshot_bytes()
    )


def _snapshot_bytes() -> int:
    return _BYTES_A_BLOCK * sys.getallocatedblocks()


def more_room() -> PureBlock[None]:
    """Raise this process's own limits as far as allowed, for a snapshot after an allocation has failed."""
    limits = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)}
    lowered = {kind: hard for kind, (soft, hard) in limits.items() if soft != hard}

    def enter() -> None:
        for kind, hard in lowered.items():
            resource.setrlimit(kind, (hard, hard))

    def leave() -> None:
        for kind in lowered:
            resource.setrlimit(kind, limits[kind])

    return Block(enter, leave)


def control_groups(process: Path) -> Iterator[ControlGroup]:
    """The control groups that limit a process's memory, version 1 or 2; `process` is its folder under /proc."""
    own = {}
    for line in _text(process / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path
    for line in _text(process / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = (_unescaped(field) for field in before.split()[3:5])
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            names = ("memory.max", "memory.current", "inactive_file")
            yield from _limited(Path(mounted), root, own.get("", ""), *names)
        elif kind == "cgroup" and "memory" in options.split(","):
            path = next((path for controllers, path in own.items() if "memory" in controllers.split(",")), "")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _limited(Path(mounted), root, path, *names)


def _limited(mounted: Path, root: str, path: str, limit: str, usage: str, inactive: str) -> Iterator[ControlGroup]:
    """Groups with a limit, from the process's own up to the topmost visible one."""
    # without its own namespace a container sees a path of the host and only its own group's files
    below = os.path.relpath(path or "/", root) if (path + "/").startswith(root.rstrip("/") + "/") else "."
    folder = mounted / below
    while True:
        text = _text(folder / limit).strip()
        if text.isdigit() and int(text) < 1 << 62:  # `max` in version 2, nearly 2**63 in version 1
            yield ControlGroup(int(text), folder / usage, folder / "memory.stat", inactive)
        if folder == mounted:
            return
        folder = folder.parent


def _unescaped(field: str) -> str:
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _text(path: Path) -> str:
    """The content of a kernel file, "" if it does not exist."""
    try:
        with open_file(path, "rb", buffering=0) as stream:
            return stream.read().decode("ascii", "replace")
    except OSError:
        return ""


_ON_HOST = re.compile(r"you tried to allocate (\d+) bytes")
_ON_DEVICE = re.compile(r"[Tt]ried to allocate ([\d.]+) ([KMGT]?i?B)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def failure(error: BaseException | None) -> dict[str, Any] | None:
    """What is known of an uncaught allocation failure; None for any other error.

    On the CPU torch raises a plain RuntimeError (c10/core/impl/alloc_cpu.cpp), on an accelerator
    torch.OutOfMemoryError. Failures that the script catches are not seen.
    """
    if error is None:
        return None
    text = str(error) if type(error) is RuntimeError or _is_oom(error) else ""
    on_host = "DefaultCPUAllocator" in text and "allocate memory" in text
    if not (on_host or _is_oom(error)):
        return None
    return {
        "error": text.splitlines()[0] if text else type(error).__name__,
        "wanted_bytes": _requested_bytes(text),
        "at": raised_at(error),
    }


def _is_oom(error: BaseException) -> bool:
    return any(kind.__name__ in ("OutOfMemoryError", "MemoryError") for kind in mro(type(error)))


def _requested_bytes(text: str) -> int | None:
    if match := _ON_HOST.search(text):
        return int(match[1])
    if match := _ON_DEVICE.search(text):
        return int(float(match[1]) * _UNITS.get(match[2], 1))
    return None


MAX_FREE_SNAPSHOTS = 3
"""Failures for which a snapshot is taken at any cost. Heuristic: a library that tries one size after the other fails
often and quietly.
"""
_FAILURE_SHARE = 0.02
"""Share of the run's time for snapshots of further failures. Heuristic."""


class DeviceFailures:
    """Records each failure of a device allocation, and takes a heap snapshot for some of them."""

    def __init__(self, note: Callable[[str], None], folder: RankFolder) -> None:
        self.kind = ""
        self.guard = Guard()
        self.snapshot: Callable[[], bool] | None = None
        """Takes a snapshot now; False if another is in progress."""
        self.steps: Callable[[], int] = lambda: 0
        self._note, self._folder = note, folder
        self._accelerator: Accelerator | None = None
        self._in_forked_child, self._began = in_forked_child(), CLOCK.perf_counter()
        self._home = _thread.get_ident()
        self._busy = self._over = False
        self._snapshots, self._spent = 0, 0.0
        self._last: tuple[int, bool] | None = None

    def observe(self, accelerator: Accelerator) -> None:
        """Attach to the allocator, once; this cannot be detached, so the callback holds this object weakly."""
        if self._accelerator is None and accelerator.observe_failures is not None:
            self._accelerator = accelerator
            ran_out = self.guard.guarded("out-of-memory observer", _observer(weakref.ref(self)))
            accelerator.observe_failures(ran_out)

    def end(self) -> None:
        """Disable the callback."""
        self._over = True

    def has_snapshot(self, step: int) -> bool:
        """Whether the last failure was in this step and had a snapshot, so that no second one is needed."""
        return self._last == (step, True)

    def ran_out(self, device: int, wanted: int, limit: int, free: int) -> None:
        """Called by the allocator, on the allocating thread; an exception would replace its error.

        `wanted` is the amount requested from the driver: small requests are rounded up
        (c10/cuda/CUDACachingAllocator.cpp, get_allocation_size), as in torch's own message.
        """
        if self._over or self._busy or self._in_forked_child:
            return
        self._busy = True
        try:
            self._record(device, wanted, limit, free)
        except Exception as error:  # noqa: BLE001 - reported as a note: see above
            self._note(f"the state when memory ran out was not recorded: {type(error).__name__}: {error}")
        finally:
            self._busy = False

    def _record(self, device: int, wanted: int, limit: int, free: int) -> None:
        step = self.steps()
        at, counted = self._place(), None
        if self._accelerator is not None:
            counted = next((f for f in read_figures(self._accelerator) or () if f.device == device), None)
        taken = self._snapshot()
        self._last = (step, taken)
        self._folder.append(
            DeviceFailure(
                step=step,
                kind=self.kind,
                device=device,
                wanted_bytes=wanted,
                limit_bytes=limit,
                free_bytes=free,
                at=at,
                counted=counted,
                looked=taken,
            )
        )

    def _snapshot(self) -> bool:
        began = CLOCK.perf_counter()
        if self.snapshot is None or (
            self._snapshots >= MAX_FREE_SNAPSHOTS and self._spent > _FAILURE_SHARE * (began - self._began)
        ):
            return False
        taken = self.snapshot()
        self._snapshots += taken
        self._spent += CLOCK.perf_counter() - began
        return taken

    def _place(self) -> str:
        """The user's line in this thread or, on an autograd thread, in the one that waits for it."""
        here = users_line(sys._getframe(1))
        return here or users_line(waiting(self._home))


def _observer(failures: weakref.ref[DeviceFailures]) -> Callable[[int, int, int, int], None]:
    def ran_out(device: int, wanted: int, limit: int, free: int) -> None:
        observer = failures()
        if observer is not None:
            observer.ran_out(device, wanted, limit, free)

    return ran_out
