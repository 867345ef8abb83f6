"""A small run that leaks, with every kind of file that a rank can leave."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakscope.graph.model import CommUse, HeapGraph
from leakscope.memory_snapshot import DeviceLayout
from leakscope.run.model import Collection, Ended, GcDiff, HeapSnapshot, Step
from leakscope.run.rows import (
    AlikeStorage,
    AllocationFailure,
    CommOperation,
    ContextsAtStep,
    DeviceBlocks,
    DeviceFailure,
    DeviceFigures,
    DeviceStep,
    DraggedStorage,
    EndKind,
    GainingContainer,
    GcFreeze,
    IdleStorage,
    LayoutAtSnapshot,
    LifetimesUnjudged,
    LimitNear,
    MemoryThere,
    Occasion,
    OpenContext,
    PeerOutOfMemory,
    Phase,
    Row,
    StartedProcess,
    StepsBy,
    StepSourceKind,
    UntouchedStorage,
    WatchedStep,
)
from leakscope.run.writer import RankFolder, write_json, write_run
from support.heap_text import heap_from
from support.snapshots.building import training

STEPS = 12
SNAPSHOT_STEPS = (3, 5, 7, 9, 11)
MIB = 1 << 20
SOURCE = """\
import torch

losses = []
model = torch.nn.Linear(512, 512)


def train_step(batch, context):
    outputs = model(batch)
    loss = outputs.square().mean()
    loss.backward()
    losses.append(loss)
    return outputs
"""


def write_small_run(folder: Path, launcher_ended: bool = True) -> None:
    """A run of two ranks, one on the host and one on a device; its launcher may have been killed."""
    about = {"device": "cpu", "torch": "2.13.0", "heap_reader": "native", "sources": {"train.py": SOURCE.splitlines()}}
    write_run(
        folder,
        {
            **(about if launcher_ended else {}),
            "command": ["train.py", "--rate", "0.1"],
            "ranks": 2,
            "leakscope": "0.1.0",
            "warmup": 2,
            "min_bytes": 65536,
            "options": {"steps": STEPS, "budget": 0.02, "gc_diff": "auto", "step_function": None},
        },
    )
    for number in range(2):
        rank = RankFolder(folder, number)
        kind = "cuda" if number else "cpu"
        for step in range(1, STEPS + 1):
            collections = (Collection(2, 0.01, 400, 1024),) if step == 8 else ()
            rank.step(Step(step, 0.05, 64 * MIB + step * MIB, 66 * MIB, collections, kind))
        for step in SNAPSHOT_STEPS:
            rank.write_snapshot(_snapshot(step, Occasion.STEP, kind))
        rank.write_snapshot(_snapshot(STEPS, Occasion.LAST, kind))
        rank.write_snapshot(_snapshot(5, Occasion.PEAK, kind))
        rank.write_snapshot(_snapshot(STEPS, Occasion.OOM if number else Occasion.END, kind))
        for row in (*_rows_of_all(), *(_device_rows() if number else _host_rows())):
            rank.append(row)
        rank.gc_diff(GcDiff((0, 4096, 65536, 0), 1, (0.001, 0.002, 0.03, 0.03), 69632))
        rank.proved({"b41c07e2": 65536, "00000000": "the cut is none that can be made"})
        rank.note("a sentence of the recorder's")
        if launcher_ended:
            rank.ended(_end(number))
        write_json(rank.path / "about.json", about)
        rank.close()
    (folder / "rank_0001" / "cuda_step_000011.pickle").write_bytes(pickle.dumps(training(4, keeps=True)))


def _end(number: int) -> Ended:
    if not number:
        return Ended(EndKind.STOPPED, 0, STEPS)
    error = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    return Ended(EndKind.RAISED, 1, STEPS, error=error, stack=("  File train.py, line 8",), at="train.py:8 train_step")


def _snapshot(step: int, occasion: Occasion, kind: str) -> HeapSnapshot:
    heap = _heap(step, kind)
    return HeapSnapshot(
        step=step,
        occasion=occasion,
        heap=heap,
        counted_bytes=64 * MIB + step * MIB,
        explained_bytes=int(heap.bytes.sum()),
        types={"tuple": 4000, "dict": 2000, "Tensor": 3 + step},
        objects=100_000,
        stopped_seconds=0.1,
        seconds=0.2,
        unjudged=("2 objects changed meanwhile",) if step == SNAPSHOT_STEPS[1] else (),
        peak_bytes=66 * MIB,
        counted_on=kind,
        containers=(
            GainingContainer(1, items=100 * step, gained=100 * step, bytes=9000, counted_bytes=8000, item="str"),
        ),
    )


def _heap(step: int, kind: str) -> HeapGraph:
    """A list that gains a tensor at each step, a cycle that waits for gc, and a graph that a loss keeps."""
    lines = [
        "module train -> .names -> list names",
        "module train -> .model -> network model where=train.py:4",
        "network model -> .weight -> parameter weight",
        "parameter weight -> storage -> storage weight 1048576",
        "module train -> .losses -> list losses where=train.py:3",
        "frame train_step -> local outputs -> tensor outputs",
        "tensor outputs -> storage -> storage outputs 2097152",
        "function extract freed=1 -> closure extract -> function extract",
        "function extract -> closure kept -> tensor kept freed=1",
        "tensor kept -> storage -> storage kept 262144 freed=1",
        "node sent freed=never -> hook -> function hook freed=never",
        "function hook -> closure node -> node sent",
        "node sent -> saved self -> storage stuck 131072 freed=never",
    ]
    for k in range(step):
        lines += [
            f"list losses -> [{k}] -> tensor loss{k}",
            f"tensor loss{k} -> storage -> storage loss{k} 512",
            f"tensor loss{k} -> .grad_fn -> node mean{k}",
            f"node mean{k} -> saved self -> storage activation{k} 1048576",
        ]
    heap = heap_from("\n".join(lines))
    first, *rest = heap.storages.tolist()
    return replace(
        heap,
        made_at={index: "train.py:8 train_step (aten::addmm)" for index in rest},
        comm_uses={rest[0]: CommUse("send", 1, 0, step, 0, "train.py:8 train_step", True, True)},
        device={} if kind == "cpu" else {index: "cuda:0" for index in (first, *rest)},
    )


def _rows_of_all() -> Iterator[Row]:
    yield StepsBy(StepSourceKind.OPTIMIZER, "Adam")
    yield MemoryThere("the machine's memory", 8 << 30)
    yield GcFreeze(0.03, 0.001)
    yield StartedProcess("multiprocessing", "train.py:4 <module>")
    storages = _heap(5, "cpu").storages.tolist()
    seen: dict[str, Any] = {
        "bytes": 2 * MIB, "made_at": "train.py:8 train_step (aten::addmm)", "module": "Linear", "phase": Phase.FORWARD,
        "last_use_at": "train.py:9 train_step", "last_phase": Phase.BACKWARD, "drag_byte_seconds": 12.5,
    }  # fmt: skip
    yield WatchedStep(
        step=5, device="cpu", operations=40, start_bytes=MIB, peak_bytes=9 * MIB, 
        peak_at="train.py:10 train_step", peak_phase=Phase.BACKWARD, backward_follows=True, unseen_bytes=0,
        arguments=(("train_step", "batch"),), curve=((0, MIB), (20, 9 * MIB)), storages=6, lag_byte_seconds=1.5,
        use_byte_seconds=80.0, drag_byte_seconds=20.0, unread=((0, ".losses"),),
    )  # fmt: skip
    yield UntouchedStorage(storages[0])
    yield IdleStorage(storage=storages[1], **seen, last=12, died=30)
    yield AlikeStorage(storage=-1, **seen, last=12, died=30)
    yield DraggedStorage(storage=storages[2], **seen, last=2, died=9)
    yield LifetimesUnjudged(6, "the step compiled something")


def _host_rows() -> Iterator[Row]:
    for number in range(1, 25):
        issued: dict[str, Any] = {
            "id": number, "direction": ("send", "recv", "allreduce")[number % 3], "peer": 1 if number % 3 < 2 else None,
            "tag": 0, "group": "default", "bytes": 1024, "step": (number + 1) // 2, "microbatch": number % 2,
            "nth": number, "issued_at": "train.py:8 train_step", "issued": number / 10, "shape": (256,),
            "dtype": "float32", "buffers": 1,
        }  # fmt: skip
        waited = None if number % 5 == 0 else number / 10 + 0.01
        yield CommOperation(
            **issued, waited=waited, completed=waited, tensor_died=number / 10 + 0.05, storage_died=number / 10 + 0.06,
            work_died=number / 10 + 0.02, dropped=number % 5 == 0, called_from="train.py:12 <module>",
        )  # fmt: skip
    for step in range(1, STEPS + 1):
        context = OpenContext(step << 48, "train.py:9 train_step", step, (1,), 2, MIB)
        yield ContextsAtStep(step, step, 0, step * MIB, (context,))
    yield LimitNear(step=9, inside=True, limit="the control group's limit", limit_bytes=8 << 30, used_bytes=7 << 30)
    yield PeerOutOfMemory(step=STEPS, of=1)


def _device_rows() -> Iterator[Row]:
    figures = DeviceFigures(0, 64 * MIB, 64 * MIB, 96 * MIB, 66 * MIB, 2 * MIB, 1, 0)
    plain = {"reserved": 96 * MIB, "active": 64 * MIB, "allocated": 64 * MIB, "pending": 0, "rounding": 512,
             "stuck": 2 * MIB, "private": 0}  # fmt: skip
    for step in range(1, STEPS + 1):
        yield DeviceStep(step, "cuda", (figures,), (DeviceLayout(device=0, **plain),) if step % 4 == 0 else None)
    snapshots = [*((step, Occasion.STEP) for step in SNAPSHOT_STEPS), (STEPS, Occasion.LAST)]
    for step, occasion in snapshots:
        heap = _heap(step, "cuda")
        storages = heap.storages.tolist()
        yield DeviceBlocks(
            step=step, occasion=occasion, kind="cuda", storage=(*storages, -1, -1),
            bytes=(*(int(heap.bytes[s]) for s in storages), step * MIB, 512), device=(0,) * (len(storages) + 2),
            pending=(len(storages) + 1,), made_at=(*(0 for _ in storages), 1, 1),
            sites=("train.py:8 train_step", "train.py:4 <module>"),
            layout=(LayoutAtSnapshot(device=0, **plain, driver=(1 << 30, 8 << 30)),), file=step == SNAPSHOT_STEPS[-1],
        )  # fmt: skip
    yield DeviceFailure(
        STEPS, "cuda", 0, wanted_bytes=2 << 30, limit_bytes=8 << 30, free_bytes=MIB, at="train.py:8 train_step",
        counted=figures, looked=True,
    )  # fmt: skip
    yield AllocationFailure(
        step=STEPS, time=1.7e9, error="CUDA out of memory. Tried to allocate 2.00 GiB", wanted_bytes=2 << 30,
        at="train.py:8 train_step",
    )  # fmt: skip
