"""Heaps of a rank that torch's pipelining runs on, as a look would find them: one holder at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from leakscope.graph.model import CommUse, HeapGraph, Object, Reference, build
from leakscope.run.model import Ended, HeapSnapshot, Rank
from leakscope.run.rows import EndKind, IdleStorage, Occasion, Phase, WatchedStep

KIB = 1024
STAGE = "torch.distributed.pipelining.stage.PipelineStage"
RECV_INFO = "torch.distributed.pipelining.stage._RecvInfo"
SCHEDULES = "<torch/distributed/pipelining/schedules.py>:2600"


@dataclass
class Heap:
    """Objects and references in the order in which they are added; a name stands for one object."""

    objects: dict[str, Object] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)
    crossed: list[int] = field(default_factory=list)

    def add(
        self, name: str, kind: str, type: str = "", label: str = "", root: str = "", where: str = "", bytes: int = 0
    ) -> str:
        made = Object(
            len(self.objects),
            type or kind,
            kind,
            label or name,
            (type or name).rpartition(".")[2],
            where,
            bytes,
            -1,
            root,
            0,
            0,
        )
        self.objects[name] = made
        return name

    def refer(self, holder: str, name: str, held: str, kind: str = "attribute", where: str = "") -> None:
        ends = self.objects[holder].index, self.objects[held].index
        self.references.append(Reference(len(self.references), *ends, kind, name, where))

    def tensor(self, name: str, size: int = 128 * KIB, crossed: bool = True) -> str:
        """A tensor with a storage of its own."""
        self.add(name, "tensor", "torch.Tensor")
        self.add(f"storage of {name}", "storage", bytes=size)
        self.refer(name, "storage", f"storage of {name}", "memory")
        if crossed:
            self.crossed.append(self.objects[f"storage of {name}"].index)
        return name

    def stage(self, type: str = STAGE) -> str:
        """`stage` in the user's train()."""
        self.add("train", "frame", label="frame of train", root="frame", where="train.py:10")
        where = "" if type.startswith("torch.") else "train.py:3"
        self.add("stage", "instance", type, label=f"{type.rpartition('.')[2]} object", where=where)
        self.refer("train", "local stage", "stage", "local")
        return "stage"

    def by_microbatch(self, attribute: str, held: list[str], info: str = RECV_INFO) -> None:
        """`stage.<attribute>` is a dict of tuples, as `fwd_cache`; of tuples of `_RecvInfo` where it is named so."""
        self.add(attribute, "container", "dict")
        self.refer("stage", f".{attribute}", attribute)
        for number, name in enumerate(held):
            row = self.add(f"{attribute} {number}", "container", "tuple")
            self.refer(attribute, f"[{number}]", row, "item")
            if attribute.endswith("recv_info"):
                slot = self.add(f"info of {name}", "instance", info)
                self.refer(row, "[0]", slot, "item")
                self.refer(slot, ".buffer", name)
            else:
                self.refer(row, "[0]", name, "item")

    def graph(self) -> HeapGraph:
        uses = {index: CommUse("recv", 1, 0, 3, 0, "", True) for index in self.crossed}
        return replace(build(list(self.objects.values()), self.references), comm_uses=uses)


def with_receive_buffers(count: int, crossed: bool = True, type: str = STAGE, info: str = RECV_INFO) -> Heap:
    heap = Heap()
    heap.stage(type)
    if not crossed:  # operations were watched: something else was sent
        heap.tensor("elsewhere")
        heap.refer("train", "local elsewhere", "elsewhere", "local")
    heap.by_microbatch("args_recv_info", [heap.tensor(f"buffer {k}", crossed=crossed) for k in range(count)], info)
    return heap


def peak_rank(graph: HeapGraph, idle: Sequence[int], backward: bool = False) -> Rank:
    step = WatchedStep(
        step=5, device="cpu", operations=100, start_bytes=0, peak_bytes=4096 * KIB,
        peak_at="train.py:10 train (aten::mm)", peak_phase=Phase.BACKWARD, backward_follows=backward, unseen_bytes=0,
        arguments=(), curve=((9, 4096 * KIB),), storages=0, lag_byte_seconds=0.0, use_byte_seconds=0.0,
        drag_byte_seconds=0.0,
    )  # fmt: skip
    rows = [
        IdleStorage(
            storage=s, bytes=int(graph.bytes[s]), made_at="train.py:5 forward", module="", phase=Phase.FORWARD,
            last_use_at="", last_phase=Phase.FORWARD, drag_byte_seconds=0.0, last=1, died=99,
        )
        for s in idle
    ]  # fmt: skip
    snapshot = HeapSnapshot(5, Occasion.PEAK, graph, None, 0)
    return Rank(0, (), (snapshot,), Ended(EndKind.FINISHED, 0, 10), lifetimes=(step, *rows))


def storages(heap: Heap, *names: str) -> list[int]:
    return [heap.objects[f"storage of {name}"].index for name in names]
