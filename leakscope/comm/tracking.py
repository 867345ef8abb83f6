"""The log of operations, and weak references that note when buffers, Works and futures die."""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from leakscope.comm.operations import CommFile, Groups, LiveOperation, text_of
from leakscope.heap.storages import tensor_bytes
from leakscope.originals import _thread
from leakscope.process.frames import users_lines
from leakscope.process.guard import CLOCK
from leakscope.process.torch_compat import TensorBase, address_of_storage, source_of, uses_of_tensor
from leakscope.run.operations import FAILED, ISSUED, WAITED, WAITING
from leakscope.run.rows import Direction

Tensor = torch.Tensor
storage_of: Any = TensorBase.untyped_storage


Moments = defaultdict["DeathRef", float]
"""Times at which the referents of these weak references died."""


class DeathRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference with its own identity as a key; Python's has the hash of its referent, if alive."""

    __slots__ = ("address",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    address: int


class TensorRef(DeathRef):
    """Reference to a tensor, kept by its operation."""

    __slots__ = ("operation",)
    operation: LiveOperation


class CommStorageRef(DeathRef):
    """Reference to a storage, which may serve several operations in turn; has the latest."""

    __slots__ = ("operation",)
    operation: LiveOperation


class WorkRef(DeathRef):
    """Reference to a Work, with its operation, or those of a coalesced group."""

    __slots__ = ("needs_read", "number", "operations")
    operations: tuple[LiveOperation, ...]
    number: int
    """Number of the latest of them."""
    needs_read: bool
    """Whether something has to be read after a wait for it has returned, see `OperationLog.read_after_wait`."""


class FutureRef(DeathRef):
    """Reference to a future, with the operations that its owner can wait for."""

    __slots__ = ("operations",)
    operations: tuple[LiveOperation, ...]


def moments() -> Moments:
    """A list of times whose `append` is the callback of the weak references."""
    return defaultdict(CLOCK.perf_counter)


class WeakTracker:
    """Everything that is followed, and what has happened to it."""

    def __init__(self, file: CommFile) -> None:
        self.file = file
        self.works: dict[int, WorkRef] = {}
        self.futures: dict[int, FutureRef] = {}
        self.storages: dict[int, CommStorageRef] = {}
        self.waits: deque[tuple[WorkRef, float]] = deque()
        """Works that were waited for, and when the wait returned; not processed yet."""
        self._moments: Moments = moments()
        """Not processed yet."""
        self._note = self._moments.__getitem__
        self._settling = _thread.RLock()

    def attach(self, work: Any, operations: tuple[LiveOperation, ...]) -> None:
        """Watch the death of a Work, and recognise it in waits."""
        address = id(work)
        handle = self.works.get(address)
        if handle is not None and handle() is work:  # a backend that gives the same Work twice
            handle.operations += operations
        else:
            handle = self.works[address] = WorkRef(work, self._note)
            handle.address, handle.operations = address, operations
        handle.number = operations[-1].id
        channel = operations[0].channel
        handle.needs_read = channel.tag is None or channel.peer is None
        for operation in operations:
            operation.work = handle

    def follow(self, operation: LiveOperation, tensors: Sequence[Any]) -> None:
        """Watch the deaths of tensors and their storages; a storage is followed for its latest operation."""
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
                if before is operation:  # another view of a known storage
                    continue
                before.reused = operation.issued
                before.marks = [m for m in before.marks if m() is None or m() is not tensor]
                self.changed(before)
            else:
                known = self.storages[address] = CommStorageRef(storage, note)
                known.address = address
            known.operation = operation
            operation.storages += 1

    def release(self, *tensors: Any) -> None:
        """Remove the weak references: torch.utils.swap_tensors refuses tensors that have any."""
        for tensor in tensors:
            for mark in weakref.getweakrefs(tensor):
                if type(mark) is TensorRef and mark in mark.operation.marks:
                    mark.operation.marks.remove(mark)
                    mark.operation.tensors -= 1
                del mark

    def future_taken(self, operations: tuple[LiveOperation, ...], future: Any) -> None:
        """Record that the owner of the future can wait for the operations without their Work."""
        for operation in operations:
            operation.future = True
        handle = FutureRef(future, self._note)
        handle.address, handle.operations = id(future), operations
        self.futures[handle.address] = handle

    def settle(self) -> None:
        """Process waits and deaths since the last call; runs before every query of an operation."""
        died_at, storages = self._moments, self.storages
        with self._settling:
            while self.waits:
                handle, moment = self.waits.popleft()
                self.enter_wait(handle.operations, moment)
            while died_at:
                died, moment = died_at.popitem()  # other threads may add some meanwhile
                if isinstance(died, TensorRef):
                    operation = died.operation
                    operation.tensors -= 1
                    if operation.tensors:
                        operation.tensors_latest = max(moment, operation.tensors_latest)
                        continue
                    operation.tensor_died = max(moment, operation.tensors_latest)
                    operation.marks.clear()
                elif isinstance(died, CommStorageRef):
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

    def changed(self, operation: LiveOperation) -> None:
        """Record a change of an operation, to be amended on disk."""
        if operation.written:
            self.file.amend(operation)

    def enter_wait(self, operations: Sequence[LiveOperation], moment: float) -> None:
        """Record the return of a wait at this time."""
        for operation in operations:
            if operation.waited is None:
                operation.waited = moment
                if operation.on_host and operation.completed is None:
                    operation.completed = moment
                if operation.written:
                    self.file.amend(operation)

    def forget(self) -> None:
        """Drop every weak reference."""
        self.settle()
        for handle in self.works.values():
            for operation in handle.operations:
                operation.work = None
        for mark in self.storages.values():
            mark.operation.marks.clear()
        self.works.clear()
        self.futures.clear()
        self.storages.clear()


_MAX_BUFFERS = 8
"""Maximum buffers followed per collective; its bytes count all."""
_MAX_OWNERS = 8
"""Maximum references to one buffer attributed to an operation in C++; others may be created meanwhile."""

_nbytes, _shape, _dtype, _is_cpu = (
    getattr(TensorBase, name).__get__ for name in ("nbytes", "shape", "dtype", "is_cpu")
)
_uses = uses_of_tensor


class OperationLog(WeakTracker):
    """Records each operation when it is issued, waited for and seen to complete, and follows its buffers."""

    def __init__(self, file: CommFile, zero: float) -> None:
        super().__init__(file)
        self.last, self._pending = file.last, file.pending
        self.step = 1
        """The current step."""
        self.last_event = zero
        """Time of the last start, wait or completion."""
        self.last_call = zero
        """Time of the last start of an operation or wait."""
        self.missed, self.why = 0, ""
        """Number of failed recordings, and the latest reason."""
        self.used = False
        """Whether anything has been issued."""
        self._groups = Groups()
        self._seen = self._groups.by_id
        self._coalescing: dict[str, list[LiveOperation]] = {}
        self._numbers = itertools.count(1)

    # while an operation is issued

    def begin(
        self, direction: str, group: Any, other: Any, tag: Any, buffers: Sequence[Any], frame: FrameType | None
    ) -> LiveOperation | None:
        """Record an operation before it is passed to C++; `other` is a rank of the group, `frame` the caller's.

        For a functional operator, which names the group, `other` is a world rank. None if recording failed, which is
        reported at the end; the call continues.
        """
        try:
            if type(group) is str:
                known = self._groups.named(group)
                other = known.place(other)
            else:
                met = self._seen.get(id(group))
                known = met if met is not None and met.seen() is group else self._groups.of(group)
            channel = known.channels.get((direction, other, tag))
            if channel is None:
                channel = known.open(direction, other, tag)
            step = self.step
            if channel.step != step:
                channel.step, channel.microbatch = step, 0
            else:
                channel.microbatch += 1
            channel.nth += 1
            # much is inlined from here to `waited`: with cold caches after a step each call costs a microsecond
            lines = users_lines(frame)
            operation = LiveOperation(next(self._numbers), channel, step, lines)
            if buffers:
                first = buffers[0]
                operation.shape, operation.dtype, operation.on_host = _shape(first), _dtype(first), _is_cpu(first)
                try:
                    operation.bytes = _nbytes(first) if len(buffers) == 1 else sum(map(_nbytes, buffers))
                    operation.buffers, operation.uses = len(buffers), _uses(first)
                except RuntimeError:  # a sparse tensor is made of others, which are not followed
                    operation.bytes = tensor_bytes(first)
            if self._coalescing and known.name in self._coalescing:
                self._coalescing[known.name].append(operation)
            self.last_event = self.last_call = operation.issued = now = CLOCK.perf_counter()
            last = self.last
            pack, text = channel.texts.get((lines[0], operation.bytes)) or text_of(channel, lines[0], operation.bytes)
            pack(
                last.map,
                0,
                ISSUED,
                operation.id,
                channel.nth,
                step,
                channel.microbatch,
                now - last.zero,
                len(text),
                text,
            )
            last.shown = operation.id
            self.used = True
            return operation
        except Exception as error:  # noqa: BLE001 - whatever it is, the script's call must go through
            self._miss(error)
            return None

    def issued(self, operation: LiveOperation | None, work: Any, buffers: Sequence[Any]) -> None:
        """Record its Work: None if it is already done or part of a coalesced group."""
        if operation is None:
            return
        try:
            if operation.buffers:
                taken = _uses(buffers[0]) - operation.uses
                if taken > 1:
                    operation.owners = min(taken, _MAX_OWNERS)
                self.follow(operation, buffers if len(buffers) <= _MAX_BUFFERS else buffers[:_MAX_BUFFERS])
            if self._coalescing and operation.channel.group in self._coalescing:
                pass
            elif work is None:
                self.waited((operation,))
            else:
                self.attach(work, (operation,))
            self._pending.append(operation)
        except Exception as error:  # noqa: BLE001 - as above
            self._miss(error)

    def _miss(self, error: Exception) -> None:
        """Count a failed recording, reported at the end; the script's call continues."""
        self.missed += 1
        self.why = f"{type(error).__name__}: {error}"

    def returned(self, operation: LiveOperation | None, buffers: Sequence[Any], made: Sequence[Any] = ()) -> None:
        """Record the buffers of a functional operator that has returned; its Work stays in C++.

        `made` are other tensors that can be waited for in its place.
        """
        if operation is None:
            return
        try:
            if buffers:
                operation.shape, operation.dtype, operation.on_host = (
                    buffers[0].shape,
                    buffers[0].dtype,
                    buffers[0].is_cpu,
                )
                operation.bytes, operation.buffers = sum(map(_nbytes, buffers)), len(buffers)
            self.follow(operation, (*buffers[:_MAX_BUFFERS], *made))
            self._pending.append(operation)
        except Exception as error:  # noqa: BLE001 - as above
            self._miss(error)

    def refused(self, operation: LiveOperation | None, error: BaseException) -> None:
        """Record that issuing it raised."""
        if operation is None:
            return
        self.failed((operation,), error)
        self._pending.append(operation)

    def start_coalescing(self, group: Any) -> None:
        """From now on operations of this group share one Work."""
        self._coalescing[self._groups.of(group).name] = []

    def end_coalescing(self, group: Any, work: Any) -> None:
        """`work` belongs to everything issued since `start_coalescing`."""
        operations = tuple(self._coalescing.pop(self._groups.of(group).name, ()))
        if operations and work is None:
            self.waited(operations)
        elif operations:
            self.attach(work, operations)

    # while somebody waits

    def waiting(self, operations: Sequence[LiveOperation]) -> None:
        """Record that a wait has begun."""
        self.last_call = CLOCK.perf_counter()
        self.last.update(operations[-1], WAITING)

    def waited(self, operations: Sequence[LiveOperation]) -> None:
        """Record that a wait has returned."""
        self.last_event = CLOCK.perf_counter()
        self.enter_wait(operations, self.last_event)
        self.last.update(operations[-1], WAITED)

    def read_after_wait(self, handle: WorkRef, work: Any) -> None:
        """After a wait: read the sender of a receive from any source, and what holds the result of a collective."""
        first = handle.operations[0]
        if first.channel.direction == Direction.RECV:
            self._came_from(first, work)
        for operation in handle.operations:
            if operation.waited is None and operation.channel.tag is None and operation.marks:
                tensor = operation.marks[0]()
                if tensor is not None:  # the result is one more reference, taken when it completes
                    operation.owners = max(operation.owners, min(_uses(tensor) - operation.uses, _MAX_OWNERS))
                del tensor

    def latest_of(self, tensor: Any) -> LiveOperation | None:
        """The last operation that used a tensor's storage; None if there is none."""
        mark = self.storages.get(address_of_storage(storage_of(tensor)))
        return None if mark is None or mark() is None else mark.operation

    def failed(self, operations: Sequence[LiveOperation], error: BaseException) -> None:
        """Record that issuing them, or a wait, has raised."""
        for operation in operations:
            operation.failed = type(error).__name__
            self.changed(operation)
        self.last.update(operations[-1], FAILED)

    def completed(self, operations: Sequence[LiveOperation]) -> None:
        """Record that a Work or future was seen to complete."""
        for operation in operations:
            if operation.completed is None:
                operation.completed = self.last_event = CLOCK.perf_counter()
                self.changed(operation)

    def _came_from(self, operation: LiveOperation, work: Any) -> None:
        """Record the sender of a receive from any source."""
        try:
            place = source_of(work)
        except RuntimeError:  # a backend that does not report it
            return
        operation.source = self._groups.named(operation.channel.group).rank(place)

    # snapshots, steps, the end

    def holds(self) -> Iterator[tuple[Any, Any, str]]:
        """Yield (Work or future, tensor, name) for each buffer that a live one holds in C++, once per reference."""
        self.settle()
        handles: list[WorkRef | FutureRef] = [*self.works.values(), *self.futures.values()]
        for handle in handles:
            owner = handle()
            if owner is None:
                continue
            for operation in handle.operations:
                # a collective without a wait may have taken its result after its owners were counted
                result = operation.waited is None and operation.channel.tag is None
                for mark in list(operation.marks):
                    tensor = mark()
                    if tensor is not None:
                        for _ in range(max(1, min(operation.owners + result, int(_uses(tensor)) - 1))):
                            yield owner, tensor, f"{operation.channel.direction} buffer"
                    del tensor
            del owner

    def step_ended(self, step: int) -> None:
        """Called when this step is over; what follows belongs to the next."""
        self._coalescing.clear()  # a group whose block raised is never ended
        self.file.step_ended(step)
        self.step = step + 1
