"""Small memory snapshots built by hand, the way torch lays them out."""

from __future__ import annotations

from typing import Any

START = 1_760_000_000_000_000


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


TRAIN = [
    frame("/venv/lib/python3.11/site-packages/torch/nn/functional.py", 7, "linear"),
    frame("/home/me/train.py", 12, "step"),
]
OTHER = [frame("/home/me/data.py", 40, "load")]


def event(action: str, addr: int, size: int, at: int | None = 0, frames: Any = None, **more: Any) -> dict[str, Any]:
    """One trace event `at` microseconds after START; without a time or frames when they are None."""
    made: dict[str, Any] = {"action": action, "addr": addr, "size": size, "stream": 0}
    if at is not None:
        made["time_us"] = START + at
    made |= more
    if frames is not None:
        made["frames"] = frames
    return made


def freed(addr: int, size: int, at: int | None = 0) -> list[dict[str, Any]]:
    return [event("free_requested", addr, size, at), event("free_completed", addr, size, at)]


def block(
    address: int, size: int, state: str = "active_allocated", requested: int | None = None, frames: Any = ()
) -> dict[str, Any]:
    requested = size if requested is None else requested
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": list(frames)}


def segment(*blocks: dict[str, Any], pool: tuple[int, int] = (0, 0), device: int = 0, **more: Any) -> dict[str, Any]:
    """A segment filled by `blocks`."""
    total = sum(item["size"] for item in blocks)
    return {
        "device": device, "address": blocks[0]["address"], "total_size": total, "stream": 0, "segment_type": "large",
        "segment_pool_id": pool, "is_expandable": False, "frames": [], "blocks": list(blocks),
    } | more  # fmt: skip


def annotation(name: str, at: int, stage: str = "START") -> dict[str, Any]:
    return {"stage": stage, "name": name, "device": 0, "time_us": START + at}


def snapshot(
    segments: list[dict[str, Any]], *traces: list[dict[str, Any]], notes: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {"segments": segments, "device_traces": list(traces), "external_annotations": notes or []}


def training(steps: int, keeps: bool, capacity: int = 0) -> dict[str, Any]:
    """`steps` steps of 1000 us; each makes 2 MiB at train.py:12 and, when `keeps`, drops the one of `capacity` steps
    before."""
    trace, notes, alive = [event("alloc", 0x90, 512, -20, OTHER), *freed(0x90, 512, -10)], [], {}
    for step in range(steps):
        at = 1000 * step
        notes += [annotation("Optimizer.step#SGD.step", at), annotation("Optimizer.step#SGD.step", at + 100, "END")]
        trace += [event("alloc", 0x100, 512, at + 200, OTHER), *freed(0x100, 512, at + 300)]
        address = 0x1000000 * (step + 1)
        trace.append(event("alloc", address, 2 << 20, at + 400, TRAIN))
        alive[step] = address
        gone = step if not keeps else step - capacity if capacity else -1
        if gone in alive:
            trace += freed(alive.pop(gone), 2 << 20, at + 500)
    blocks = [segment(block(address, 2 << 20, frames=TRAIN)) for address in alive.values()]
    return snapshot(blocks, trace, notes=notes)
