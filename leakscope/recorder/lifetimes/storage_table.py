"""The table of storages of a watched step: made, used, shared, released."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.overrides import handle_torch_function, has_torch_function

from leakscope.heap.storages import storage_of
from leakscope.heap.sweep import objects_listed
from leakscope.process.guard import CLOCK, Guard
from leakscope.process.patches import Patches
from leakscope.process.raw_types import mro
from leakscope.process.torch_compat import (
    StorageBase,
    TensorBase,
    address_of_storage,
    has_storage,
    storage_address,
    uses_of_storage,
)
from leakscope.process.user_code import at
from leakscope.run.rows import Phase

Key = tuple[int, int]
"""(operation in its step, number of storages it had made before): the same in every equal step."""

STILL_ALIVE = 1 << 60
"""`died` of a storage that is still alive."""


class StorageRef(weakref.ref[Any]):
    """A weak reference to a storage with its record; its callback runs when the C++ storage dies."""

    __slots__ = ("record",)
    record: StorageRecord


@dataclass(slots=True)
class StorageRecord:
    """One storage; operations are numbered from 0 over the watched steps, -1 is before them."""

    address: int
    bytes: int
    born: int
    ordinal: int
    first: int = -1
    last: int = -1
    died: int = STILL_ALIVE
    born_seconds: float = 0.0
    died_seconds: float = 0.0
    at_peak: int = -1
    """Bytes at the peak, -1 if it was not alive."""
    summed: int = -1
    """The last operation that added a gradient to it."""
    handed_out: bool = False
    """Whether numpy or native code has its address: it then counts as used as long as it lives."""
    storage: int = -1
    """Index in the heap graph of the peak, -1 if it is not there."""
    reference: StorageRef | None = None


class TensorOperation(NamedTuple):
    """One operation run by the dispatcher."""

    name: str
    code: CodeType | None
    """The user's code that called it, and the line."""
    line: int
    phase: Phase
    """forward, backward or optimizer."""
    node: str
    """The grad node that ran it."""
    module: str
    """The module it ran in, by the names of the enclosing modules: `1.linear`."""
    seconds: float
    call: int = -1
    """Sequence number of that grad node."""

    def where(self) -> str:
        """The location, as `train.py:41 forward (aten::addmm)`."""
        inside = f"{self.name} in {self.node}" if self.node else self.name
        return inside if self.code is None else f"{at(self.code.co_filename, self.line)} {self.code.co_name} ({inside})"


OTHER, TENSOR, SEQUENCE = range(3)
"""Kinds of values by type; plain numbers, since every argument of every operation is classified."""


def kind_of(kind: type) -> int:
    """TENSOR, SEQUENCE (a list or tuple) or OTHER, for values of a type."""
    bases = mro(kind)
    if TensorBase in bases:
        return TENSOR
    return SEQUENCE if list in bases or tuple in bases else OTHER


class ValueKinds(dict[type, int]):
    """A cache of `kind_of`."""

    def __missing__(self, kind: type) -> int:
        known = self[kind] = kind_of(kind)
        return known


def each_tensor(value: Any, kinds: ValueKinds, take: Callable[[Any], None]) -> None:
    """Pass on the tensors of a value, at any depth of lists and tuples."""
    kind = kinds[type(value)]
    if kind == TENSOR:
        take(value)
    elif kind == SEQUENCE:
        for item in value:
            each_tensor(item, kinds, take)


def tensors_alive() -> Iterator[Any]:
    """Every tensor that gc lists, and gradients that may exist in C++ only."""
    kinds = ValueKinds()
    for obj in objects_listed():
        if kinds[type(obj)] == TENSOR:
            yield obj
            if TensorBase.is_leaf.__get__(obj) and TensorBase.requires_grad.__get__(obj):
                grad = TensorBase.grad.__get__(obj)
                if grad is not None:
                    yield grad


READS = ("tolist",)
"""Methods of a tensor that read its memory once."""
HANDS_OUT = ("numpy", "__array__", "__dlpack__", "data_ptr")
"""Methods after which others may read and write the memory unseen."""


class RawAccess:
    """Observes these methods while a step is watched, without changing arguments or results."""

    def __init__(
        self, used: Callable[[Any], None], handed_out: Callable[[Any], None], resized: Callable[[Any], None]
    ) -> None:
        self._calls: list[tuple[Any, str, Callable[[Any], None], bool]] = [
            (torch.Tensor, name, used, False) for name in READS
        ]
        self._calls += [(torch.Tensor, name, handed_out, False) for name in HANDS_OUT]
        self._calls.append((torch.UntypedStorage, "resize_", resized, True))

    def enter(self, patches: Patches) -> None:
        """Start observing."""
        for owner, name, report, after in self._calls:
            if after:
                patches.call_after(owner, name, partial(_returned, report))
            else:
                patches.wrap(owner, name, partial(_reporting, patches.guard, f"Tensor.{name}", report))


def _returned(report: Callable[[Any], None], _: object, self: Any, *__: Any, **___: Any) -> None:
    report(self)


def _reporting(guard: Guard, name: str, report: Callable[[Any], None], original: Any) -> Any:
    report, disabled = guard.untraced(name, report), guard.disabled

    def wrapper(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not disabled:
            try:
                report(self)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                guard.internal_error(name, error)
        if has_torch_function((self,)):  # a mode or subclass sees torch's own method, as it would without leakscope
            return handle_torch_function(original, (self,), self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return wrapper


_HOST = torch.device("cpu")
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_is_meta: Any = TensorBase.is_meta.__get__


def _gives_twice(node: Any) -> bool:
    """Whether two gradients of a node go to the same place, as for `x * x`."""
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    return len(set(edges)) < len(edges)


@lru_cache(maxsize=1)
def _uses_of_one_tensor() -> int:
    """Use count of a storage with one tensor and a weak reference.

    Its Python object may count.
    """
    alone = torch.empty(1, device="cpu")
    known = weakref.ref(alone.untyped_storage())
    return int(uses_of_storage(storage_address(alone))) if known is not None else 0


def _address_of(tensor: Any) -> int | None:
    """As `storage_of`, at a tenth of the cost for plain tensors: it runs for every tensor of every operation."""
    if type(tensor) in _PLAIN and has_storage(tensor) and not _is_meta(tensor):
        return storage_address(tensor)  # type: ignore[no-any-return]
    return storage_of(tensor)


class StorageTable:
    """Records by address while alive, all records in order, and the operations; keeps nothing alive."""

    def __init__(self, device: torch.device = _HOST, guard: Guard | None = None) -> None:
        self.device = device
        """The device whose memory counts: one accelerator, or all devices if none is in use."""
        self.operations: list[TensorOperation] = []
        self.records: list[StorageRecord] = []
        self.alive: dict[int, StorageRecord] = {}
        self.live = 0
        """Bytes of all storages known to be alive."""
        self.curve: list[tuple[int, int, int]] = []
        """(operation, live bytes after it, sign) for each operation that allocated something."""
        self.sign = 0
        """A hash of all operations of the step so far: equal for equal steps."""
        self.resizing = False
        """Whether the last operation may have resized an existing storage."""
        self._made = 0
        self._grown = False
        self._died = (guard or Guard()).finalizer_safe("death of a watched storage", self._on_death)

    def begin(self) -> None:
        """Start a step: reset the sign."""
        self.sign = 0

    def operation(self, operation: TensorOperation) -> None:
        """Record an operation; later uses and allocations belong to it."""
        self.operations.append(operation)
        self.sign = hash((self.sign, operation.name))
        self._made = 0

    def add_existing(self, tensors: Iterable[Any]) -> None:
        """Add storages that exist before the first operation."""
        for tensor in tensors:
            address = _address_of(tensor)
            if address is not None and address not in self.alive:
                self._add(tensor, address, -1)

    def used(self, tensor: Any) -> None:
        """Record that the last operation read or wrote this tensor."""
        address = _address_of(tensor)
        if address is None:
            return
        number = len(self.operations) - 1
        record = self.alive.get(address)
        if record is None:  # allocated unseen: in another thread, by numpy, in C++ before the watch began
            record = self._add(tensor, address, -1)
        if record.first < 0:
            record.first = number
        record.last = number

    def made(self, tensor: Any) -> None:
        """Record that the last operation returned this tensor, over a new or a known storage."""
        address = _address_of(tensor)
        if address is None:
            return
        record = self.alive.get(address)
        if record is None:
            self._add(tensor, address, len(self.operations) - 1)
        else:
            record.last = len(self.operations) - 1
            if self.resizing:
                self._resized(tensor, record)

    def summed(self, node: Any, gradient: Any, more: Any) -> StorageRecord | None:
        """The record of a gradient to which the engine, in the current operation, adds another one made by `node`; None
        for other operations.

        Autograd adds in place if nobody else holds the gradient, but not under a dispatch mode (input_buffer.cpp,
        can_accumulate_inplace): the sum then has its own memory, which it does not have without the mode.
        """
        record = self.alive.get(_address_of(gradient) or 0)
        if (
            record is None
            or record.born < 0
            or record.handed_out
            or gradient.is_nested
            or more.is_nested
            or gradient.shape != more.shape
            or gradient.nbytes != record.bytes
        ):
            return None
        made, used, now = self.operations[record.born], self.operations[record.last], self.operations[-1]
        waits = record.last == record.summed or (
            made.call >= 0 and used.call == made.call and (made.call != now.call or _gives_twice(node))
        )
        return record if waits and uses_of_storage(record.address) == _uses_of_one_tensor() else None

    def rebind(self, record: StorageRecord, tensor: Any) -> None:
        """Rebind a record to the storage of this tensor."""
        storage = tensor.untyped_storage()
        del self.alive[record.address]
        record.address = int(address_of_storage(storage))
        record.last = record.summed = len(self.operations) - 1
        record.reference = StorageRef(storage, self._died)
        record.reference.record = record
        self.alive[record.address] = record

    def handed_out(self, tensor: Any) -> None:
        """Record that others may use this tensor's memory unseen from now on."""
        self.used(tensor)
        record = self.alive.get(_address_of(tensor) or 0)
        if record is not None:
            record.handed_out = True

    def resized(self, storage: Any) -> None:
        """Record that a storage has changed its size between two operations."""
        record = self.alive.get(int(address_of_storage(storage)))
        if record is not None:
            now = self._bytes(storage)
            self.live += now - record.bytes
            record.bytes = now
            record.last = len(self.operations) - 1
            self._grown = True

    def count(self) -> None:
        """End the operation: record what is alive now."""
        if self._made or self._grown:
            self._grown = False
            self.curve.append((len(self.operations) - 1, self.live, self.sign))

    def _resized(self, tensor: Any, record: StorageRecord) -> None:
        now = self._bytes(tensor.untyped_storage())
        if now != record.bytes:
            self.live += now - record.bytes
            record.bytes = now
            self._made += 1

    def _add(self, tensor: Any, address: int, born: int) -> StorageRecord:
        storage = tensor.untyped_storage()
        record = StorageRecord(address, self._bytes(storage), born, self._made if born >= 0 else -1, last=born)
        record.born_seconds = CLOCK.perf_counter()
        record.reference = StorageRef(storage, self._died)
        record.reference.record = record
        self.records.append(record)
        self.alive[address] = record
        self.live += record.bytes
        if born >= 0:
            self._made += 1
        return record

    def _bytes(self, storage: Any) -> int:
        """Bytes that count for the storage."""
        return (
            int(StorageBase.nbytes(storage))
            if self.device == _HOST or StorageBase.device.__get__(storage) == self.device
            else 0
        )

    def counts(self, device: str) -> bool:
        """Whether memory of this device counts."""
        return self.device == _HOST or torch.device(device) == self.device

    def _on_death(self, reference: StorageRef) -> None:
        record = reference.record
        record.died = len(self.operations)
        record.died_seconds = CLOCK.perf_counter()
        record.reference = None
        self.live -= record.bytes
        if self.alive.get(record.address) is record:
            del self.alive[record.address]

    def allocation_sites(self) -> Iterator[tuple[Any, str]]:
        """Each live storage made by one of the operations, and its allocation site."""
        for record in list(self.alive.values()):
            storage = record.reference() if record.born >= 0 and record.reference is not None else None
            if storage is not None:
                yield storage, self.operations[record.born].where()

    def clear(self) -> None:
        """Drop everything; no callback runs any more."""
        for record in self.records:
            record.reference = None
        self.records.clear()
        self.alive.clear()
        self.operations.clear()
        self.curve.clear()
