"""Every send, receive and collective of this process, seen where Python hands it to a process group."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from leakscope.capture.installed import Installed
from leakscope.capture.source import at, is_users
from leakscope.capture.wire_file import FAILED, ISSUED, WAITED, WAITING, WireFile
from leakscope.capture.wire_records import Operation
from leakscope.graph.model import Crossing
from leakscope.record import RankFolder

COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "all_gather_single", "_allgather_base",
    "allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "all_to_all_single", "alltoall_base", "alltoall", "barrier", "monitored_barrier",
)  # fmt: skip
"""Methods of a process group that move tensors among all its ranks, or hold them back."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_clock = time.perf_counter
_MOST_BUFFERS = 8
"""Buffers of one collective that are followed; its bytes count them all."""
_MOST_OWNERS = 8
_MOST_CHANNELS = 20_000
_DEEPEST = 60
_USERS: dict[str, bool] = {}
"""File to whether it is the user's; a plain dict is twice as fast as a cached function here."""

_nbytes = torch._C.TensorBase.nbytes.__get__  # type: ignore[attr-defined]
_storage = torch._C.TensorBase.untyped_storage
_uses = torch._C.TensorBase._use_count  # type: ignore[attr-defined]


class _Mark(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that knows its operation; it is the operation that keeps it."""

    __slots__ = ("address", "operation")
    address: int
    operation: Operation


def watch(folder: RankFolder) -> Watch:
    """Start watching: rows go to `wire.jsonl` of the rank's folder, moments are seconds since now."""
    return Watch(folder)


class Watch:
    """Follows buffers and Works by weak references alone. Everything it installs goes with `remove()`."""

    def __init__(self, folder: RankFolder) -> None:
        self.installed = Installed()
        self.step = 1
        """The step that is running."""
        self.last_event = _clock()
        """When something was last issued, waited for or completed."""
        self._file = WireFile(folder, self.last_event)
        self._numbers = itertools.count(1)
        self._works: dict[int, _Mark] = {}
        self._storages: dict[int, _Mark] = {}
        self._channels: dict[tuple[Any, ...], list[int]] = {}
        """(group, direction, peer, tag) to [step, operations in that step, operations in all]."""
        self._groups: dict[tuple[int, str], tuple[int, ...]] = {}
        self._pid = os.getpid()
        self._install()

    # what is put into the process

    def _install(self) -> None:
        from torch._C import _distributed_c10d as c10d

        # The classes are wrapped, not torch.distributed.isend: P2POp refuses any other function ("Invalid op"),
        # and torch.distributed.send goes through isend, so wrapping both would count twice.
        for owner in (c10d.ProcessGroup, c10d.Backend):
            for name, direction in (("send", "send"), ("recv", "recv"), ("recv_anysource", "recv")):
                if name in vars(owner):
                    self._replace(owner, name, self._point_to_point, direction, name == "recv_anysource")
            for name in COLLECTIVES:
                if name in vars(owner):
                    self._replace(owner, name, self._collective, name.strip("_"))
        for name in ("wait", "synchronize"):
            self._replace(c10d.Work, name, self._wait)

    def _replace(self, owner: Any, name: str, instead: Callable[..., Any], *more: Any) -> None:
        original = vars(owner)[name]
        called = getattr(owner, name)

        @functools.wraps(called, updated=())
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return instead(called, args, kwargs, *more)

        setattr(owner, name, wrapper)

        def put_back() -> None:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)

        self.installed.add(f"{owner.__name__}.{name}", put_back)

    def remove(self) -> None:
        """Take everything out and write what is left to write; operations still open are written as they are."""
        self.installed.take_out()
        self._poll()
        for mark in [*self._works.values(), *self._storages.values()]:
            mark.operation.marks.clear()
            mark.operation.work = None
        self._works.clear()
        self._storages.clear()
        self._file.close()

    # while an operation is issued

    def _point_to_point(
        self, called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], direction: str, anybody: bool
    ) -> Any:
        group = args[0]
        tensors = _argument(args, kwargs, 1, "tensors", ())
        other = None if anybody else _argument(args, kwargs, 2, "dstRank" if direction == "send" else "srcRank", None)
        tag = _argument(args, kwargs, 2 if anybody else 3, "tag", 0)
        buffers = [t for t in tensors if type(t) in _PLAIN] if type(tensors) in (list, tuple) else []
        del tensors
        return self._issue(direction, group, other, tag, buffers, called, args, kwargs)

    def _collective(self, called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        return self._issue(name, args[0], None, None, _tensors_among((*args[1:], *kwargs.values())), called, args, kwargs)

    def _issue(
        self, direction: str, group: Any, other: Any, tag: Any, buffers: list[Any], called: Callable[..., Any],
        args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        if os.getpid() != self._pid:
            return called(*args, **kwargs)
        name = _group_name(group)
        peer = self._rank_in_world(group, name, other) if type(other) is int else None
        operation = Operation(next(self._numbers), direction, peer, tag, name, self.step, _clock())
        del group
        self._number(operation)
        operation.issued_at, operation.called_from = _users_lines(sys._getframe(3))
        if buffers:
            first = buffers[0]
            operation.bytes = sum(map(_nbytes, buffers)) if len(buffers) > 1 else _nbytes(first)
            operation.shape, operation.dtype, operation.on_host = first.shape, first.dtype, first.is_cpu
            operation.buffers = len(buffers)
            operation.uses = _uses(first)
        self._file.last.say(operation, ISSUED)
        self.last_event = operation.issued
        try:
            work = called(*args, **kwargs)
        except BaseException as error:
            operation.failed = type(error).__name__
            del args, kwargs, buffers
            self._file.last.say(operation, FAILED)
            self._file.issued(operation)
            raise
        if buffers:
            _count_owners(operation, first)
            del first
            for buffer in buffers[:_MOST_BUFFERS]:
                self._follow(operation, buffer)
        if work is not None:
            mark = _Mark(work, self._work_died)
            mark.operation, mark.address = operation, id(work)
            operation.work = mark
            self._works[mark.address] = mark
        self._file.issued(operation)
        return work

    def _number(self, operation: Operation) -> None:
        key = (operation.group, operation.direction, operation.peer, operation.tag)
        channel = self._channels.get(key)
        if channel is None:
            if len(self._channels) > _MOST_CHANNELS:  # a script that gives every message a tag of its own
                self._channels.clear()
            channel = self._channels[key] = [self.step, 0, 0]
        elif channel[0] != self.step:
            channel[0], channel[1] = self.step, 0
        operation.microbatch = channel[1]
        channel[1] += 1
        channel[2] += 1
        operation.nth = channel[2]

    def _follow(self, operation: Operation, tensor: Any) -> None:
        """Hear of the deaths of a tensor and of its storage; a storage is followed for its latest operation."""
        # torch.utils.swap_tensors refuses a tensor that has weak references, and is meant for parameters
        if type(tensor) is torch.Tensor:
            mark = _Mark(tensor, self._tensor_died)
            mark.operation = operation
            operation.marks.append(mark)
            operation.tensors += 1
        storage = _storage(tensor)
        address = storage._cdata
        known = self._storages.get(address)
        if known is not None and known() is not None:
            before = known.operation
            if before is not operation:
                before.reused = operation.issued
                before.marks = [m for m in before.marks if m() is None or m() is not tensor]
                self._changed(before)
        else:
            known = _Mark(storage, self._storage_died)
            known.address = address
            self._storages[address] = known
        known.operation = operation
        operation.storages += 1

    def _wait(self, called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        work = args[0]
        mark = self._works.get(id(work))
        operation = mark.operation if mark is not None and mark() is work else None
        del work
        if operation is None or os.getpid() != self._pid:
            return called(*args, **kwargs)
        self._file.last.say(operation, WAITING)
        try:
            result = called(*args, **kwargs)
        except BaseException as error:
            operation.failed = type(error).__name__
            self._file.last.say(operation, FAILED)
            raise
        now = self.last_event = _clock()
        if operation.waited is None:
            first = operation.marks[0]() if operation.marks else None
            if first is not None:  # a collective's result is one more reference, taken when it completes
                _count_owners(operation, first)
            del first
            operation.waited = now
            if operation.on_host and operation.completed is None:
                operation.completed = now
            self._file.last.say(operation, WAITED)
            self._changed(operation)
        return result

    # the deaths; called by finalizers, at any moment and in any thread

    def _tensor_died(self, mark: _Mark) -> None:
        operation = mark.operation
        operation.tensors -= 1
        if operation.tensors <= 0 and operation.tensor_died is None:
            operation.tensor_died = _clock()
            operation.marks.clear()
            self._changed(operation)

    def _storage_died(self, mark: _Mark) -> None:
        if self._storages.get(mark.address) is mark:
            del self._storages[mark.address]
        operation = mark.operation
        operation.storages -= 1
        if operation.storages <= 0 and operation.reused is None:
            operation.storage_died = _clock()
            self._changed(operation)

    def _work_died(self, mark: _Mark) -> None:
        if self._works.get(mark.address) is mark:
            del self._works[mark.address]
        operation = mark.operation
        operation.work = None
        operation.work_died = _clock()
        operation.dropped = operation.waited is None and operation.completed is None
        self._changed(operation)

    def _changed(self, operation: Operation) -> None:
        if operation.written:
            self._file.amend(operation)

    # steps, looks, threads

    def step_ended(self, step: int) -> None:
        """The step of this number is over; what follows belongs to the next."""
        if self._channels:  # a script that has not used the wire yet is not waiting for it
            self.last_event = _clock()
        self._poll()
        self._file.step_ended(step)
        self.step = step + 1

    def beat(self) -> None:
        """Called from the watchdog's thread: what is stuck gets on disk."""
        self._file.beat(_clock())

    def last_words(self) -> str:
        """The last operation and what is being done with it, as `wire_last.jsonl` has it."""
        return self._file.last.words()

    def holds(self) -> Iterator[tuple[Any, Any, str]]:
        """(Work, tensor, name) for each buffer that a Work alive keeps in C++, once for each reference it took."""
        for mark in list(self._works.values()):
            work = mark()
            if work is None:
                continue
            operation = mark.operation
            for tensor_mark in list(operation.marks):
                tensor = tensor_mark()
                if tensor is not None:
                    for _ in range(max(1, min(operation.owners, int(_uses(tensor)) - 1))):
                        yield work, tensor, f"{operation.direction} buffer"
                del tensor
            del work

    def crossed(self) -> dict[int, Crossing]:
        """Address of each storage alive to the last operation that used it."""
        alive = [(address, mark) for address, mark in list(self._storages.items()) if mark() is not None]
        return {address: mark.operation.crossing() for address, mark in alive}

    def _poll(self) -> None:
        """See which Works have completed without being waited for."""
        pending = [m for m in list(self._works.values()) if m.operation.waited is None and m.operation.completed is None]
        if not pending or _capturing():
            return
        for mark in pending:
            work = mark()
            if work is not None and work.is_completed():
                mark.operation.completed = self.last_event = _clock()
                self._changed(mark.operation)
            del work

    def _rank_in_world(self, group: Any, name: str, rank: int) -> int:
        key = (id(group), name)
        ranks = self._groups.get(key)
        if ranks is None:
            known = torch.distributed.distributed_c10d._world.pg_group_ranks.get(group, {})
            ranks = self._groups[key] = tuple(sorted(known, key=lambda r: known[r]))
        return ranks[rank] if 0 <= rank < len(ranks) else rank


def _count_owners(operation: Operation, first: Any) -> None:
    operation.owners = min(max(_uses(first) - operation.uses, operation.owners), _MOST_OWNERS)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, missing: Any) -> Any:
    return args[place] if place < len(args) else kwargs.get(name, missing)


def _tensors_among(values: tuple[Any, ...]) -> list[Any]:
    """Plain tensors among arguments and in lists of them, each once, in order."""
    found: dict[int, Any] = {}
    for value in values:
        for item in value if type(value) in (list, tuple) else (value,):
            for tensor in item if type(item) in (list, tuple) else (item,):
                if type(tensor) in _PLAIN:
                    found[id(tensor)] = tensor
    return list(found.values())


def _group_name(group: Any) -> str:
    name = getattr(group, "group_name", None)
    if type(name) is not str:
        name = group.name() if hasattr(group, "name") else ""
    return "default" if name in ("0", "default_pg") else name


def _capturing() -> bool:
    """Asking a Work for completion is not allowed while a CUDA graph is captured."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def _users_lines(frame: FrameType | None) -> tuple[str, str]:
    """The user's line that issued an operation, and where that function was called from."""
    found = ""
    for _ in range(_DEEPEST):
        if frame is None:
            break
        filename = frame.f_code.co_filename
        users = _USERS.get(filename)
        if users is None:
            users = _USERS[filename] = is_users(filename)
        if users:
            line = _place(filename, frame.f_lineno, frame.f_code.co_name)
            if found:
                return found, line
            found = line
        frame = frame.f_back
    return found, ""


@functools.lru_cache(maxsize=4096)
def _place(filename: str, line: int, function: str) -> str:
    return f"{at(filename, line)} {function}"
