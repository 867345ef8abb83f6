"""A device module with the calls that torch documents for one, over an allocator that is a list.

There is no accelerator where these tests must run. What leakscope asks of one is few calls, so the logic around them
is driven by this object: it keeps the rules that torch's own allocator keeps (what switches history, what clears it,
when a waiting call is made), and hands out snapshots in torch's own format, real ones where the test has them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

TRAIN = [{"name": "forward", "filename": "/nowhere/train.py", "line": 41}]
AUTOGRAD: list[dict[str, Any]] = []


@dataclass
class State:
    """What the device knows, and every call that reached it."""

    snapshot: dict[str, Any] = field(default_factory=lambda: {"segments": [], "device_traces": [[]]})
    initialized: bool = False
    recording: bool = False
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    observers: list[Callable[[int, int, int, int], None]] = field(default_factory=list)
    free_and_total: tuple[int, int] = (60 << 30, 80 << 30)
    refuses: str = ""
    """What recording raises, as an allocator does that keeps no history."""

    def called(self, name: str) -> int:
        return sum(call == name for call, _ in self.calls)


def device_module(state: State, cheap: bool = True) -> ModuleType:
    """The module; `cheap` gives it torch 2.11's listing of segments without events."""
    module, memory = ModuleType("fakedevice"), ModuleType("fakedevice.memory")
    module.memory = memory  # type: ignore[attr-defined]
    module._queued_calls = queue = []  # type: ignore[attr-defined,var-annotated]

    def _lazy_call(call: Callable[[], None]) -> None:
        if state.initialized:
            call()
        else:
            queue.append((call, ["a stack"]))

    def use() -> None:
        """What the first tensor on a device does."""
        for call, _ in queue:
            call()
        state.initialized = True

    def _record_memory_history(
        enabled: str | bool | None = "all", context: str | None = "all", stacks: str = "all", max_entries: int = 1 << 62
    ) -> None:
        state.calls.append(
            ("record", {"enabled": enabled, "context": context, "stacks": stacks, "max_entries": max_entries})
        )
        if state.refuses:
            raise RuntimeError(state.refuses)
        state.recording = bool(enabled)
        if not enabled:
            state.snapshot["device_traces"] = [[]]

    def _snapshot() -> dict[str, Any]:
        state.calls.append(("snapshot", {}))
        return copy.deepcopy(state.snapshot)

    def memory_stats_as_nested_dict(device: int) -> dict[str, Any]:
        blocks = [b for s in state.snapshot["segments"] if s["device"] == device for b in s["blocks"]]
        allocated = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
        active = sum(b["size"] for b in blocks if b["state"] != "inactive")
        reserved = sum(s["total_size"] for s in state.snapshot["segments"] if s["device"] == device)
        amounts = {"allocated_bytes": allocated, "active_bytes": active, "reserved_bytes": reserved}
        return {name: {"all": {"current": size, "peak": size}} for name, size in amounts.items()} | {"num_ooms": 0}

    def mem_get_info(device: int) -> tuple[int, int]:
        state.calls.append(("mem_get_info", {"device": device}))
        return state.free_and_total

    if cheap:

        def memory_snapshot(mempool_id: object = None, include_traces: bool = True) -> list[Any]:
            state.calls.append(("segments", {"include_traces": include_traces}))
            return copy.deepcopy(state.snapshot["segments"])
    else:

        def memory_snapshot(mempool_id: object = None) -> list[Any]:  # type: ignore[misc]
            return copy.deepcopy(state.snapshot["segments"])

    module.__dict__.update(
        _lazy_call=_lazy_call, use=use, is_initialized=lambda: state.initialized, device_count=lambda: 2, state=state
    )
    for function in (_record_memory_history, _snapshot, memory_stats_as_nested_dict, mem_get_info, memory_snapshot):
        setattr(memory, function.__name__, function)
    return module


def natives(state: State, kind: str = "cuda") -> ModuleType:
    """The C module behind it."""
    found = ModuleType("natives")
    setattr(found, f"_{kind}_isHistoryEnabled", lambda: state.recording)
    setattr(found, f"_{kind}_attach_out_of_memory_observer", state.observers.append)
    return found


def block(
    address: int, size: int, state: str = "active_allocated", frames: Any = TRAIN, requested: int | None = None
) -> dict[str, Any]:
    frames = [] if state == "inactive" else list(frames)
    return {
        "address": address,
        "size": size,
        "requested_size": size if requested is None else requested,
        "state": state,
        "frames": frames,
    }


def segment(*blocks: dict[str, Any], device: int = 0, pool: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    total = sum(item["size"] for item in blocks)
    return {
        "device": device, "address": blocks[0]["address"], "total_size": total, "stream": 0, "segment_type": "large",
        "segment_pool_id": pool, "is_expandable": False, "frames": [], "blocks": list(blocks),
    }  # fmt: skip
