"""What keeps growing inside of a worker? Looked at there, between two batches, and written to the rank's folder.

A worker shares its parent's memory: whatever a look touches is copied. So only lengths of containers are read, of those
that a dataset and the user's modules lead to, and only some of the newest items of what has grown are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from leakscope.capture.heap.objects.items import item_text, newest_items
from leakscope.capture.heap.raw_types import container_base, type_name
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.process.guard import is_the_scripts
from leakscope.capture.source import user_source
from leakscope.capture.workers.items import bytes_of
from leakscope.capture.workers.named import LRU_CACHE, Found, containers_of
from leakscope.capture.workers.readings import Readings
from leakscope.originals import open_file
from leakscope.record.descriptors import open_private
from leakscope.record.rows.row import to_line
from leakscope.record.rows.workers import GrowingInWorker, WorkerLook
from leakscope.record.secrets import json_of

_MOST_TOLD = 8
"""Containers that one look tells, those with most bytes, chosen."""
_LEAST = 4096
"""Bytes that one has to have gained to be told, chosen."""


@dataclass(frozen=True)
class Worker:
    """What a worker is told of itself."""

    file: str
    """Where its rows go: `loader_workers.jsonl` of the rank."""
    loader: int
    life: int
    number: int
    budget: float
    modules: tuple[str, ...]
    """Of the user's own."""


@dataclass
class _Seen:
    """A container as it was when it was first seen, and what it has gained since."""

    length: int
    last: int
    gained: int = 0
    bytes: float = 0.0
    item: str = ""
    where: str | None = None


def run(worker: Worker, places: tuple[int, int], target: Callable[..., Any], *args: Any) -> Any:
    """What runs in a worker, with looks in between; `places`: of its arguments, the dataset and the queue."""
    with suppress(Exception):  # then it runs without
        begin(worker, *(args[place] for place in places))
    return target(*args)


def begin(worker: Worker, dataset: Any, queue: Any) -> None:
    """Have the worker look at itself whenever it asks this queue for what to load next."""
    watch = _Watch(worker, dataset)
    get: Callable[..., Any] = queue.get

    def get_next(*args: Any, **kwargs: Any) -> Any:
        watch.between_batches()
        following = get(*args, **kwargs)
        watch.batches += 1
        return following

    queue.get = get_next


class _Watch:
    """The looks of one worker at itself."""

    def __init__(self, worker: Worker, dataset: Any) -> None:
        self._worker, self._dataset = worker, dataset
        self._readings = Readings(worker.budget)
        self._began = CLOCK.perf_counter()
        self._seen: dict[int, _Seen] = {}
        self.batches = 0
        """Asked for so far."""
        self._looked: int | None = None
        self._over = False

    def between_batches(self) -> None:
        """Look if that is due; an error of ours ends the looking, and nothing else."""
        now = CLOCK.perf_counter()
        if self._over or self._looked == self.batches or not self._readings.due(self.batches, now - self._began):
            return
        self._looked = self.batches
        try:
            self._look()
        except Exception as error:
            self._over = True
            if is_the_scripts(error):
                raise
        self._readings.taken(self.batches, CLOCK.perf_counter() - now)

    def _look(self) -> None:
        grown: list[GrowingInWorker] = []
        there = set()
        for found in containers_of(self._dataset, self._worker.modules):
            length = _length(found)
            if length is None:
                continue
            there.add(id(found.obj))
            seen = self._seen.setdefault(id(found.obj), _Seen(length, length))
            if length > seen.last:
                _add(seen, found, length - seen.last)
            seen.last = length
            if seen.gained and seen.bytes >= _LEAST:
                grown.append(_row(seen, found, length))
        self._seen = {address: seen for address, seen in self._seen.items() if address in there}
        grown.sort(key=lambda each: -each.bytes)
        worker = self._worker
        row = WorkerLook(worker.loader, worker.life, worker.number, self.batches, tuple(grown[:_MOST_TOLD]))
        with open_file(worker.file, "ab", buffering=0, opener=open_private) as stream:  # at once: others add to it
            stream.write(json_of(to_line(row)) + b"\n")


def _length(found: Found) -> int | None:
    """How many items it has; None for what has a bound of its own, or cannot gain any."""
    kind = type(found.obj)
    if kind is LRU_CACHE:
        told = found.obj.cache_info()
        return told.currsize if told.maxsize is None else None
    base = container_base(kind)
    if base is None or getattr(found.obj, "maxlen", None) is not None:
        return None
    return int(base.__len__(found.obj))


def _add(seen: _Seen, found: Found, more: int) -> None:
    """Add what the newest items stand for."""
    items = _newest(found, more)
    if items:
        seen.item = item_text(items)
        seen.bytes += bytes_of(items) * more / len(items)
    seen.gained += more


def _newest(found: Found, more: int) -> list[tuple[Any, ...]]:
    if type(found.obj) is LRU_CACHE:
        return []
    return newest_items(found.obj, container_base(type(found.obj)), more)


def _row(seen: _Seen, found: Found, length: int) -> GrowingInWorker:
    if seen.where is None:
        seen.where = found.place.line()
        user_source.forget()
    return GrowingInWorker(
        written=found.place.written,
        owner=found.place.owner,
        where=seen.where,
        type=type_name(type(found.obj)),
        item=seen.item,
        items=length,
        gained=seen.gained,
        bytes=round(seen.bytes),
    )
