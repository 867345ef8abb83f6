"""A rank's device memory over a fake device."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from leakscope.heap.snapshot import SnapshotContext, take_heap_snapshot
from leakscope.process.patches import Patches
from leakscope.recorder.accelerator import Accelerator, described
from leakscope.recorder.allocator_monitor import DeviceMemory
from leakscope.run.model import HeapSnapshot
from leakscope.run.writer import RankFolder
from support.devices.fake_device import TRAIN, State, block, device_module, natives, segment


def of_tensors(tensors: Iterable[torch.Tensor], *more: dict[str, Any], frames: Any = TRAIN) -> list[dict[str, Any]]:
    """Segments as an allocator would list them that had made these tensors, each 512 bytes larger than asked for."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    made = [segment(block(s.data_ptr(), s.nbytes() + 512, frames=frames, requested=s.nbytes())) for s in storages]
    return sorted([*made, *more], key=lambda s: s["address"])


class FakeDeviceMemory:
    """A rank's device memory over a fake device, whose blocks lie where CPU tensors do: look and join are real."""

    def __init__(self, folder: Path, wanted: str = "auto", cheap: bool = True) -> None:
        self.state = State()
        self.module = device_module(self.state, cheap)
        self.folder = RankFolder(folder, 0)
        self.patches = Patches()
        self.memory = DeviceMemory(self.folder, wanted, 0.02, self._found)
        self.memory.attach(self.patches)

    def _found(self) -> Accelerator:
        return described("cpu", self.module, (natives(self.state, "cpu"),))

    def take_snapshot(self, step: int, occasion: str = "step", counted: int = 0) -> HeapSnapshot:
        hidden = (self, *self.memory.__dict__.values())
        seen = take_heap_snapshot(
            step, occasion, SnapshotContext(counted, hidden=hidden, blocks=self.memory.block_reader())
        )
        self.folder.write_snapshot(seen)
        return seen
