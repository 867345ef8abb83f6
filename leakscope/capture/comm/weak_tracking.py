"""Follows tensors, storages, Works and futures by weak references alone: when did each of them die?

The moment is noted in C and entered later. A finalizer in Python would run in the middle of the program's own work, in
whatever thread, with cold caches. A weak reference calls anything with itself as the argument, and
`defaultdict(perf_counter).__getitem__` of a key that is not there yet calls the clock and keeps the answer under that
key, all without a line of Python.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import torch

from leakscope.capture.comm.operation import Operation
from leakscope.capture.comm.writer import CommFile
from leakscope.capture.process.clock import CLOCK
from leakscope.capture.torch_private import TensorBase, address_of_storage
from leakscope.originals import _thread

Tensor = torch.Tensor
storage_of: Any = TensorBase.untyped_storage


Moments = defaultdict["DeathRef", float]
"""Readings of the clock at which the objects of these references died."""


class DeathRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that is a key by itself; Python's has the hash of its object, which a dead tensor lacks."""

    __slots__ = ("address",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    address: int


class TensorRef(DeathRef):
    """Of a tensor; its operation keeps it."""

    __slots__ = ("operation",)
    operation: Operation


class StorageRef(DeathRef):
    """Of a storage, which may serve one operation after the other; knows the latest."""

    __slots__ = ("operation",)
    operation: Operation


class WorkRef(DeathRef):
    """Of a Work; knows its operations: one, or all of a coalesced group."""

    __slots__ = ("asks", "number", "operations")
    operations: tuple[Operation, ...]
    number: int
    """Of the latest of them."""
    asks: bool
    """Something has to be read off when a wait for it has returned, see `OperationLog.ask`."""


class FutureRef(DeathRef):
    """Of a future; knows the operations that whoever has it can wait for."""

    __slots__ = ("operations",)
    operations: tuple[Operation, ...]


def moments() -> Moments:
    """Its `__getitem__` is the callback of the weak references."""
    return defaultdict(CLOCK.perf_counter)


class WeakTracker:
    """Whatever is followed now, and what has happened to it."""

    def __init__(self, file: CommFile) -> None:
        self.file = file
        self.works: dict[int, WorkRef] = {}
        self.futures: dict[int, FutureRef] = {}
        self.storages: dict[int, StorageRef] = {}
        self.waits: deque[tuple[WorkRef, float]] = deque()
        """Works that have been waited for, and when the wait returned; not entered yet."""
        self._moments: Moments = moments()
        """Not entered yet."""
        self._note = self._moments.__getitem__
        self._settling = _thread.RLock()

    def attach(self, work: Any, operations: tuple[Operation, ...]) -> None:
        """Hear of the death of a Work, and know it when somebody waits for it."""
        address = id(work)
        handle = self.works.get(address)
        if handle is not None and handle() is work:  # a backend that gives the same Work twice
            handle.operations += operations
        else:
            handle = self.works[address] = WorkRef(work, self._note)
            handle.address, handle.operations = address, operations
        handle.number = operations[-1].id
        channel = operations[0].channel
        handle.asks = channel.tag is None or channel.peer is None
        for operation in operations:
            operation.work = handle

    def follow(self, operation: Operation, tensors: Sequence[Any]) -> None:
        """Hear of the deaths of tensors and of their storages; a storage is followed for its latest operation."""
        note = self._note
        for tensor in tensors:
            if type(tensor) is Tensor:
                mark = TensorRef(tensor, note)
                mark.operation = operation
                operation.marks.append(mark)
                operation.tensors += 1
            storage = storage_of(tensor)
            address = address_of_storage(storage)
            known = self.storages.get(address)
            if known is not None and known() is not None:
                before = known.operation
                if before is operation:  # another view of a storage that it has already
                    continue
                before.reused = operation.issued
                before.marks = [m for m in before.marks if m() is None or m() is not tensor]
                self.changed(before)
            else:
                known = self.storages[address] = StorageRef(storage, note)
                known.address = address
            known.operation = operation
            operation.storages += 1

    def let_go(self, *tensors: Any) -> None:
        """Take our weak references off: torch.utils.swap_tensors refuses a tensor that has any."""
        for tensor in tensors:
            for mark in weakref.getweakrefs(tensor):
                if type(mark) is TensorRef and mark in mark.operation.marks:
                    mark.operation.marks.remove(mark)
                    mark.operation.tensors -= 1
                del mark

    def future_taken(self, operations: tuple[Operation, ...], future: Any) -> None:
        """Whoever has the future can wait for the operations without their Work."""
        for operation in operations:
            operation.future = True
        handle = FutureRef(future, self._note)
        handle.address, handle.operations = id(future), operations
        self.futures[handle.address] = handle

    def settle(self) -> None:
        """Enter the waits and deaths since the last time; goes before every question what became of an operation."""
        died_at, storages = self._moments, self.storages
        with self._settling:
            while self.waits:
                handle, moment = self.waits.popleft()
                self.enter_wait(handle.operations, moment)
            while died_at:
                died, moment = died_at.popitem()  # others may come meanwhile, in any thread
                if isinstance(died, TensorRef):
                    operation = died.operation
                    operation.tensors -= 1
                    if operation.tensors:
                        operation.tensors_latest = max(moment, operation.tensors_latest)
                        continue
                    operation.tensor_died = max(moment, operation.tensors_latest)
                    operation.marks.clear()
                elif isinstance(died, StorageRef):
                    if storages.get(died.address) is died:
                        del storages[died.address]
                    operation = died.operation
                    operation.storages -= 1
                    if operation.storages or operation.reused is not None:
                        operation.storages_latest = max(moment, operation.storages_latest)
                        continue
                    operation.storage_died = max(moment, operation.storages_latest)
                elif isinstance(died, WorkRef):
                    self._work_died(died, moment)
                    continue
                else:
                    if self.futures.get(died.address) is died:
                        del self.futures[died.address]
                    continue
                if operation.written:
                    self.file.amend(operation)

    def _work_died(self, handle: WorkRef, moment: float) -> None:
        if self.works.get(handle.address) is handle:
            del self.works[handle.address]
        for operation in handle.operations:
            operation.work = None
            operation.work_died = moment
            over = operation.future or operation.failed or operation.completed is not None
            operation.dropped = (operation.waited is None or operation.waited > moment) and not over
            if operation.written:
                self.file.amend(operation)

    def changed(self, operation: Operation) -> None:
        """Something happened to an operation; on disk it is amended."""
        if operation.written:
            self.file.amend(operation)

    def enter_wait(self, operations: Sequence[Operation], moment: float) -> None:
        """A wait has returned at this moment."""
        for operation in operations:
            if operation.waited is None:
                operation.waited = moment
                if operation.on_host and operation.completed is None:
                    operation.completed = moment
                if operation.written:
                    self.file.amend(operation)

    def forget(self) -> None:
        """Let go of every weak reference."""
        self.settle()
        for handle in self.works.values():
            for operation in handle.operations:
                operation.work = None
        for mark in self.storages.values():
            mark.operation.marks.clear()
        self.works.clear()
        self.futures.clear()
        self.storages.clear()
