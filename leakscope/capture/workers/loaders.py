"""Which loaders of the script's have workers now, and what do these take?"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

from leakscope.capture.heap.raw_types import type_qualname
from leakscope.capture.private_names import Part, lacks
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.patches import Patches
from leakscope.capture.schedule.looks import Schedule
from leakscope.capture.source.user_frames import users_line
from leakscope.capture.torch_data import (
    ENDS_WORKERS,
    LOADER_ITERATOR,
    method_of,
    pinned_bytes,
    pins,
    places_in_worker,
    setting,
    workers_of,
)
from leakscope.capture.torch_private import LOADER_WORKERS
from leakscope.capture.workers.inside import Worker, run
from leakscope.capture.workers.memory import copied_bytes, sent_by, taken_by
from leakscope.capture.workers.named import users_modules
from leakscope.capture.workers.readings import Readings
from leakscope.capture.workers.shared import Shared, SharedContainers
from leakscope.record.folder import RankFolder
from leakscope.record.rows.workers import WorkerLook, WorkerMemory, WorkersRead, WorkersStarted


@dataclass(frozen=True, eq=False)
class _Started:
    """The workers of one iterator."""

    row: WorkersStarted
    pids: tuple[int, ...]
    shared: tuple[Shared, ...]
    iterator: weakref.ref[Any]
    """It is the script's."""


class LoaderWorkers:
    """Reads the workers of all loaders of one rank; without workers it costs a test of a list at each step."""

    def __init__(self, folder: RankFolder, schedule: Schedule) -> None:
        self._folder, self._schedule = folder, schedule
        self._readings = Readings(schedule.budget)
        self._live: list[_Started] = []
        self._loaders: dict[tuple[str, str, int], int] = {}
        self._lives: dict[int, int] = {}
        self._next: tuple[int, int] | None = None
        """Loader and life of the iterator that is being made."""
        self._modules: tuple[str, ...] = ()
        self._containers = SharedContainers()
        self._began = CLOCK.perf_counter()
        self._step = 0
        self._aside = 0.0
        self._told = False

    def install(self, patches: Patches) -> None:
        """Learn of each iterator that starts workers."""
        if lacks(Part.WORKERS):
            return
        patches.call_before(LOADER_ITERATOR, "__init__", self._starting)
        patches.call_after(LOADER_ITERATOR, "__init__", self._started)
        patches.call_before(BaseProcess, "start", self._process_starts)
        patches.call_before(LOADER_ITERATOR, ENDS_WORKERS, self._ending)

    def _process_starts(self, process: Any, *_: Any, **__: Any) -> None:
        """A worker of the iterator that is being made: it is to look at itself."""
        target: Any = getattr(process, "_target", None)
        args = getattr(process, "_args", ())
        places = places_in_worker(target)
        if self._next is not None and places is not None and len(args) > max(places):
            number, dataset, queue = places
            file = str(self._folder.path / f"{WorkerLook.FILE}.jsonl")
            worker = Worker(file, *self._next, args[number], self._schedule.budget, self._modules)
            inside = partial(run, worker, (dataset, queue), target)
            inside.__module__ = LOADER_WORKERS  # it is known by that
            process._target = inside

    def _starting(self, _: Any, loader: Any, *__: Any, **___: Any) -> None:
        """Ahead of the fork: what is read of the dataset here no worker copies for it."""
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
        pids = tuple(worker.pid for worker in workers_of(iterator))
        if pids:
            self._add(iterator, loader, pids, users_line(sys._getframe()))
        elif not self._told:
            self._told = True
            self._folder.note(
                "which processes a DataLoader has started is not known: what its workers take is not told"
            )
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
            shared=tuple(each.told for each in shared),
        )
        started = _Started(row, pids, shared, weakref.ref(iterator))
        self._live.append(started)
        self._folder.append(row)
        if method == "fork":
            self._read([started])

    def _ending(self, iterator: Any, *_: Any, **__: Any) -> None:
        """The last that can be read of these workers."""
        ending = [started for started in self._live if started.iterator() is iterator]
        if ending:
            began = CLOCK.perf_counter()
            if self._readings.affords(began - self._began, last=True):
                self._read(ending, last=True)
            self._live = [started for started in self._live if started not in ending]
            self._aside += CLOCK.perf_counter() - began

    def step_ended(self, step: int) -> float:
        """Read all workers if that is due, at the last step of the run in any case; gives the seconds that were spent
        otherwise than at the ends of steps since the last one.
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
            # others than forked ones begin with imports: until each has loaded a batch they grow
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
