"""Patches of torch.distributed: process groups, functional collectives and Work."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch

from leakscope.comm.tracking import OperationLog
from leakscope.originals import _thread
from leakscope.process.guard import CLOCK, Guard
from leakscope.process.patches import Patches
from leakscope.process.raw_types import mro, type_dict
from leakscope.process.torch_compat import (
    CALLED,
    COALESCING,
    OTHER_COLLECTIVES,
    Future,
    TensorBase,
    builtins_known,
    c10d,
    called_by,
    frames_compiled,
    functional_operators,
    inductor_options,
    name_of_packet,
    no_dispatch_of_its_own,
    register_builtin,
)
from leakscope.run.operations import WAITED, WAITING
from leakscope.run.rows import Direction

PLAIN: dict[type, bool] = {torch.Tensor: True, torch.nn.Parameter: True}
"""Type, mapped to whether it is a tensor with its own memory; filled by `is_plain`."""


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, missing: Any) -> Any:
    """The argument at this position or of this name."""
    return args[place] if place < len(args) else kwargs.get(name, missing)


def is_plain(value: Any) -> bool:
    """Whether this is a tensor with its own memory, not of a type that stands for others, such as DTensor."""
    kind = type(value)
    plain = PLAIN.get(kind)
    if plain is None:
        bases = mro(kind)
        own = next((type_dict(b)["__torch_dispatch__"] for b in bases if "__torch_dispatch__" in type_dict(b)), None)
        plain = PLAIN[kind] = TensorBase in bases and own is no_dispatch_of_its_own
    return plain


def tensors_among(values: Iterable[Any]) -> list[Any]:
    """Plain tensors among arguments and lists of them, each once, in order."""
    tensors: dict[int, Any] = {}
    for value in values:
        for item in value if type(value) in (list, tuple) else (value,):
            for tensor in item if type(item) in (list, tuple) else (item,):
                if is_plain(tensor):
                    tensors[id(tensor)] = tensor
    return list(tensors.values())


Call = Callable[..., Any]


class WaitHooks:
    """Replacements for methods of a Work and of a future, and the callbacks after them."""

    def __init__(self, log: OperationLog, guard: Guard) -> None:
        self._log, self._guard = log, guard

    def wait(self, called: Call) -> Call:
        """Replacement for `wait` and `synchronize` of a Work."""
        log, works, last, waits, guard = self._log, self._log.works, self._log.last, self._log.waits, self._guard
        disabled, failed = guard.disabled, guard.untraced("failure of Work.wait", log.failed)
        begins, ended = (
            guard.untraced(f"{moment} of Work.wait", CLOCK.perf_counter) for moment in ("beginning", "end")
        )

        # written out: code after a wait runs with cold caches
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            work = args[0]
            handle = works.get(id(work))
            if handle is None or handle() is not work or disabled:
                del work
                return called(*args, **kwargs)
            try:
                log.last_call = begins()
                if last.shown == handle.number:
                    last.map[:6] = WAITING
                else:
                    last.update(handle.operations[-1], WAITING)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                guard.internal_error("Work.wait", error)
            try:
                result = called(*args, **kwargs)
            except BaseException as error:
                fail(guard, "Work.wait", failed, handle.operations, error)
                del work, args, kwargs
                raise
            try:
                if handle.needs_read:
                    log.read_after_wait(handle, work)
                log.last_event = now = ended()
                waits.append((handle, now))
                if last.shown == handle.number:
                    last.map[:6] = WAITED
                else:
                    last.update(handle.operations[-1], WAITED)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not become the script's
                guard.internal_error("Work.wait", error)
            return result

        return wrapper

    def wait_for_future(self, called: Call) -> Call:
        """Replacement for `wait` of a future."""
        log, guard, name = self._log, self._guard, "Future.wait"
        disabled, failed = guard.disabled, guard.untraced(f"failure of {name}", log.failed)
        begins = guard.guarded(f"beginning of {name}", self._future_waits)
        ended = guard.guarded(f"end of {name}", log.waited)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            operations = None if disabled else begins(args[0])
            if not operations:
                return called(*args, **kwargs)
            try:
                result = called(*args, **kwargs)
            except BaseException as error:
                fail(guard, name, failed, operations, error)
                del args, kwargs
                raise
            ended(operations)
            return result

        return wrapper

    def _future_waits(self, future: Any) -> Any:
        operations = _of(self._log.futures, future)
        if operations:
            self._log.waiting(operations)
        return operations

    # after a method has returned

    def answered(self, answer: object, work: Any) -> None:
        """`is_completed` of a Work; once true, it stays true."""
        if answer and (operations := _of(self._log.works, work)):
            self._log.completed(operations)

    def future_answered(self, answer: object, future: Any) -> None:
        """`done` of a future."""
        if answer and (operations := _of(self._log.futures, future)):
            self._log.completed(operations)

    def future_taken(self, future: Any, work: Any) -> None:
        """`get_future` of a Work: its owner may wait for it instead."""
        if operations := _of(self._log.works, work):
            self._log.future_taken(operations, future)

    def continued_by(self, later: Any, future: Any, *_: Any, **__: Any) -> None:
        """`future.then(...)` returns a future that completes later."""
        if operations := _of(self._log.futures, future):
            self._log.future_taken(operations, later)


def fail(guard: Guard, name: str, failed: Callable[..., object], about: Any, error: BaseException) -> None:
    """Record that a call has raised; the script's error continues."""
    if guard.disabled:
        return
    try:
        failed(about, error)
    except Exception as ours:  # noqa: BLE001 - whatever it is, it must not become the script's
        guard.internal_error(name, ours)


def _of(handles: dict[int, Any], handle_of: Any) -> Any:
    """The operations of a Work or future; None if it is unknown."""
    handle = handles.get(id(handle_of))
    return handle.operations if handle is not None and handle() is handle_of else None


COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "all_gather_single",
    "allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "all_to_all_single", "alltoall_base", "alltoall", "barrier", "monitored_barrier",
    *OTHER_COLLECTIVES,
)  # fmt: skip
"""Methods of a process group that move tensors among all ranks, or synchronize them."""
_ONE_LIST = ("allreduce", "broadcast", "reduce")
"""Collectives with all tensors in the first argument."""
_POINT_TO_POINT = {"send": Direction.SEND, "recv": Direction.RECV, "recv_anysource": Direction.RECV}

_BY_PLACE = 4
"""Positional arguments of a send or receive from torch.distributed: group, tensors, peer and tag."""


class CommPatches:
    """Installs the wrappers; all of them are in the list of patches and removed with it."""

    def __init__(self, log: OperationLog, patches: Patches) -> None:
        self._log, self._patches, self.guard = log, patches, patches.guard
        self.inside: set[int] = set()
        """Threads in a recorded call, whose inner calls are part of it."""
        self._met: set[type] = set()
        self._waits = WaitHooks(log, patches.guard)

    def install(self) -> None:
        """Wrap the classes of torch.distributed; Python classes follow on first use."""
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
        self._patches.call_after(Future, "then", waits.continued_by)
        self._patches.call_before(torch.utils, "swap_tensors", self._log.release)

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
        """Whether a call is not recorded: in a forked child, or part of a recorded one."""
        return bool(self.guard.disabled) or _thread.get_ident() in self.inside

    # Python classes: their own methods override the wrapped ones

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
        """Make the call without recording what it passes to an inner group."""
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
        inside, disabled, fault = self.inside, guard.disabled, guard.internal_error
        direction, anybody = _POINT_TO_POINT[name], name == "recv_anysource"
        rank_name, tag_place = "dstRank" if direction == Direction.SEND else "srcRank", 2 if anybody else 3
        plain = PLAIN

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if disabled or (inside and _thread.get_ident() in inside):
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
        inside, disabled, fault = self.inside, guard.disabled, guard.internal_error
        direction, alone, plain = name.strip("_"), name in _ONE_LIST, PLAIN

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if disabled or (inside and _thread.get_ident() in inside):
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
    """Callbacks for the start, success and failure of an operation; call them inside `try`."""
    return (
        guard.untraced(f"beginning of {name}", log.begin),
        guard.untraced(f"issue of {name}", log.issued),
        guard.untraced(f"refusal of {name}", log.refused),
    )


_COPYING = ("all_reduce", "all_reduce_coalesced", "broadcast")
"""Operators that send a copy of their input; the others send the input itself."""
_COLLECTIVES = (
    *_COPYING, "all_reduce_", "all_reduce_coalesced_", "broadcast_",
    "all_gather_into_tensor", "all_gather_into_tensor_out",
    "all_gather_into_tensor_coalesced", "reduce_scatter_tensor", "reduce_scatter_tensor_out",
    "reduce_scatter_tensor_coalesced", "all_to_all_single",
)  # fmt: skip
_FUNCTIONAL_POINT_TO_POINT = {"isend": Direction.SEND, "irecv": Direction.RECV}
_POINT_TO_POINT_ARGUMENTS = 4
"""Tensor, peer, tag and group, passed by position (torch/csrc/distributed/c10d/Functional.cpp)."""
_BATCHED_ARGUMENTS = 5
"""Directions, peers, tags, tensors and group."""
_AUTOGRAD = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")


class RecordedOperator:
    """Replacement for an operator's `_op`, which it calls."""

    __slots__ = ("__weakref__", "called", "wrapper")

    def __init__(self, called: Call, wrapper: Call) -> None:
        self.called, self.wrapper = called, wrapper

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original."""
        return self.wrapper(*args, **kwargs)

    # an operator's hash is that of its `_op`, and many tables have it as their key
    def __hash__(self) -> int:
        return hash(self.called)

    def __eq__(self, other: object) -> bool:
        return self is other or self.called == other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.called, name)


def install(log: OperationLog, calls: CommPatches, patches: Patches) -> None:
    """Record calls of the functional operators."""
    functional, autograd = functional_operators()
    for name in _COLLECTIVES:
        _replace(functional, name, partial(_collective, log, calls, name), patches)
    for name in _FUNCTIONAL_POINT_TO_POINT:
        _replace(functional, name, partial(_point_to_point, log, calls, name), patches)
    _replace(functional, "batch_p2p_ops", partial(_batched, log, calls), patches)
    _replace(functional, "wait_tensor", partial(_waits, log, calls), patches)
    for name in _AUTOGRAD:
        _replace(autograd, name, partial(_collective, log, calls, name), patches)


def unseen() -> str:
    """A sentence if compiled code of this process calls the operators without Python; else ""."""
    config = inductor_options()
    if config is None or not frames_compiled():
        return ""
    # the option may be missing in a later torch
    options = [
        ("a C++ wrapper", getattr(config, "cpp_wrapper", False)),
        ("CUDA graphs", getattr(getattr(config, "triton", None), "cudagraphs", False)),
    ]
    unseen = " and ".join(name for name, on in options if on)
    return f"torch.compile uses {unseen}: communication of compiled code is not recorded" if unseen else ""


def _replace(namespace: Any, name: str, make: Callable[[Call], Call], patches: Patches) -> None:
    packet = getattr(namespace, name, None)  # another torch may have fewer
    if packet is None:
        return
    for operator in (packet, *(getattr(packet, overload) for overload in packet.overloads())):
        original = called_by(operator)
        recorded = RecordedOperator(original, make(original))
        # TorchScript knows operators by the id of their `_op`
        register_builtin(recorded, str(name_of_packet(packet)))
        patches.add(f"TorchScript entry of {operator}", partial(builtins_known().pop, id(recorded), None))
        patches.replace(operator, CALLED, recorded, label=f"{operator}.{CALLED}")


def _noting(
    calls: CommPatches, name: str, begin: Callable[..., Any], ended: Callable[..., Any], failed: Call, called: Call
) -> Call:
    """Replacement for an operator: `begin` returns what to record of a call, None to skip it.

    `ended` receives that and the result, `failed` that and the error.
    """
    guard, alone = calls.guard, calls.alone(called)
    begin, disabled = guard.guarded(f"beginning of {name}", begin), guard.disabled
    ended, failed = guard.guarded(f"end of {name}", ended), guard.untraced(f"failure of {name}", failed)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        noted = None if disabled or calls.passes() else begin(sys._getframe(1), *args, **kwargs)
        if noted is None:
            return called(*args, **kwargs)
        try:
            result = alone(*args, **kwargs)
        except BaseException as error:
            fail(guard, name, failed, noted, error)
            del args, kwargs, noted
            raise
        ended(noted, result)
        return result

    return wrapper


def _collective(log: OperationLog, calls: CommPatches, name: str, called: Call) -> Call:
    direction, copies = name.rstrip("_").removesuffix("_out"), name in _COPYING

    def begin(frame: FrameType, *args: Any, **kwargs: Any) -> Any:
        given = _real((*args, *kwargs.values()))
        group = args[-1] if args else kwargs.get("group_name")
        if not given or type(group) is not str:
            return None
        return log.begin(direction, group, None, None, given, frame), given

    def ended(noted: Any, result: Any) -> None:
        operation, given = noted
        made = _real((result,))
        log.returned(operation, made if copies else tensors_among((made, given)))

    return _noting(calls, name, begin, ended, lambda noted, error: log.refused(noted[0], error), called)


def _point_to_point(log: OperationLog, calls: CommPatches, name: str, called: Call) -> Call:
    direction = _FUNCTIONAL_POINT_TO_POINT[name]

    def begin(frame: FrameType, *args: Any, **_: Any) -> Any:
        buffers = _real(args[:1])
        if len(args) != _POINT_TO_POINT_ARGUMENTS or not buffers:
            return None
        _, peer, tag, group = args
        return log.begin(direction, group, peer, tag, buffers, frame), buffers

    def ended(noted: Any, result: Any) -> None:
        operation, buffers = noted
        log.returned(operation, buffers, _others(result, buffers))

    return _noting(calls, name, begin, ended, lambda noted, error: log.refused(noted[0], error), called)


def _batched(log: OperationLog, calls: CommPatches, called: Call) -> Call:
    def begin(frame: FrameType, *args: Any, **_: Any) -> Any:
        if len(args) != _BATCHED_ARGUMENTS or not all(map(_is_real, args[3])):
            return None
        names, peers, tags, tensors, group = args
        return [
            (log.begin(_FUNCTIONAL_POINT_TO_POINT.get(name, name), group, peer, tag, [tensor], frame), tensor)
            for name, peer, tag, tensor in zip(names, peers, tags, tensors, strict=True)
        ]

    def ended(noted: Any, result: Any) -> None:
        for (operation, tensor), stands_for in zip(noted, result, strict=True):
            log.returned(operation, [tensor], _others(stands_for, [tensor]))

    def failed(noted: Any, error: BaseException) -> None:
        for operation, _ in noted:
            log.refused(operation, error)

    return _noting(calls, "batch_p2p_ops", begin, ended, failed, called)


def _waits(log: OperationLog, calls: CommPatches, called: Call) -> Call:
    def begin(_: FrameType, *args: Any, **__: Any) -> Any:
        buffers = _real(args[:1])
        operation = log.latest_of(buffers[0]) if buffers else None
        if operation is None:
            return None
        log.waiting((operation,))
        return (operation,)

    def ended(noted: Any, _: Any) -> None:
        log.waited(noted)

    return _noting(calls, "wait_tensor", begin, ended, log.failed, called)


def _others(result: Any, buffers: Sequence[Any]) -> list[Any]:
    """Results that an operator returns to be waited for: an empty tensor for `isend`, its own buffer for `irecv`."""
    return [tensor for tensor in _real((result,)) if all(tensor is not buffer for buffer in buffers)]


def _real(values: Sequence[Any]) -> list[Any]:
    """The tensors with memory among them; tracing passes others."""
    return [tensor for tensor in tensors_among(values) if _is_real(tensor)]


def _is_real(value: Any) -> bool:
    return is_plain(value) and value.layout is torch.strided and not value.is_meta
