"""Blocks of the accelerator's allocator joined with storages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from leakscope.run.model import Look, Rank
from leakscope.run.rows_device import DeviceBlocks, LayoutAtLook


@dataclass(frozen=True)
class NativeSite:
    """Blocks without a storage that were made at one place."""

    where: str
    bytes: int
    count: int


@dataclass(frozen=True)
class DeviceLook:
    """One device at one look; `held`, `waiting`, `native` and `pending` add up to `active`."""

    step: int
    occasion: str
    kind: str
    device: int
    reserved: int
    active: int
    held: int
    """In blocks that are a storage somebody alive holds, rounding included."""
    waiting: int
    """In blocks that are a storage nothing alive holds: for gc to free, or never freed."""
    native: int
    """In blocks that are no storage any Python object or autograd path leads to."""
    pending: int
    """Dead, and waited for by another stream."""
    rounding: int
    stuck: int
    """Reserved and unused in segments that something live keeps."""
    private: int
    """Reserved by pools other than the default one."""
    outside: int | None
    """In use on the device and not reserved here: the context, libraries, other processes; None where nobody told."""
    sites: tuple[NativeSite, ...] = ()
    """Places that made the native blocks, largest first."""
    pending_sites: tuple[NativeSite, ...] = ()


def device_looks(rank: Rank) -> tuple[DeviceLook, ...]:
    """Every device at every joined look, in order."""
    looks = {(look.step, look.occasion): look for look in rank.looks}
    found = []
    for row in rank.device_blocks:
        look = looks.get((row.step, row.occasion))
        if look is not None:
            found += [_device(row, layout, look) for layout in row.layout]
    return tuple(found)


def _device(row: DeviceBlocks, layout: LayoutAtLook, look: Look) -> DeviceLook:
    mine = np.asarray(row.device, np.int64) == layout.device
    size, storage = np.asarray(row.bytes, np.int64), np.asarray(row.storage, np.int64)
    pending = np.zeros(len(size), bool)
    pending[np.asarray(row.pending, np.int64)] = True
    known = mine & (storage >= 0)
    dead = np.zeros(len(size), bool)
    dead[known] = look.heap.freed[storage[known]] != 0
    native = mine & ~known & ~pending
    driver = layout.driver
    return DeviceLook(
        step=row.step,
        occasion=row.occasion,
        kind=row.kind,
        device=layout.device,
        reserved=layout.reserved,
        active=layout.active,
        held=int(size[known & ~dead].sum()),
        waiting=int(size[dead].sum()),
        native=int(size[native].sum()),
        pending=int(size[mine & pending].sum()),
        rounding=layout.rounding,
        stuck=layout.stuck,
        private=layout.private,
        outside=None if driver is None else max(driver[1] - driver[0] - layout.reserved, 0),
        sites=_by_site(row, native),
        pending_sites=_by_site(row, mine & pending),
    )


def _by_site(row: DeviceBlocks, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[NativeSite, ...]:
    sizes: dict[str, list[int]] = {}
    for index in np.flatnonzero(chosen).tolist():
        sizes.setdefault(row.sites[row.made_at[index]], []).append(row.bytes[index])
    sites = (NativeSite(where, sum(found), len(found)) for where, found in sizes.items())
    return tuple(sorted(sites, key=lambda site: (-site.bytes, site.where)))
