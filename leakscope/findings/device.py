"""Blocks of the accelerator's allocator joined with storages, and reserved memory far above allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from leakscope.findings.facts import Facts, FreedBy, RuleName, Severity
from leakscope.findings.growth import series
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.naming import fingerprint
from leakscope.findings.oom import caught
from leakscope.run.model import Look, Rank
from leakscope.run.rows_device import DeviceBlocks, DeviceFigures, LayoutAtLook

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


NAME = RuleName.ALLOCATOR
_ABOVE_LEAST, _ABOVE_SHARE = 256 << 20, 0.25
_PENDING_LEAST, _PENDING_SHARE = 1 << 20, 0.02
_OUTSIDE_LEAST = 64 << 20
"""Bytes, chosen: from here on growth outside the allocator is told."""
_TWICE = 2
"""Looks or steps at which something must be seen to be told: once may be chance."""

Counted = Sequence[tuple[int, DeviceFigures]]
"""One device's counters, each with the step at whose end they were read."""


@dataclass(frozen=True)
class ReservedFacts(Facts):
    """A device whose allocator has far more reserved than was ever in use, in bytes."""

    device: int
    reserved: int
    most: int
    """Most that was in use."""
    private: int
    """Reserved by private pools."""


@dataclass(frozen=True)
class PendingFacts(Facts):
    """Dead tensors that wait for another stream, look after look."""

    device: int
    bytes: int


@dataclass(frozen=True)
class OutsideFacts(Facts):
    """Memory of a device that torch has not reserved and that grows."""

    device: int
    per_step: float
    """Bytes a step."""


@dataclass(frozen=True)
class RetriesFacts(Facts):
    """The allocator had to give back its cache and ask the driver again."""

    device: int
    times: int
    steps: int
    """Steps in which it happened."""


@dataclass(frozen=True)
class CaughtFacts(Facts):
    """The device's memory ran out and the script went on."""

    times: int
    largest_bytes: int
    """The largest request."""


def allocator_findings(rank: Rank, looks: Sequence[Look]) -> list[Finding]:
    """Notes on one rank's devices, from the counters of each step and from the looks."""
    rows = rank.device_steps
    at = {(look.step, look.occasion) for look in looks}
    joined = [found for found in device_looks(rank) if (found.step, found.occasion) in at]
    devices = sorted({figures.device for row in rows for figures in row.devices} | {found.device for found in joined})
    told: list[Finding] = []
    for device in devices:
        counted = [(row.step, figures) for row in rows for figures in row.devices if figures.device == device]
        mine = [found for found in joined if found.device == device]
        told += [*_above(rank, device, counted, mine), *_pending(rank, device, mine), *_outside(rank, device, mine)]
        told += _retries(rank, device, counted)
    return told + _passed_by(rank)


def _above(rank: Rank, device: int, counted: Counted, looks: Sequence[DeviceLook]) -> list[Finding]:
    """Reserved far above the most ever in use: what a step's end leaves free is needed again, this never was."""
    if not counted:
        return []
    step, last = counted[-1]
    most = max(max(figures.peak, figures.active) for _, figures in counted)
    over = last.reserved - most
    if over < max(_ABOVE_LEAST, _ABOVE_SHARE * last.reserved):
        return []
    facts = ReservedFacts(device, last.reserved, most, looks[-1].private if looks else 0)
    return [_note("reserved", rank, facts, over, ((step, over),))]


def _pending(rank: Rank, device: int, looks: Sequence[DeviceLook]) -> list[Finding]:
    """Dead tensors that another stream keeps, look after look."""
    seen = [(k.step, k.pending) for k in looks if k.pending >= max(_PENDING_LEAST, _PENDING_SHARE * k.reserved)]
    if len(seen) < _TWICE or seen[-1][0] != looks[-1].step:
        return []
    made_at = tuple(site.where for site in looks[-1].pending_sites)
    return [_note("pending", rank, PendingFacts(device, seen[-1][1]), seen[-1][1], seen, made_at=made_at)]


def _outside(rank: Rank, device: int, looks: Sequence[DeviceLook]) -> list[Finding]:
    """Memory of the device that grows and that torch has not reserved."""
    told = [k for k in looks if k.outside is not None]
    line = series([k.step for k in told], {k.step: k.outside or 0 for k in told})
    if not line.grew_lately or line.total < _OUTSIDE_LEAST:
        return []
    seen = [(step, size - line.bytes[0]) for step, size in zip(line.steps, line.bytes, strict=True)]
    return [_note("outside", rank, OutsideFacts(device, line.per_step), seen[-1][1], seen, line.per_step)]


def _retries(rank: Rank, device: int, counted: Counted) -> list[Finding]:
    """The cache was given back and memory asked for anew, which waits for the device each time."""
    steps = sum(1 for (_, a), (_, b) in pairwise(counted) if b.retries > a.retries)
    if steps < _TWICE or not counted[-1][1].retries:
        return []
    step, last = counted[-1]
    facts = RetriesFacts(device, last.retries, steps)
    return [_note("retries", rank, facts, last.reserved, ((step, last.reserved),))]


def _passed_by(rank: Rank) -> list[Finding]:
    rows = caught(rank)
    if not rows:
        return []
    places = tuple(dict.fromkeys(row.at for row in rows if row.at))
    facts = CaughtFacts(len(rows), max(row.wanted_bytes for row in rows))
    return [_note("caught", rank, facts, 0, [(row.step, row.wanted_bytes) for row in rows], made_at=places)]


def _note(
    what: str, rank: Rank, facts: Facts, size: int, seen: Sequence[tuple[int, int]], per_step: float = 0.0,
    made_at: tuple[str, ...] = (),
) -> Finding:  # fmt: skip
    return Finding(
        rule=NAME,
        facts=facts,
        fingerprint=fingerprint((NAME, what)),
        severity=Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=per_step,
        trace=(),
        cut=None,
        made_at=made_at,
        sightings=tuple(Sighting(rank.number, step, bytes_there) for step, bytes_there in seen),
    )
