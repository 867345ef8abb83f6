"""The sampler of a worker process, and the steps after which workers are sampled."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from leakscope.heap._sweep_fallback import LARGE
from leakscope.heap.autograd import Role, Types
from leakscope.heap.referents import items_of
from leakscope.heap.sizeof import Measure, item_text, newest_items
from leakscope.originals import open_file
from leakscope.process import user_code
from leakscope.process.guard import CLOCK, is_the_scripts
from leakscope.process.raw_types import (
    container_base,
    instance_dict,
    is_leakscopes,
    made_in_python,
    mro,
    mro_tuple,
    type_dict,
    type_name,
    type_qualname,
)
from leakscope.process.torch_compat import TensorBase, without_functions
from leakscope.process.user_code import at, class_attribute_line, is_users, local_line
from leakscope.run.descriptors import open_private
from leakscope.run.rows import GrowingInWorker, WorkerSnapshot, to_line
from leakscope.run.secrets import json_of

_AT_ONCE_S = 0.25
"""Seconds that sampling may take regardless of the budget, so that a short run has samples. Heuristic."""
_SHARE_AT_FIRST = 0.05
"""Share of the elapsed time that the first samples may take. Heuristic."""
_FIRST = 12
"""Number of first samples. Heuristic."""
_ENDS = 3
"""Worker lifetimes whose last sample counts as one of the first. Heuristic."""
_SPACING_FACTOR = 1.1
"""Minimum factor between the step numbers of samples after the first ones."""


@dataclass
class Readings:
    """Schedules the samples of all workers of one rank."""

    budget: float
    """Share of the run's time that leakscope may take."""
    spent: float = 0.0
    """Seconds spent on sampling."""
    _taken: int = 0
    _ends: int = 0
    _last: int = 0
    _cost: float = 0.0

    def due(self, step: int, elapsed: float) -> bool:
        """Whether a sample is due at the end of this step, `elapsed` seconds into the run."""
        if self._taken >= _FIRST and step < self._last * _SPACING_FACTOR:
            return False
        return self.affords(elapsed)

    def affords(self, elapsed: float, last: bool = False) -> bool:
        """Whether another sample is within the budget, the `last` in the workers' life or not."""
        after = self.spent + self._cost
        self._ends += last
        first = (
            self._taken < _FIRST or (last and self._ends <= _ENDS)
        ) and after <= _AT_ONCE_S + _SHARE_AT_FIRST * elapsed
        return first or after <= self.budget * (elapsed + self._cost)

    def taken(self, step: int, seconds: float) -> None:
        """Record the cost of a sample."""
        self._taken += 1
        self._last, self._cost = step, seconds
        self.spent += seconds


_MAX_DEPTH = 8
"""Maximum references followed from a start. Heuristic."""
_MAX_OBJECTS = 4_000
"""Maximum objects examined. Heuristic: about 4 ms."""
_MAX_CONTAINER_LENGTH = 32
"""Maximum length of a container that is examined; of a larger one only the length is read. Heuristic."""
LRU_CACHE: Any = type(lru_cache(lambda: None))
_NOT_INTO = (type, ModuleType, FunctionType)
_file = vars(ModuleType)["__dict__"].__get__


@dataclass(frozen=True, eq=False)
class ContainerPlace:
    """A place in the program, as written in code."""

    written: str
    """`self.samples`, `samples`, `Images.cache`."""
    owner: str
    """Qualified name of the class that has it, or the module's name."""
    file: str = ""
    """The file that defines it, "" if it is not the user's."""
    name: str = ""
    """The name that is bound."""

    def line(self) -> str:
        """The line that sets it, as `train.py:12`; "" if unknown."""
        if not self.file:
            return ""
        in_module = self.written.startswith(self.name)
        found = (
            local_line(self.file, "", self.name)
            if in_module
            else class_attribute_line(self.file, self.owner, self.name)
        )
        return at(self.file, found) if found else ""


@dataclass(frozen=True, eq=False)
class FoundContainer:
    """A container, or the cache of a function."""

    obj: Any
    place: ContainerPlace


def containers_of(dataset: Any, modules: Sequence[str]) -> Iterator[FoundContainer]:
    """Every container reachable from the dataset, then those of these modules."""
    yield from _Walk().from_each(dataset, modules)


def users_modules() -> tuple[str, ...]:
    """Names of the user's modules; finding them visits every module."""
    found = []
    for name, module in list(sys.modules.items()):
        if type(module) is ModuleType and name != "__mp_main__":
            file = _file(module).get("__file__")
            if type(file) is str and is_users(file):
                found.append(name)
    return tuple(found)


class _Walk:
    """One breadth-first walk that visits each object once."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._waiting: deque[tuple[Any, ContainerPlace, int]] = deque()

    def from_each(self, dataset: Any, modules: Sequence[str]) -> Iterator[FoundContainer]:
        self._add(dataset, ContainerPlace("self", type_qualname(type(dataset))), 0)
        yield from self._found()
        for name in modules:
            module = sys.modules.get(name)
            names = _file(module) if type(module) is ModuleType else {}
            for key, value in list(names.items()):
                if type(key) is str and not key.startswith("__"):
                    self._add(value, ContainerPlace(key, name, str(names.get("__file__", "")), key), 1)
        yield from self._found()

    def _add(self, obj: Any, place: ContainerPlace, deep: int) -> None:
        if id(obj) not in self._seen and len(self._seen) < _MAX_OBJECTS and deep <= _MAX_DEPTH and _is_followed(obj):
            self._seen.add(id(obj))
            self._waiting.append((obj, place, deep))

    def _found(self) -> Iterator[FoundContainer]:
        while self._waiting:
            obj, place, deep = self._waiting.popleft()
            kind = type(obj)
            base = tuple if kind is tuple else container_base(kind)
            if kind is LRU_CACHE:
                yield FoundContainer(obj, place)
            elif base is not None:
                yield FoundContainer(obj, place)
                self._items(obj, base, place, deep)
            elif _is_classes(obj, kind):
                self._class_attributes(obj, deep)
            else:
                self._attributes(obj, kind, place, deep)

    def _items(self, container: Any, base: Any, place: ContainerPlace, deep: int) -> None:
        if base.__len__(container) > _MAX_CONTAINER_LENGTH:
            return
        if base is dict:
            for key, value in list(dict.items(container)):
                written = f"[{key!r}]" if type(key) in (str, int) else "[...]"
                self._add(value, _below(place, written), deep + 1)
        else:
            for item in list(base.__iter__(container)):
                self._add(item, _below(place, "[i]"), deep + 1)

    def _attributes(self, obj: Any, kind: type, place: ContainerPlace, deep: int) -> None:
        for name, value in list((instance_dict(obj, kind) or {}).items()):
            if type(name) is str:
                self._add(value, _attribute(name, kind, place), deep + 1)
        for each in mro_tuple(kind):
            self._add(each, ContainerPlace(type_qualname(each), type_qualname(each)), deep + 1)

    def _class_attributes(self, kind: type, deep: int) -> None:
        name, file = type_qualname(kind), _file_of(kind)
        for key, value in list(type_dict(kind).items()):
            if type(key) is str and not (key.startswith("__") and key.endswith("__")):
                self._add(value, ContainerPlace(f"{name}.{key}", name, file, key), deep + 1)


def _is_followed(obj: Any) -> bool:
    """Whether it is a container, a function cache, a class of the user or an instance of a Python class."""
    kind = type(obj)
    if kind is tuple or kind is LRU_CACHE or container_base(kind) is not None or _is_classes(obj, kind):
        return True
    return made_in_python(kind) and not issubclass(kind, _NOT_INTO) and not is_leakscopes(kind)


def _is_classes(obj: Any, kind: type) -> bool:
    """Whether it is a class of the user."""
    return issubclass(kind, type) and bool(_file_of(obj))


def _file_of(kind: type) -> str:
    """The file of a class of the user, "" for any other."""
    module = type_dict(kind).get("__module__")
    found = sys.modules.get(module) if type(module) is str else None
    file = _file(found).get("__file__") if isinstance(found, ModuleType) else None
    return file if type(file) is str and is_users(file) else ""


def _below(place: ContainerPlace, written: str) -> ContainerPlace:
    return replace(place, written=f"{place.written}{written}")


def _attribute(name: str, kind: type, place: ContainerPlace) -> ContainerPlace:
    """An attribute of an instance, as its class writes it."""
    file, owner = _file_of(kind), type_qualname(kind)
    if not file:
        return _below(place, f".{name}")
    return ContainerPlace(f"self.{name}", owner, file, name)


_ITEMS_DEEPEST = 3
"""Maximum nesting of containers. Heuristic."""
_MAX_ITEMS = 64
"""Maximum items examined per container. Heuristic."""
_NBYTES: Any = np.ndarray.__dict__["nbytes"]


def bytes_of(items: Sequence[tuple[Any, ...]]) -> int:
    """Total bytes of these items: storages of tensors, data of arrays, and Python objects."""
    types = Types()
    found: dict[int, int] = {}
    for item in items:
        for part in item:
            for obj in _parts(part, _ITEMS_DEEPEST):
                found[id(obj)] = _data_bytes(obj, types)
    measure = Measure(types)
    measure.add([part for item in items for part in item])
    return sum(found.values()) + round(measure.taken()[0])


def _parts(obj: Any, deep: int) -> Iterator[Any]:
    """The object and the contents of containers and records in it."""
    yield obj
    kind = type(obj)
    base = tuple if kind is tuple else container_base(kind)
    inner: Any = ()
    if deep and base is not None:
        inner = dict.values(obj) if base is dict else items_of(obj) if base is tuple else base.__iter__(obj)
    elif deep and (attributes := instance_dict(obj, kind)) is not None:
        inner = attributes.values()
    for part in list(islice(inner, _MAX_ITEMS)):
        yield from _parts(part, deep - 1)


def _data_bytes(obj: Any, types: Types) -> int:
    """Bytes that `Measure` excludes: tensors, arrays and large bytes objects."""
    kind = type(obj)
    if types.role(kind) is Role.TENSOR:
        with without_functions():
            return int(TensorBase.untyped_storage(obj).nbytes())
    if np.ndarray in mro(kind):
        size = int(_NBYTES.__get__(obj))
    else:
        size = len(obj) if kind is bytes or kind is bytearray else 0
    return size if size >= LARGE else 0


_MAX_REPORTED = 8
"""Maximum containers reported by one sample, those with most bytes. Heuristic."""
_MIN_REPORTED_BYTES = 4096
"""Minimum bytes gained to be reported. Heuristic."""


@dataclass(frozen=True)
class Worker:
    """The settings of a worker."""

    file: str
    """File for its rows: `loader_workers.jsonl` of the rank."""
    loader: int
    life: int
    number: int
    budget: float
    modules: tuple[str, ...]
    """The user's modules."""


@dataclass
class _Seen:
    """A container when first seen, and its growth since."""

    length: int
    last: int
    gained: int = 0
    bytes: float = 0.0
    item: str = ""
    where: str | None = None


def run(worker: Worker, places: tuple[int, int], target: Callable[..., Any], *args: Any) -> Any:
    """Run the worker function and sample in between; `places` are the positions of dataset and queue
    in its arguments.
    """
    with suppress(Exception):  # it then runs without
        begin(worker, *(args[place] for place in places))
    return target(*args)


def begin(worker: Worker, dataset: Any, queue: Any) -> None:
    """Make the worker sample itself whenever it takes an index from this queue."""
    watch = _Watch(worker, dataset)
    get: Callable[..., Any] = queue.get

    def get_next(*args: Any, **kwargs: Any) -> Any:
        watch.between_batches()
        following = get(*args, **kwargs)
        watch.batches += 1
        return following

    queue.get = get_next


class _Watch:
    """The samples of one worker."""

    def __init__(self, worker: Worker, dataset: Any) -> None:
        self._worker, self._dataset = worker, dataset
        self._readings = Readings(worker.budget)
        self._began = CLOCK.perf_counter()
        self._seen: dict[int, _Seen] = {}
        self.batches = 0
        """Number of batches requested so far."""
        self._last_snapshot: int | None = None
        self._over = False

    def between_batches(self) -> None:
        """Sample if due; an internal error only ends the sampling."""
        now = CLOCK.perf_counter()
        if self._over or self._last_snapshot == self.batches or not self._readings.due(self.batches, now - self._began):
            return
        self._last_snapshot = self.batches
        try:
            self._take_snapshot()
        except Exception as error:
            self._over = True
            if is_the_scripts(error):
                raise
        self._readings.taken(self.batches, CLOCK.perf_counter() - now)

    def _take_snapshot(self) -> None:
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
            if seen.gained and seen.bytes >= _MIN_REPORTED_BYTES:
                grown.append(_row(seen, found, length))
        self._seen = {address: seen for address, seen in self._seen.items() if address in there}
        grown.sort(key=lambda each: -each.bytes)
        worker = self._worker
        row = WorkerSnapshot(worker.loader, worker.life, worker.number, self.batches, tuple(grown[:_MAX_REPORTED]))
        with open_file(worker.file, "ab", buffering=0, opener=open_private) as stream:  # atomically: others add to it
            stream.write(json_of(to_line(row)) + b"\n")


def _length(found: FoundContainer) -> int | None:
    """Number of items; None for a container that is bounded or cannot grow."""
    kind = type(found.obj)
    if kind is LRU_CACHE:
        cache = found.obj.cache_info()
        return cache.currsize if cache.maxsize is None else None
    base = container_base(kind)
    if base is None or getattr(found.obj, "maxlen", None) is not None:
        return None
    return int(base.__len__(found.obj))


def _add(seen: _Seen, found: FoundContainer, more: int) -> None:
    """Add a sample of the newest items, scaled to all."""
    items = _newest(found, more)
    if items:
        seen.item = item_text(items)
        seen.bytes += bytes_of(items) * more / len(items)
    seen.gained += more


def _newest(found: FoundContainer, more: int) -> list[tuple[Any, ...]]:
    if type(found.obj) is LRU_CACHE:
        return []
    return newest_items(found.obj, container_base(type(found.obj)), more)


def _row(seen: _Seen, found: FoundContainer, length: int) -> GrowingInWorker:
    if seen.where is None:
        seen.where = found.place.line()
        user_code.forget()
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
