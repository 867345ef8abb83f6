"""Whose is each byte that the accelerator's allocator has out? At every look that was joined with its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakscope.findings.facts import Facts
from leakscope.findings.grouping.growth import series
from leakscope.findings.kinds import FreedBy, RuleName, Severity
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.naming.trace import fingerprint
from leakscope.record.model import Look, Rank
from leakscope.record.rows.device import DeviceBlocks, LayoutAtLook

_MOST_SITES = 6
"""Places at the most, chosen, that native blocks are told with."""


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


@dataclass(frozen=True)
class NativeBlocksFacts(Facts):
    """The allocator's blocks without a storage that grow at every look."""

    SUMMED = ("per_step",)

    per_step: float
    """Bytes a step."""
    made_at: tuple[str, ...]
    """Places that made what grew, the one that made most first."""


def native_findings(rank: Rank, looks: Sequence[Look], min_bytes: int) -> list[Finding] | None:
    """A native-hold finding where blocks that no storage explains grow at every look; None where nothing was joined.

    What is joined by address needs no estimate of a gap.
    """
    joined = [
        found for found in device_looks(rank) if (found.step, found.occasion) in {(k.step, k.occasion) for k in looks}
    ]
    if not joined:
        return None
    steps = sorted({found.step for found in joined})
    at = {step: [found for found in joined if found.step == step] for step in steps}
    line = series(steps, {step: sum(found.native for found in at[step]) for step in steps})
    if not line.grew_lately or not line.is_leak(min_bytes):
        return []
    before, after = _of_sites(at[steps[0]]), _of_sites(at[steps[-1]])
    grown = sorted(((after[where] - before.get(where, 0), where) for where in after), reverse=True)
    made_at = tuple(where for more, where in grown if more > 0)[:_MOST_SITES]
    return [
        Finding(
            rule=RuleName.NATIVE_HOLD,
            facts=NativeBlocksFacts(line.per_step, made_at),
            fingerprint=fingerprint(("native-hold", "gap")),
            severity=Severity.LEAK,
            freed_by=FreedBy.PROGRAM,
            retained_bytes=line.bytes[-1] - line.bytes[0],
            bytes_per_step=line.per_step,
            trace=(),
            cut=None,
            made_at=made_at,
            sightings=tuple(
                Sighting(rank.number, s, b - line.bytes[0]) for s, b in zip(line.steps, line.bytes, strict=True)
            ),
        )
    ]


def _of_sites(looks: Sequence[DeviceLook]) -> dict[str, int]:
    total: dict[str, int] = {}
    for look in looks:
        for site in look.sites:
            total[site.where] = total.get(site.where, 0) + site.bytes
    return total
