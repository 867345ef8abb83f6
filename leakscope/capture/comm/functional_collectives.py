"""Stands in functional collectives, as DTensor, FSDP2 and compiled graphs use them: C++ hands them to the group.

They pass no method of a process group that Python could see. What Python calls is the operator's `_op`, one for the
packet (`torch.ops._c10d_functional.all_reduce`) and one for its overload (`.default`), which compiled graphs call,
Inductor's Python wrapper included. Not seen: code that Inductor compiles to a C++ wrapper, replays of a CUDA graph,
and the backward of the operators in `_c10d_functional_autograd`, which is C++.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch

from leakscope.capture.comm.arguments import is_plain, tensors_among
from leakscope.capture.comm.operation_log import OperationLog
from leakscope.capture.comm.process_group import Calls
from leakscope.capture.comm.work import fail
from leakscope.capture.process.patches import Patches
from leakscope.capture.torch_private import (
    CALLED,
    builtins_known,
    called_by,
    frames_compiled,
    functional_operators,
    inductor_options,
    name_of_packet,
    register_builtin,
)
from leakscope.record.kinds import Direction

_COPYING = ("all_reduce", "all_reduce_coalesced", "broadcast")
"""Operators that send a copy of what they are given; the others send the thing itself."""
_COLLECTIVES = (
    *_COPYING, "all_reduce_", "all_reduce_coalesced_", "broadcast_",
    "all_gather_into_tensor", "all_gather_into_tensor_out",
    "all_gather_into_tensor_coalesced", "reduce_scatter_tensor", "reduce_scatter_tensor_out",
    "reduce_scatter_tensor_coalesced", "all_to_all_single",
)  # fmt: skip
_POINT_TO_POINT = {"isend": Direction.SEND, "irecv": Direction.RECV}
_POINT_TO_POINT_ARGUMENTS = 4
"""Tensor, peer, tag and group: torch hands them by place (torch/csrc/distributed/c10d/Functional.cpp)."""
_BATCHED_ARGUMENTS = 5
"""Directions, peers, tags, tensors and group."""
_AUTOGRAD = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")

Call = Callable[..., Any]


class RecordedOperator:
    """Stands in an operator's `_op` and calls what stood there."""

    __slots__ = ("__weakref__", "called", "wrapper")

    def __init__(self, called: Call, wrapper: Call) -> None:
        self.called, self.wrapper = called, wrapper

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As what stood there is called."""
        return self.wrapper(*args, **kwargs)

    # an operator's hash is that of its `_op`, and many tables have it as their key
    def __hash__(self) -> int:
        return hash(self.called)

    def __eq__(self, other: object) -> bool:
        return self is other or self.called == other

    def __getattr__(self, name: str) -> Any:
        return getattr(self.called, name)


def install(log: OperationLog, calls: Calls, patches: Patches) -> None:
    """Note what goes through the functional operators."""
    functional, autograd = functional_operators()
    for name in _COLLECTIVES:
        _replace(functional, name, partial(_collective, log, calls, name), patches)
    for name in _POINT_TO_POINT:
        _replace(functional, name, partial(_point_to_point, log, calls, name), patches)
    _replace(functional, "batch_p2p_ops", partial(_batched, log, calls), patches)
    _replace(functional, "wait_tensor", partial(_waits, log, calls), patches)
    for name in _AUTOGRAD:
        _replace(autograd, name, partial(_collective, log, calls, name), patches)


def unseen() -> str:
    """One sentence on compiled code of this process that calls the operators without Python; "" where there is none."""
    config = inductor_options()
    if config is None or not frames_compiled():
        return ""
    # an option may be gone from a later torch
    options = [
        ("a C++ wrapper", getattr(config, "cpp_wrapper", False)),
        ("CUDA graphs", getattr(getattr(config, "triton", None), "cudagraphs", False)),
    ]
    unseen = " and ".join(name for name, on in options if on)
    return (
        f"torch.compile was set to {unseen}: what compiled code sent, received and reduced is not on record"
        if unseen
        else ""
    )


def _replace(namespace: Any, name: str, make: Callable[[Call], Call], patches: Patches) -> None:
    packet = getattr(namespace, name, None)  # older torch has fewer
    if packet is None:
        return
    for operator in (packet, *(getattr(packet, overload) for overload in packet.overloads())):
        original = called_by(operator)
        recorded = RecordedOperator(original, make(original))
        # TorchScript knows operators by the id of their `_op`
        register_builtin(recorded, str(name_of_packet(packet)))
        patches.add(f"{operator} as TorchScript knows it", partial(builtins_known().pop, id(recorded), None))
        patches.replace(operator, CALLED, recorded, label=f"{operator}.{CALLED}")


def _noting(
    calls: Calls, name: str, begin: Callable[..., Any], ended: Callable[..., Any], failed: Call, called: Call
) -> Call:
    """What stands for an operator: `begin` gives what to note of a call, None for one that goes through unnoted.

    `ended` gets that and the result, `failed` that and the error.
    """
    guard, alone = calls.guard, calls.alone(called)
    begin, deaf = guard.guarded(f"beginning of {name}", begin), guard.deaf
    ended, failed = guard.guarded(f"end of {name}", ended), guard.entry(f"failure of {name}", failed)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        noted = None if deaf or calls.passes() else begin(sys._getframe(1), *args, **kwargs)
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


def _collective(log: OperationLog, calls: Calls, name: str, called: Call) -> Call:
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


def _point_to_point(log: OperationLog, calls: Calls, name: str, called: Call) -> Call:
    direction = _POINT_TO_POINT[name]

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


def _batched(log: OperationLog, calls: Calls, called: Call) -> Call:
    def begin(frame: FrameType, *args: Any, **_: Any) -> Any:
        if len(args) != _BATCHED_ARGUMENTS or not all(map(_is_real, args[3])):
            return None
        names, peers, tags, tensors, group = args
        return [
            (log.begin(_POINT_TO_POINT.get(name, name), group, peer, tag, [tensor], frame), tensor)
            for name, peer, tag, tensor in zip(names, peers, tags, tensors, strict=True)
        ]

    def ended(noted: Any, result: Any) -> None:
        for (operation, tensor), stands_for in zip(noted, result, strict=True):
            log.returned(operation, [tensor], _others(stands_for, [tensor]))

    def failed(noted: Any, error: BaseException) -> None:
        for operation, _ in noted:
            log.refused(operation, error)

    return _noting(calls, "batch_p2p_ops", begin, ended, failed, called)


def _waits(log: OperationLog, calls: Calls, called: Call) -> Call:
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
    """What an operator made to be waited for: `isend` gives an empty tensor, `irecv` its own buffer."""
    return [tensor for tensor in _real((result,)) if all(tensor is not buffer for buffer in buffers)]


def _real(values: Sequence[Any]) -> list[Any]:
    """The tensors among them that have memory; tracing hands in others."""
    return [tensor for tensor in tensors_among(values) if _is_real(tensor)]


def _is_real(value: Any) -> bool:
    return is_plain(value) and value.layout is torch.strided and not value.is_meta
