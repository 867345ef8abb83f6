"""Stands where Python hands an operation to a process group or waits for it, and notes it in the log."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from leakscope.capture.comm.arguments import PLAIN, argument, is_plain, tensors_among
from leakscope.capture.comm.operation_log import OperationLog
from leakscope.capture.comm.work import Waits, fail
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.process.guard import Guard
from leakscope.capture.process.patches import Patches
from leakscope.capture.torch_private import COALESCING, OTHER_COLLECTIVES, Future, c10d
from leakscope.originals import _thread
from leakscope.record.kinds import Direction

COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "all_gather_single",
    "allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "all_to_all_single", "alltoall_base", "alltoall", "barrier", "monitored_barrier",
    *OTHER_COLLECTIVES,
)  # fmt: skip
"""Methods of a process group that move tensors among all its ranks, or hold them back."""
_ONE_LIST = ("allreduce", "broadcast", "reduce")
"""Those of them that have all their tensors in the first argument."""
_POINT_TO_POINT = {"send": Direction.SEND, "recv": Direction.RECV, "recv_anysource": Direction.RECV}

_BY_PLACE = 4
"""Arguments of a send or receive that torch.distributed hands by place: group, tensors, peer and tag."""

Call = Callable[..., Any]


class Calls:
    """Puts the wrappers in; everything goes into the list and out with it."""

    def __init__(self, log: OperationLog, patches: Patches) -> None:
        self._log, self._patches, self.guard = log, patches, patches.guard
        self.inside: set[int] = set()
        """Threads in a call that is noted already; what it calls in turn is part of it."""
        self._met: set[type] = set()
        self._waits = Waits(log, patches.guard)

    def install(self) -> None:
        """Wrap the classes of torch.distributed; those written in Python follow when they are first used."""
        # The classes are wrapped, not torch.distributed.isend: P2POp refuses any other function ("Invalid op"),
        # and torch.distributed.send goes through isend, so wrapping both would count twice.
        kinds = [kind for kind in vars(c10d).values() if isinstance(kind, type)]
        self._met.update(kinds)
        for kind in kinds:
            if issubclass(kind, (c10d.ProcessGroup, c10d.Backend)):
                self._wrap_group(kind)
            elif issubclass(kind, c10d.Work):
                self._wrap_work(kind)
        self._patches.call_before(c10d.ProcessGroup, "__init__", self._meet)
        self._patches.call_before(c10d.Work, "__init__", self._meet)
        waits = self._waits
        self._patches.wrap(Future, "wait", waits.wait_for_future)
        self._patches.call_after(Future, "done", waits.future_answered)
        self._patches.call_after(Future, "then", waits.goes_on)
        self._patches.call_before(torch.utils, "swap_tensors", self._log.let_go)

    def _wrap_group(self, kind: type) -> None:
        for name in vars(kind).keys() & _POINT_TO_POINT.keys():
            self._patches.wrap(kind, name, partial(self._point_to_point, name))
        for name in vars(kind).keys() & set(COLLECTIVES):
            self._patches.wrap(kind, name, partial(self._collective, name))
        for name, after in zip(COALESCING, (self._started, self._ended), strict=True):
            if name in vars(kind):
                self._patches.call_after(kind, name, after)

    def _wrap_work(self, kind: type) -> None:
        waits = self._waits
        for name in vars(kind).keys() & {"wait", "synchronize"}:
            self._patches.wrap(kind, name, waits.wait)
        for name, after in (("is_completed", waits.answered), ("get_future", waits.future_taken)):
            if name in vars(kind):
                self._patches.call_after(kind, name, after)

    def passes(self) -> bool:
        """Whether a call is to go through unnoted: a forked child's, or part of one that is noted."""
        return bool(self.guard.deaf) or _thread.get_ident() in self.inside

    # classes written in Python: their own methods hide those that are wrapped

    def _meet(self, made: Any, *_: Any, **__: Any) -> None:
        for kind in mro(type(made)):
            if kind in self._met:
                break
            self._met.add(kind)
            self._wrap_own(kind)

    def _wrap_own(self, kind: type) -> None:
        own = {name for name, value in vars(kind).items() if isinstance(value, types.FunctionType)}
        if issubclass(kind, c10d.Work):
            for name in own.intersection(("wait", "synchronize")):
                self._patches.wrap(kind, name, self._waits.wait)
            return
        for name in own.intersection(_POINT_TO_POINT):
            self._patches.wrap(kind, name, partial(self._point_to_point_of_own, name))
        for name in own.intersection(COLLECTIVES):
            self._patches.wrap(kind, name, partial(self._collective_of_own, name))

    def _point_to_point_of_own(self, name: str, called: Call) -> Call:
        return self._point_to_point(name, self.alone(called))

    def _collective_of_own(self, name: str, called: Call) -> Call:
        return self._collective(name, self.alone(called))

    def alone(self, called: Call) -> Call:
        """The same call; what it passes on to a group below is not noted again."""
        inside = self.inside

        def within(*args: Any, **kwargs: Any) -> Any:
            me = _thread.get_ident()
            if me in inside:
                return called(*args, **kwargs)
            inside.add(me)
            try:
                return called(*args, **kwargs)
            finally:
                inside.discard(me)

        return within

    # operations

    def _point_to_point(self, name: str, called: Call) -> Call:
        guard = self.guard
        begin, issued, refused = _entries(guard, name, self._log)
        inside, deaf, fault = self.inside, guard.deaf, guard.fault
        direction, anybody = _POINT_TO_POINT[name], name == "recv_anysource"
        rank_name, tag_place = "dstRank" if direction == Direction.SEND else "srcRank", 2 if anybody else 3
        plain = PLAIN

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if deaf or (inside and _thread.get_ident() in inside):
                return called(*args, **kwargs)
            group = tensors = buffers = operation = None
            try:
                if len(args) == _BY_PLACE and not anybody:
                    group, tensors, other, tag = args
                else:
                    group, tensors = args[0], argument(args, kwargs, 1, "tensors", ())
                    other = None if anybody else argument(args, kwargs, 2, rank_name, None)
                    tag = argument(args, kwargs, tag_place, "tag", 0)
                if type(tensors) is list and len(tensors) == 1 and plain.get(type(tensors[0])):
                    buffers = tensors
                else:
                    buffers = list(filter(is_plain, tensors)) if type(tensors) in (list, tuple) else []
                operation = begin(direction, group, other, tag, buffers, sys._getframe(1))
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                fault(name, error)
            del group, tensors
            try:
                work = called(*args, **kwargs)
            except BaseException as error:
                fail(guard, name, refused, operation, error)
                del args, kwargs, buffers
                raise
            try:
                issued(operation, work, buffers)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                fault(name, error)
            return work

        return wrapper

    def _collective(self, name: str, called: Call) -> Call:
        guard = self.guard
        begin, issued, refused = _entries(guard, name, self._log)
        inside, deaf, fault = self.inside, guard.deaf, guard.fault
        direction, alone, plain = name.strip("_"), name in _ONE_LIST, PLAIN

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if deaf or (inside and _thread.get_ident() in inside):
                return called(*args, **kwargs)
            buffers = operation = None
            try:
                if (
                    alone
                    and len(args) > 1
                    and type(args[1]) is list
                    and len(args[1]) == 1
                    and plain.get(type(args[1][0]))
                ):
                    buffers = args[1]
                else:
                    buffers = tensors_among((*args[1:], *kwargs.values()))
                operation = begin(direction, args[0], None, None, buffers, sys._getframe(1))
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                fault(name, error)
            try:
                work = called(*args, **kwargs)
            except BaseException as error:
                fail(guard, name, refused, operation, error)
                del args, kwargs, buffers
                raise
            try:
                issued(operation, work, buffers)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                fault(name, error)
            return work

        return wrapper

    def _started(self, _: Any, group: Any, *__: Any, **___: Any) -> None:
        self._log.start_coalescing(group)

    def _ended(self, work: Any, group: Any, *_: Any, **__: Any) -> None:
        self._log.end_coalescing(group, work)


def _entries(guard: Guard, name: str, log: OperationLog) -> tuple[Call, Call, Call]:
    """What is to be called inside of `try` when an operation begins, was issued, or was refused."""
    return (
        guard.entry(f"beginning of {name}", log.begin),
        guard.entry(f"issue of {name}", log.issued),
        guard.entry(f"refusal of {name}", log.refused),
    )
