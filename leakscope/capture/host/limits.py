"""How near is this process to the memory that the host lets it have?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from leakscope.originals import Path, open_file, os, resource
from leakscope.shield import Block, PureBlock

NEAR = 0.9
"""Share of a limit, chosen, from which a process is near it."""
_EARLIEST = 0.75
"""Share of a limit, chosen, below which nothing is near it."""
_BYTES_A_BLOCK = 128
"""Bytes that a look takes for each block of Python's allocator; 60 to 84 were measured, from 300,000 objects to
1,300,000."""
_PAGE = resource.getpagesize()
_SIZE, _RESIDENT, _DATA = 0, 1, 5
"""Fields of /proc/self/statm, in pages (proc(5))."""


@dataclass(frozen=True)
class Near:
    """A limit that has come near."""

    limit: str
    """`the control group's limit`: what stands in the way."""
    limit_bytes: int
    used_bytes: int
    """What counts against the limit now."""


@dataclass(frozen=True)
class ControlGroup:
    """One control group with a limit that this process is in, its own or one above it."""

    limit_bytes: int
    usage: Path
    statistics: Path
    inactive: str
    """Name of the page cache that is given back before anybody runs out, in `statistics`."""

    def used(self) -> int:
        """Bytes that count: the group's, less what the kernel can drop at once.

        The statistics are read only when it matters.
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
    """Says once that a limit has come near, and whether a look still has room; about 40 microseconds a question."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._groups = tuple(control_groups(proc / "self"))
        self._said = False

    def near(self) -> Near | None:
        """The limit that is nearest, the first time that one is near."""
        if self._said:
            return None
        limits = [near for near, ours in self._used() if ours and _is_near(near)]
        self._said = bool(limits)
        return max(limits, key=lambda near: near.used_bytes / near.limit_bytes, default=None)

    def least(self) -> Near | None:
        """The lowest limit; None where none is known."""
        return min((near for near, _ in self._used()), key=lambda near: near.limit_bytes, default=None)

    def room_for_a_look(self) -> bool:
        """Would a look stay below every limit? One that does not could have the kernel end the script."""
        return all(near.used_bytes + _wanted_by_a_look() <= near.limit_bytes for near, _ in self._used())

    def _used(self) -> Iterator[tuple[Near, bool]]:
        """Every limit, and whether it is this process, or its group, that comes near it."""
        fields = _text(self._proc / "self" / "statm").split()
        if len(fields) <= _DATA:
            return
        size, resident, data = (int(fields[place]) * _PAGE for place in (_SIZE, _RESIDENT, _DATA))
        for kind, used in (("RLIMIT_AS", size), ("RLIMIT_DATA", data)):
            soft, _ = resource.getrlimit(getattr(resource, kind))  # asked each time: a script may set it late
            if soft != resource.RLIM_INFINITY:
                yield Near(f"the process's {kind}", soft, used), True
        for group in self._groups:
            yield Near("its control group's memory limit", group.limit_bytes, group.used()), True
        fields_of = dict(line.split(":", 1) for line in _text(self._proc / "meminfo").splitlines() if ":" in line)
        if "MemAvailable" in fields_of:
            total, available = (int(fields_of[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
            # a machine that others have filled is not this process's doing
            yield Near("the machine's memory", total, total - available), resident >= available


def _is_near(near: Near) -> bool:
    if near.used_bytes >= NEAR * near.limit_bytes:
        return True
    # earlier where that would leave no room to look
    return (
        near.used_bytes >= _EARLIEST * near.limit_bytes and near.limit_bytes - near.used_bytes < 2 * _wanted_by_a_look()
    )


def _wanted_by_a_look() -> int:
    return _BYTES_A_BLOCK * sys.getallocatedblocks()


def more_room() -> PureBlock[None]:
    """Raise this process's own limits as far as it may, for a look when an allocation has failed of them."""
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
    """The control groups of a process that limit its memory, version 1 or 2; `process` is its folder under /proc."""
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
    """From the process's own group up to the topmost that is to be seen, those with a limit."""
    # without a namespace of its own a container sees a path of the host's and only its own group's files
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
    """What a file of the kernel's says, "" where it is not there."""
    try:
        with open_file(path, "rb", buffering=0) as stream:
            return stream.read().decode("ascii", "replace")
    except OSError:
        return ""
