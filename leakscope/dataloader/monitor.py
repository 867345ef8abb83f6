"""Memory of worker processes and of tensors in their queues, read by the parent from the kernel."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leakscope.dataloader.agent import LRU_CACHE, FoundContainer, Readings, Worker, containers_of, run, users_modules
from leakscope.heap.autograd import bytes_at
from leakscope.heap.sizeof import item_text, oldest_items
from leakscope.originals import gc, open_file, os, resource
from leakscope.process.frames import users_line
from leakscope.process.guard import CLOCK
from leakscope.process.patches import Patches
from leakscope.process.raw_types import (
    container_base,
    is_leakscopes,
    made_in_python,
    type_dict,
    type_name,
    type_qualname,
)
from leakscope.process.torch_compat import (
    ENDS_WORKERS,
    LOADER_ITERATOR,
    LOADER_WORKERS,
    RecordingPart,
    lacks,
    loader_workers_of,
    method_of,
    pinned_bytes,
    pins,
    places_in_worker,
    setting,
)
from leakscope.run.rows import SharedObjects, WorkerMemory, WorkerSnapshot, WorkersRead, WorkersStarted
from leakscope.run.writer import RankFolder

if TYPE_CHECKING:
    from leakscope.recorder.steps.policy import Schedule

Pages = NDArray[np.int64]
"""Page numbers, ascending and distinct."""

PAGE = resource.getpagesize()
_KIB = 1024
_ENTRY = 8
"""Bytes per page in /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst)."""
_EXCLUSIVE = np.uint64(1 << 56)
"""Bit of an entry: no other process maps the page."""
_GAP = 64
"""Maximum gap in pages that is read in one go. Heuristic."""
_SHARED_TENSORS = "/dev/shm/torch_"
"""Where torch puts tensors that workers send (torch/csrc/refcount/..., NewProcessWideShmHandle)."""
_BLOCK = 512
"""Bytes of a block in stat."""


@dataclass(frozen=True)
class Taken:
    """Memory of one process, in bytes."""

    unique: int
    """Unique set size (USS): what would be freed if the process ended."""
    proportional: int
    """Proportional set size (PSS): including its share of pages shared with others."""
    anonymous: int
    """Anonymous memory, private or shared since a fork."""
    mapped: int
    """The part of the unique bytes that belongs to files and shared memory, as far as the kernel distinguishes them."""


def taken_by(pid: int) -> Taken | None:
    """Memory of a process; None if it has ended or may not be read."""
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
    """Bytes of those pages, all shared at the fork, that the process has copied; None as in `taken_by`."""
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
    """The pages as stretches without large gaps."""
    return np.split(pages, np.flatnonzero(np.diff(pages) > _GAP) + 1) if len(pages) else []


def sent_by(pids: Sequence[int]) -> Mapping[int, int]:
    """Bytes by inode of shared memory with tensors that these processes have sent and still hold open.

    Queued tensors are unmapped, so no process's RSS includes them; only the open file shows them.
    """
    found: dict[int, int] = {}
    for pid in pids:
        for path in _open_files(pid):
            try:
                if os.readlink(path).startswith(_SHARED_TENSORS):
                    status = os.stat(path)
                    found[status.st_ino] = status.st_blocks * _BLOCK
            except OSError:  # closed meanwhile
                continue
    return found


def _open_files(pid: int) -> Iterable[str]:
    folder = f"/proc/{pid}/fd"
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []


MIN_OBJECTS = 10_000
"""Minimum objects of a container to be considered. Heuristic."""
_MIN_PAGE_BYTES = 1 << 20
"""Minimum bytes of its pages. Heuristic."""
_MAX_OBJECTS = 6_000_000
"""Objects of one container whose address is read. Heuristic: about half a second."""
_MAX_NESTING = 4
"""Maximum nesting of containers. Heuristic."""
_MAX_REPORTED = 4
"""Maximum containers reported, the largest. Heuristic."""
_HEAD = 24
"""Bytes of a list before the pointer to its items (CPython Include/cpython/listobject.h)."""
_WORD = 8
_CONTAINERS = (list, dict, tuple, set, frozenset, deque)


@dataclass(frozen=True, eq=False)
class Shared:
    """A large container, and the pages of its objects."""

    row: SharedObjects
    pages: Pages


class SharedContainers:
    """Large containers of the datasets of this process; each is examined once, before the first fork."""

    def __init__(self) -> None:
        self.found: tuple[Shared, ...] = ()
        """Containers of the most recently examined dataset."""
        self._known: dict[tuple[int, int], Shared | None] = {}
        """By the container's address and length."""

    def find(self, dataset: Any, modules: Sequence[str]) -> None:
        """Find the large containers that a dataset or the user's `modules` reach."""
        shared = [self._shared(found) for found in containers_of(dataset, modules)]
        largest = sorted((each for each in shared if each is not None), key=lambda each: -each.row.bytes)
        self.found = tuple(largest[:_MAX_REPORTED])

    def _shared(self, found: FoundContainer) -> Shared | None:
        kind = type(found.obj)
        base = tuple if kind is tuple else container_base(kind)
        if kind is LRU_CACHE or base is None or "[" in found.place.written:  # its items are reported with it
            return None
        key = id(found.obj), int(base.__len__(found.obj))
        if key not in self._known:
            self._known[key] = _of(found, base, key[1])
        return self._known[key]


def _of(found: FoundContainer, base: Any, items: int) -> Shared | None:
    addresses, count = _addresses(found.obj, base)
    pages = _pages(addresses)
    if count < MIN_OBJECTS or len(pages) * PAGE < _MIN_PAGE_BYTES:
        return None
    some = oldest_items(found.obj, base, items) if base is not tuple else [(item,) for item in found.obj[:8]]
    row = SharedObjects(
        written=found.place.written,
        owner=found.place.owner,
        where=found.place.line(),
        type=type_name(type(found.obj)),
        item=item_text(some),
        items=items,
        objects=count,
        bytes=len(pages) * PAGE,
    )
    return Shared(row, pages)


def _addresses(container: Any, base: Any) -> tuple[list[Pages], int]:
    """Return (addresses of the objects in a container and nested ones, their number)."""
    if base is list and _is_flat(container):
        found = _items_at(container)
        return [found], len(found)
    addresses: list[Pages] = []
    count, level = 0, [container]
    seen: set[int] = set()
    for _ in range(_MAX_NESTING):
        level = gc.get_referents(*level)
        count += len(level)
        addresses.append(np.fromiter(map(id, level), np.int64, len(level)))
        inner = [kind for kind in set(map(type, level)) if _is_nested(kind)]
        if not inner or count > _MAX_OBJECTS:
            break
        level = [obj for obj in level if type(obj) in inner and id(obj) not in seen]
        seen.update(map(id, level))
    return addresses, count


def _is_flat(items: Any) -> bool:
    """Whether the first items of a list have no referents, so that no object needs to be read."""
    return not any(_is_nested(type(item)) for item in list.__getitem__(items, slice(0, 8)))


def _items_at(items: Any) -> Pages:
    """Addresses of the items of a list, read from its storage."""
    length = list.__len__(items)
    place = ctypes.c_void_p.from_address(id(items) + _HEAD).value
    if not length or not place:
        return np.empty(0, np.int64)
    # another thread may have moved the list: some pages are then wrong
    data = bytes_at(place, length * _WORD)
    return np.frombuffer(data, dtype=np.int64) if len(data) == length * _WORD else np.empty(0, np.int64)


def _is_nested(kind: type) -> bool:
    """Whether the referents of an object of this type belong to the container: containers and records."""
    if any(kind is each for each in _CONTAINERS):
        return True
    module = type_dict(kind).get("__module__")
    of_torch = type(module) is str and module.partition(".")[0] in ("torch", "numpy")
    return made_in_python(kind) and not issubclass(kind, type) and not is_leakscopes(kind) and not of_torch


def _pages(addresses: Sequence[Pages]) -> Pages:
    """The pages of objects at these addresses, each once."""
    found = [np.unique(each // PAGE) for each in addresses if len(each)]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class _Started:
    """The workers of one iterator."""

    row: WorkersStarted
    pids: tuple[int, ...]
    shared: tuple[Shared, ...]
    iterator: weakref.ref[Any]
    """The script's iterator."""


class LoaderWorkers:
    """Samples the workers of all loaders of one rank; without workers it costs one list test a step."""

    def __init__(self, folder: RankFolder, schedule: Schedule) -> None:
        self._folder, self._schedule = folder, schedule
        self._readings = Readings(schedule.budget)
        self._live: list[_Started] = []
        self._loaders: dict[tuple[str, str, int], int] = {}
        self._lives: dict[int, int] = {}
        self._next: tuple[int, int] | None = None
        """Loader and lifetime of the iterator under construction."""
        self._modules: tuple[str, ...] = ()
        self._containers = SharedContainers()
        self._began = CLOCK.perf_counter()
        self._step = 0
        self._aside = 0.0
        self._reported = False

    def install(self, patches: Patches) -> None:
        """Watch the creation of iterators that start workers."""
        if lacks(RecordingPart.WORKERS):
            return
        patches.call_before(LOADER_ITERATOR, "__init__", self._starting)
        patches.call_after(LOADER_ITERATOR, "__init__", self._started)
        patches.call_before(BaseProcess, "start", self._process_starts)
        patches.call_before(LOADER_ITERATOR, ENDS_WORKERS, self._ending)

    def _process_starts(self, process: Any, *_: Any, **__: Any) -> None:
        """Make a worker of the iterator under construction sample itself."""
        target: Any = getattr(process, "_target", None)
        args = getattr(process, "_args", ())
        places = places_in_worker(target)
        if self._next is not None and places is not None and len(args) > max(places):
            number, dataset, queue = places
            file = str(self._folder.path / f"{WorkerSnapshot.FILE}.jsonl")
            worker = Worker(file, *self._next, args[number], self._schedule.budget, self._modules)
            inside = partial(run, worker, (dataset, queue), target)
            inside.__module__ = LOADER_WORKERS  # its identity
            process._target = inside

    def _starting(self, _: Any, loader: Any, *__: Any, **___: Any) -> None:
        """Read the dataset before the fork, so that no worker copies its pages because of the read."""
        began = CLOCK.perf_counter()
        dataset = setting(loader, "dataset")
        self._modules = users_modules()
        if method_of(loader) == "fork":
            self._containers.find(dataset, self._modules)
        key = users_line(sys._getframe()), type_qualname(type(dataset)), setting(loader, "num_workers") or 0
        number = self._loaders.setdefault(key, len(self._loaders))
        life = self._lives[number] = self._lives.get(number, 0) + 1
        self._next = number, life
        self._aside += CLOCK.perf_counter() - began

    def _started(self, _: None, iterator: Any, loader: Any, *__: Any, **___: Any) -> None:
        began = CLOCK.perf_counter()
        pids = tuple(worker.pid for worker in loader_workers_of(iterator))
        if pids:
            self._add(iterator, loader, pids, users_line(sys._getframe()))
        elif not self._reported:
            self._reported = True
            self._folder.note("the processes of a DataLoader are unknown: the memory of its workers is not recorded")
        self._aside += CLOCK.perf_counter() - began

    def _add(self, iterator: Any, loader: Any, pids: tuple[int, ...], at: str) -> None:
        assert self._next is not None
        number, life = self._next
        self._next = None
        method = method_of(loader)
        shared = self._containers.found if method == "fork" else ()
        row = WorkersStarted(
            step=self._step,
            loader=number,
            life=life,
            workers=len(pids),
            method=method,
            dataset=type_qualname(type(setting(loader, "dataset"))),
            started_at=at,
            prefetch=setting(loader, "prefetch_factor"),
            persistent=setting(loader, "persistent_workers") is True,
            pinned=pins(iterator),
            shared=tuple(each.row for each in shared),
        )
        started = _Started(row, pids, shared, weakref.ref(iterator))
        self._live.append(started)
        self._folder.append(row)
        if method == "fork":
            self._read([started])

    def _ending(self, iterator: Any, *_: Any, **__: Any) -> None:
        """Take the last sample of these workers."""
        ending = [started for started in self._live if started.iterator() is iterator]
        if ending:
            began = CLOCK.perf_counter()
            if self._readings.affords(began - self._began, last=True):
                self._read(ending, last=True)
            self._live = [started for started in self._live if started not in ending]
            self._aside += CLOCK.perf_counter() - began

    def step_ended(self, step: int) -> float:
        """Sample all workers if due, always at the last step of the run; return the seconds spent outside of step ends
        since the last call.
        """
        self._step = step
        aside, self._aside = self._aside, 0.0
        if self._live:
            began = CLOCK.perf_counter()
            self._live = [started for started in self._live if started.iterator() is not None]
            if step == self._schedule.steps or self._readings.due(step, began - self._began):
                self._read(self._live)
        return aside

    def _read(self, some: Iterable[_Started], last: bool = False) -> None:
        began = CLOCK.perf_counter()
        for started in some:
            # workers that were not forked start with imports: they grow until each has loaded a batch
            if started.row.method != "fork" and self._step - started.row.step < len(started.pids) and not last:
                continue
            memory = tuple(found for k, pid in enumerate(started.pids) if (found := _memory(k, pid, started.shared)))
            if memory:
                sent = sent_by(started.pids)
                self._folder.append(
                    WorkersRead(
                        step=self._step,
                        loader=started.row.loader,
                        life=started.row.life,
                        workers=memory,
                        sent_bytes=sum(sent.values()),
                        sent=len(sent),
                        pinned_bytes=pinned_bytes() if started.row.pinned else None,
                        last=last,
                    )
                )
        self._readings.taken(self._step, CLOCK.perf_counter() - began)


def _memory(worker: int, pid: int, shared: Iterable[Shared]) -> WorkerMemory | None:
    taken = taken_by(pid)
    if taken is None:
        return None
    copied = tuple(copied_bytes(pid, each.pages) or 0 for each in shared)
    return WorkerMemory(worker, taken.unique, taken.proportional, taken.anonymous, taken.mapped, copied)
