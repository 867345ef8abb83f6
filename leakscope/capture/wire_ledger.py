"""The book of the wire: each operation is noted as it is issued, and every death of what it moved."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from leakscope.capture.wire_file import FAILED, ISSUED, WAITED, WAITING, WireFile
from leakscope.capture.wire_groups import Groups
from leakscope.capture.wire_places import users_lines
from leakscope.capture.wire_records import Operation

_clock = time.perf_counter
_MOST_BUFFERS = 8
"""Buffers of one collective that are followed; its bytes count them all."""
_MOST_OWNERS = 8

_nbytes = torch._C.TensorBase.nbytes.__get__  # type: ignore[attr-defined]
_storage = torch._C.TensorBase.untyped_storage
_uses = torch._C.TensorBase._use_count  # type: ignore[attr-defined]


class Mark(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows the operation of a tensor or a storage; the operation or the book keeps it."""

    __slots__ = ("address", "operation")
    address: int
    operation: Operation


class Handle(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a Work or a future that knows its operations: one, or all of a coalesced group."""

    __slots__ = ("address", "operations")
    address: int
    operations: tuple[Operation, ...]


class Ledger:
    """Follows buffers, Works and futures by weak references alone."""

    def __init__(self, file: WireFile, zero: float) -> None:
        self.file = file
        self.step = 1
        """The step that is running."""
        self.last_event = zero
        """When something was last issued, waited for or completed."""
        self.last_call = zero
        """When something was last issued, or somebody began to wait."""
        self.works: dict[int, Handle] = {}
        self.futures: dict[int, Handle] = {}
        self.storages: dict[int, Mark] = {}
        self.used = False
        """Something has been issued."""
        self._groups = Groups()
        self._coalescing: dict[str, list[Operation]] = {}
        self._numbers = itertools.count(1)

    # while an operation is issued

    def begin(self, direction: str, group: Any, other: Any, tag: Any, buffers: Sequence[Any], frame: FrameType | None) -> Operation:
        """Note an operation that is about to be handed to C++; `other` is a rank of the group, `frame` its caller's.

        A functional operator gives the group's name, and then `other` is a rank of the world.
        """
        if type(group) is str:
            known = self._groups.named(group)
            other = known.place(other)
        else:
            known = self._groups.of(group)
        channel = known.channels.get((direction, other, tag))
        if channel is None:
            channel = known.open(direction, other, tag)
        step = self.step
        if channel.step != step:
            channel.step, channel.microbatch = step, 0
        else:
            channel.microbatch += 1
        channel.nth += 1
        operation = Operation(next(self._numbers), channel, step, _clock())
        operation.lines = users_lines(frame)
        if buffers:
            _measure(operation, buffers)
            operation.uses = _uses(buffers[0])
        if self._coalescing and known.name in self._coalescing:
            self._coalescing[known.name].append(operation)
        self.file.last.say(operation, ISSUED)
        self.last_event = self.last_call = operation.issued
        self.used = True
        return operation

    def issued(self, operation: Operation, work: Any, buffers: Sequence[Any]) -> None:
        """It was handed over and this is its Work: None where it is done already, or is part of a coalesced group."""
        if buffers:
            _count_owners(operation, buffers[0])
            for buffer in buffers[:_MOST_BUFFERS]:
                self._follow(operation, buffer)
        if not (self._coalescing and operation.channel.group in self._coalescing):
            if work is None:
                self.waited((operation,))
            else:
                self._attach(work, (operation,))
        self.file.issued(operation)

    def returned(self, operation: Operation, buffers: Sequence[Any], made: Sequence[Any] = ()) -> None:
        """A functional operator has returned: these are its buffers, and its Work stays in C++.

        `made` are other tensors that stand for it when it is waited for.
        """
        if buffers:
            _measure(operation, buffers)
        for buffer in (*buffers[:_MOST_BUFFERS], *made):
            self._follow(operation, buffer)
        self.file.issued(operation)

    def refused(self, operation: Operation, error: BaseException) -> None:
        """Handing it over raised."""
        self.failed((operation,), error)
        self.file.issued(operation)

    def start_coalescing(self, group: Any) -> None:
        """From now on operations of this group have one Work together."""
        self._coalescing[self._groups.of(group).name] = []

    def end_coalescing(self, group: Any, work: Any) -> None:
        """`work` is that of everything issued since `start_coalescing`."""
        operations = tuple(self._coalescing.pop(self._groups.of(group).name, ()))
        if operations and work is None:
            self.waited(operations)
        elif operations:
            self._attach(work, operations)

    def _attach(self, work: Any, operations: tuple[Operation, ...]) -> None:
        address = id(work)
        handle = self.works.get(address)
        if handle is not None and handle() is work:  # a backend that gives the same Work twice
            handle.operations += operations
        else:
            handle = Handle(work, self._work_died)
            handle.address, handle.operations = address, operations
            self.works[address] = handle
        for operation in operations:
            operation.work = handle

    def _follow(self, operation: Operation, tensor: Any) -> None:
        """Hear of the deaths of a tensor and of its storage; a storage is followed for its latest operation."""
        # torch.utils.swap_tensors refuses a tensor that has weak references, and is meant for parameters
        if type(tensor) is torch.Tensor:
            mark = Mark(tensor, self._tensor_died)
            mark.operation = operation
            operation.marks.append(mark)
            operation.tensors += 1
        storage = _storage(tensor)
        address = storage._cdata
        known = self.storages.get(address)
        if known is not None and known() is not None:
            before = known.operation
            if before is operation:  # another view of a storage that it has already
                return
            before.reused = operation.issued
            before.marks = [m for m in before.marks if m() is None or m() is not tensor]
            self.changed(before)
        else:
            known = Mark(storage, self._storage_died)
            known.address = address
            self.storages[address] = known
        known.operation = operation
        operation.storages += 1

    # while somebody waits

    def waiting(self, operations: Sequence[Operation]) -> None:
        """A wait has begun."""
        self.last_call = _clock()
        self.file.last.say(operations[-1], WAITING)

    def waited(self, operations: Sequence[Operation]) -> None:
        """A wait has returned."""
        now = self.last_event = _clock()
        for operation in operations:
            if operation.waited is not None:
                continue
            if operation.channel.tag is None and operation.marks:  # a collective's result is one more reference, taken when it completes
                first = operation.marks[0]()
                if first is not None:
                    _count_owners(operation, first)
                del first
            operation.waited = now
            if operation.on_host and operation.completed is None:
                operation.completed = now
            if operation.written:
                self.file.amend(operation)
        self.file.last.say(operations[-1], WAITED)

    def latest_of(self, tensor: Any) -> Operation | None:
        """The operation that used a tensor's storage last; None where it was never on the wire."""
        mark = self.storages.get(_storage(tensor)._cdata)
        return None if mark is None or mark() is None else mark.operation

    def failed(self, operations: Sequence[Operation], error: BaseException) -> None:
        for operation in operations:
            operation.failed = type(error).__name__
            self.changed(operation)
        self.file.last.say(operations[-1], FAILED)

    def completed(self, operations: Sequence[Operation]) -> None:
        """A Work or a future has been seen completed."""
        for operation in operations:
            if operation.completed is None:
                operation.completed = self.last_event = _clock()
                self.changed(operation)

    def came_from(self, operation: Operation, work: Any) -> None:
        """A receive from anybody was answered: by whom?"""
        try:
            place = torch._C._distributed_c10d.Work._source_rank(work)
        except RuntimeError:  # a backend that does not know
            return
        operation.source = self._groups.named(operation.channel.group).rank(place)

    def future_taken(self, operations: tuple[Operation, ...], future: Any) -> None:
        """Whoever has the future can wait for the operations without their Work."""
        for operation in operations:
            operation.future = True
        handle = Handle(future, self._future_died)
        handle.address, handle.operations = id(future), operations
        self.futures[handle.address] = handle

    # the deaths; called by finalizers, at any moment and in any thread

    def _tensor_died(self, mark: Mark) -> None:
        operation = mark.operation
        operation.tensors -= 1
        if operation.tensors <= 0 and operation.tensor_died is None:
            operation.tensor_died = _clock()
            operation.marks.clear()
            if operation.written:
                self.file.amend(operation)

    def _storage_died(self, mark: Mark) -> None:
        if self.storages.get(mark.address) is mark:
            del self.storages[mark.address]
        operation = mark.operation
        operation.storages -= 1
        if operation.storages <= 0 and operation.reused is None:
            operation.storage_died = _clock()
            if operation.written:
                self.file.amend(operation)

    def _work_died(self, handle: Handle) -> None:
        if self.works.get(handle.address) is handle:
            del self.works[handle.address]
        for operation in handle.operations:
            operation.work = None
            operation.work_died = _clock()
            over = operation.future or operation.failed or operation.completed is not None
            operation.dropped = operation.waited is None and not over
            if operation.written:
                self.file.amend(operation)

    def _future_died(self, handle: Handle) -> None:
        if self.futures.get(handle.address) is handle:
            del self.futures[handle.address]

    def changed(self, operation: Operation) -> None:
        if operation.written:
            self.file.amend(operation)

    # looks, steps, the end

    def holds(self) -> Iterator[tuple[Any, Any, str]]:
        """(Work, tensor, name) for each buffer that a Work alive keeps in C++, once for each reference it took."""
        for handle in list(self.works.values()):
            work = handle()
            if work is None:
                continue
            for operation in handle.operations:
                for mark in list(operation.marks):
                    tensor = mark()
                    if tensor is not None:
                        for _ in range(max(1, min(operation.owners, int(_uses(tensor)) - 1))):
                            yield work, tensor, f"{operation.channel.direction} buffer"
                    del tensor
            del work

    def step_ended(self, step: int) -> None:
        """The step of this number is over; what follows belongs to the next."""
        self._coalescing.clear()  # a group whose block raised is never ended
        self.file.step_ended(step)
        self.step = step + 1

    def forget(self) -> None:
        """Let go of every weak reference."""
        for handle in self.works.values():
            for operation in handle.operations:
                operation.work = None
        for mark in self.storages.values():
            mark.operation.marks.clear()
        self.works.clear()
        self.futures.clear()
        self.storages.clear()


def _measure(operation: Operation, buffers: Sequence[Any]) -> None:
    first = buffers[0]
    operation.bytes = sum(map(_nbytes, buffers)) if len(buffers) > 1 else _nbytes(first)
    operation.shape, operation.dtype, operation.on_host = first.shape, first.dtype, first.is_cpu
    operation.buffers = len(buffers)


def _count_owners(operation: Operation, first: Any) -> None:
    more = _uses(first) - operation.uses
    if more > operation.owners:
        operation.owners = min(more, _MOST_OWNERS)
