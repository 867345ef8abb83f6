"""Which of the allocator's blocks are which storages, at one look?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from leakscope.allocator.joining import Joined, Placed, join, layouts
from leakscope.allocator.snapshot import PENDING_FREE, Snapshot, Stack
from leakscope.capture.heap.native.references import Storage
from leakscope.capture.heap.native.storages import device_of, tensor_over
from leakscope.capture.heap.raw_types import mro
from leakscope.capture.source.user_source import at, is_ours, is_users
from leakscope.capture.torch_private import StorageBase, TensorBase, data_address
from leakscope.record.model import Look
from leakscope.record.rows.device import DeviceBlocks, Elsewhere, LayoutAtLook

_NATIVE = "no Python frames (autograd or another native thread)"
_UNRECORDED = "not recorded"


def placed(storage: Storage, objects: Sequence[Any], kind: str) -> Placed | None:
    """Where the storage's memory begins; None where it is not on this kind of device or does not say."""
    over = [tensor_over(objects[index], storage.address) for index in storage.holders]
    # tensors first: asking a storage for its data_ptr makes a lazy clone copy its memory (c10/core/StorageImpl.h,
    # mutable_data); a tensor's data address, its storage's whatever the offset (torch/csrc/Module.cpp), does not
    for holder in sorted(over, key=lambda holder: TensorBase not in mro(type(holder))):
        try:
            device = device_of(holder)
            if device.type != kind:
                return None
            is_tensor = TensorBase in mro(type(holder))
            begins = data_address(holder) if is_tensor else StorageBase.data_ptr(holder)
            return Placed(device.index or 0, int(begins), storage.bytes)
        except RuntimeError:  # a tensor that has no data to point at; another holder may
            continue
    return None


def made_where(stack: Stack, recorded: bool) -> str:
    """`train.py:41 forward`, as everywhere in leakscope; without a line of the user's the innermost Python one."""
    library = ""
    for frame in stack:
        if not frame.filename.endswith(".py") and not frame.filename.startswith("<ipython-input"):
            continue  # C++ frames have `??`, or the name of a C++ file
        if is_users(frame.filename):
            return f"{at(frame.filename, frame.line)} {frame.name}"
        if not library and not is_ours(frame.filename):  # our dispatch mode stands alone above autograd's threads
            library = f"{at(frame.filename, frame.line)} {frame.name}"
    return library or (_NATIVE if recorded else _UNRECORDED)


class BlocksAtLook:
    """The allocator's blocks at one look, joined and written."""

    def __init__(
        self,
        kind: str,
        recorded: bool,
        snapshot: Callable[[], Snapshot | None],
        outside: Callable[[int], tuple[int, int] | None],
        write: Callable[[Look, DeviceBlocks], None],
    ) -> None:
        self._kind, self._recorded = kind, recorded
        self._read, self._outside, self._write = snapshot, outside, write
        self._snapshot: Snapshot | None = None
        self._joined: Joined | None = None
        self._storages: list[int] = []
        self._placed: list[Placed] = []
        self._sites: list[str] = []

    def read(self, storages: Iterable[Storage], objects: Sequence[Any]) -> Mapping[int, str]:
        """Join the storages with the allocator's blocks; gives the place that made each, by the storage's address."""
        self._snapshot = snapshot = self._read()
        if snapshot is None:
            return {}
        for storage in storages:
            where = placed(storage, objects, self._kind) if storage.bytes else None
            if where is not None:
                self._storages.append(storage.address)
                self._placed.append(where)
        self._joined = joined = join(snapshot, self._placed)
        self._sites = [made_where(stack, self._recorded) for stack in snapshot.stacks]
        stacks = snapshot.blocks.stack[joined.blocks].tolist()
        return {
            self._storages[storage]: self._sites[stack]
            for storage, stack in zip(joined.storage.tolist(), stacks, strict=True)
            if storage >= 0 and snapshot.stacks[stack] and self._sites[stack] != _NATIVE
        }

    def seen(self, look: Look, places: Mapping[int, int]) -> None:
        """Write one line, with the storages as indexes in the graph of the look."""
        if self._snapshot is not None and self._joined is not None:
            self._write(look, self._row(look, self._snapshot, self._joined, places))

    def _row(self, look: Look, snapshot: Snapshot, joined: Joined, places: Mapping[int, int]) -> DeviceBlocks:
        """One line of `device_blocks.jsonl`: indexes and bytes, no addresses."""
        blocks, chosen = snapshot.blocks, joined.blocks
        used, number = np.unique(blocks.stack[chosen], return_inverse=True)
        device_of = np.array([segment.device for segment in snapshot.segments], np.int64)
        return DeviceBlocks(
            step=look.step,
            occasion=look.occasion,
            kind=self._kind,
            storage=tuple(places.get(self._storages[s], -1) if s >= 0 else -1 for s in joined.storage.tolist()),
            bytes=tuple(blocks.size[chosen].tolist()),
            device=tuple(device_of[blocks.segment[chosen]].tolist()),
            pending=tuple(np.flatnonzero(blocks.state[chosen] == PENDING_FREE).tolist()),
            made_at=tuple(number.tolist()),
            sites=tuple(self._sites[stack] for stack in used.tolist()),
            layout=tuple(
                LayoutAtLook(**asdict(layout), driver=self._outside(layout.device)) for layout in layouts(snapshot)
            ),
            elsewhere=Elsewhere(len(joined.unplaced), sum(self._placed[k].bytes for k in joined.unplaced.tolist())),
        )
