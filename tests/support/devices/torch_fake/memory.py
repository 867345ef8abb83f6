"""`torch.fake.memory`: what torch/cuda/memory.py calls the same."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch_fake import _C

_OTHER_PROCESSES = 1 << 30


def index_of(device: Any) -> int:
    """Of a device as scripts write it: None for the current one."""
    if device is None:
        return int(_C.current())
    index = device if isinstance(device, int) else torch.device(device).index
    return int(_C.current()) if index is None else int(index)


def _record_memory_history(
    enabled: str | None = "all", context: str | None = "all", stacks: str = "all", max_entries: int = 1 << 62
) -> None:
    _refused("recordHistory", "plain", "pluggable")
    if enabled is not None:
        from torch_fake import device

        device.use()
    _C.record(enabled is not None, max_entries)


def _refused(call: str, *backends: str) -> None:
    """As torch's other allocators refuse: CUDAMallocAsyncAllocator.cpp history, CUDAPluggableAllocator.cpp all."""
    if os.environ.get("PYTORCH_FAKE_ALLOC_CONF", "").removeprefix("backend:") in backends:
        raise RuntimeError(f"this allocator does not yet support {call}")


def _snapshot(device: Any = None) -> dict[str, Any]:
    _refused("snapshot", "pluggable")
    return {"segments": _C.segments(), "device_traces": [_C.events(index) for index in range(_C.devices)]}


def memory_snapshot(mempool_id: Any = None, include_traces: bool = True) -> list[Any]:
    _refused("snapshot", "pluggable")
    segments: list[Any] = _C.segments()
    return segments


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    _refused("getDeviceStats", "pluggable")
    allocated, peak, reserved, most_reserved, failures = _C.counters(index_of(device))
    used = {"all": {"current": allocated, "peak": peak}}
    return {
        "allocated_bytes": used,
        "active_bytes": used,
        "reserved_bytes": {"all": {"current": reserved, "peak": most_reserved}},
        "num_ooms": failures,
    }


def memory_allocated(device: Any = None) -> int:
    return int(_C.counters(index_of(device))[0])


def max_memory_allocated(device: Any = None) -> int:
    return int(_C.counters(index_of(device))[1])


def max_memory_reserved(device: Any = None) -> int:
    return int(_C.counters(index_of(device))[3])


def mem_get_info(device: Any = None) -> tuple[int, int]:
    from torch_fake.device import TOTAL

    return TOTAL - int(_C.counters(index_of(device))[2]) - _OTHER_PROCESSES, TOTAL
