"""How much memory is a process's own, what of it did the kernel copy, and what has it sent that nobody took yet?

Read from `/proc`, as psutil's `memory_full_info` does: 3 ms for a process of 180 MB, of which the kernel takes nearly
all. After a fork every page is shared: one that is written to becomes the process's own, and `Anonymous`, which has
both, does not move. So what is its own and no part of the growth of `Anonymous` was copied (proc(5)).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakscope.originals import open_file, os, resource

Pages = NDArray[np.int64]
"""Numbers of pages, rising, each once."""

PAGE = resource.getpagesize()
_KIB = 1024
_ENTRY = 8
"""Bytes that /proc/PID/pagemap has for each page (Documentation/admin-guide/mm/pagemap.rst)."""
_EXCLUSIVE = np.uint64(1 << 56)
"""Bit of an entry: no other process has the page."""
_GAP = 64
"""Pages between two that are asked for, up to which they are read in one go, chosen."""
_SHARED_TENSORS = "/dev/shm/torch_"
"""Where torch puts what workers send (torch/csrc/refcount/..., NewProcessWideShmHandle)."""
_BLOCK = 512
"""Bytes of a block in what stat says."""


@dataclass(frozen=True)
class Taken:
    """What one process takes of the machine's memory, in bytes."""

    unique: int
    """Of no other process: what would be free if it ended (USS)."""
    proportional: int
    """With its share of what it has together with others (PSS)."""
    anonymous: int
    """Its own and shared since a fork, of no file."""
    mapped: int
    """Those of the unique ones that are of files and of shared memory, as far as the kernel tells them apart."""


def taken_by(pid: int) -> Taken | None:
    """What a process takes; None where it has ended, or may not be read."""
    try:
        with open_file(f"/proc/{pid}/smaps_rollup", "rb") as stream:
            text = stream.read().decode("ascii", "replace")
    except OSError:
        return None
    sizes = {name: int(rest.split()[0]) * _KIB for name, rest in _fields(text)}
    if "Pss" not in sizes:
        return None
    mapped = sizes.get("Private_Clean", 0) + sizes.get("Pss_Shmem", 0)
    return Taken(
        unique=sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0),
        proportional=sizes["Pss"],
        anonymous=sizes.get("Anonymous", 0),
        mapped=mapped,
    )


def _fields(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines()[1:]:
        name, colon, rest = line.partition(":")
        if colon and rest.strip()[:1].isdigit():
            yield name, rest


def copied_bytes(pid: int, pages: Pages) -> int | None:
    """Bytes of those pages, all of them shared at the fork, that the process has a copy of; None as in `taken_by`."""
    count = 0
    try:
        with open_file(f"/proc/{pid}/pagemap", "rb", buffering=0) as stream:
            for run in runs_of(pages):
                first = int(run[0])
                data = os.pread(stream.fileno(), (int(run[-1]) - first + 1) * _ENTRY, first * _ENTRY)
                entries = np.frombuffer(data[: len(data) // _ENTRY * _ENTRY], dtype=np.uint64)
                at = run - first
                count += int(((entries[at[at < len(entries)]] & _EXCLUSIVE) > 0).sum())
    except OSError:
        return None
    return count * PAGE


def runs_of(pages: Pages) -> list[Pages]:
    """The pages in stretches without large gaps."""
    return np.split(pages, np.flatnonzero(np.diff(pages) > _GAP) + 1) if len(pages) else []


def sent_by(pids: Sequence[int]) -> Mapping[int, int]:
    """Bytes by inode of the shared memory with tensors that these processes have sent, and still have open.

    Nobody maps what waits in a queue: it is in no process's figures, and only the open file shows it.
    """
    found: dict[int, int] = {}
    for pid in pids:
        for path in _open_files(pid):
            try:
                if os.readlink(path).startswith(_SHARED_TENSORS):
                    told = os.stat(path)
                    found[told.st_ino] = told.st_blocks * _BLOCK
            except OSError:  # closed meanwhile
                continue
    return found


def _open_files(pid: int) -> Iterable[str]:
    folder = f"/proc/{pid}/fd"
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []
