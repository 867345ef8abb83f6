"""Memory that the allocator or the driver keeps, not a tensor: figures that a reader should know, never a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from leakscope.findings.facts import Said
from leakscope.findings.grouping.growth import series
from leakscope.findings.memory.device import DeviceLook, device_looks
from leakscope.findings.memory.device_oom import caught
from leakscope.findings.model import Finding, FreedBy, RuleName, Severity, Sighting
from leakscope.findings.naming.trace import fingerprint
from leakscope.record.model import Look, Rank
from leakscope.record.rows.device import DeviceFigures
from leakscope.units import bytes_text

NAME = RuleName.ALLOCATOR
_ABOVE_LEAST, _ABOVE_SHARE = 256 << 20, 0.25
_PENDING_LEAST, _PENDING_SHARE = 1 << 20, 0.02
_OUTSIDE_LEAST = 64 << 20

Counted = Sequence[tuple[int, DeviceFigures]]
"""One device's counters, each with the step at whose end they were read."""


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
    private = f" {bytes_text(looks[-1].private)} of it belong to private pools." if looks and looks[-1].private else ""
    title = (
        f"device {device} has {bytes_text(last.reserved)} reserved where at most {bytes_text(most)} were ever in use"
    )
    advice = (
        "Blocks of changing sizes do not fit into each other's places: set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or "
        f"pad inputs to a few sizes.{private}"
    )
    return [_note("reserved", rank, title, advice, over, ((step, over),))]


def _pending(rank: Rank, device: int, looks: Sequence[DeviceLook]) -> list[Finding]:
    """Dead tensors that another stream keeps, look after look."""
    seen = [(k.step, k.pending) for k in looks if k.pending >= max(_PENDING_LEAST, _PENDING_SHARE * k.reserved)]
    if len(seen) < 2 or seen[-1][0] != looks[-1].step:
        return []
    title = f"{bytes_text(seen[-1][1])} of dead tensors on device {device} wait for another stream"
    advice = (
        "A tensor used on another stream (`record_stream`, asynchronous collectives) is given back only once that "
        "stream has passed it: wait for the Work handles, or keep the tensor and let it go after synchronising."
    )
    made_at = tuple(site.where for site in looks[-1].pending_sites)
    return [_note("pending", rank, title, advice, seen[-1][1], seen, made_at=made_at)]


def _outside(rank: Rank, device: int, looks: Sequence[DeviceLook]) -> list[Finding]:
    """Memory of the device that grows and that torch has not reserved."""
    told = [k for k in looks if k.outside is not None]
    line = series([k.step for k in told], {k.step: k.outside or 0 for k in told})
    if not line.grew_lately or line.total < _OUTSIDE_LEAST:
        return []
    title = f"memory of device {device} outside torch's allocator grows by {bytes_text(line.per_step)} a step"
    advice = (
        "No snapshot shows it: communicators and their buffers, library handles and workspaces, captured graphs, or "
        "another process on the same device, which is counted as well."
    )
    seen = [(step, size - line.bytes[0]) for step, size in zip(line.steps, line.bytes, strict=True)]
    return [_note("outside", rank, title, advice, seen[-1][1], seen, line.per_step)]


def _retries(rank: Rank, device: int, counted: Counted) -> list[Finding]:
    """The cache was given back and memory asked for anew, which waits for the device each time."""
    steps = sum(1 for (_, a), (_, b) in pairwise(counted) if b.retries > a.retries)
    if steps < 2 or not counted[-1][1].retries:
        return []
    step, last = counted[-1]
    title = (
        f"device {device} was full {last.retries} times, in {steps} steps: its cache was given back and asked for again"
    )
    advice = "Each time waits for the device. Free what the findings above name, or take a smaller batch."
    return [_note("retries", rank, title, advice, last.reserved, ((step, last.reserved),))]


def _passed_by(rank: Rank) -> list[Finding]:
    rows = caught(rank)
    if not rows:
        return []
    places = tuple(dict.fromkeys(row.at for row in rows if row.at))
    times = "once" if len(rows) == 1 else f"{len(rows)} times"
    most = max(row.wanted_bytes for row in rows)
    title = f"device memory ran out {times} and the script went on; the largest request was {bytes_text(most)}"
    advice = (
        "It was caught: by the script, as one that takes a smaller batch then, or by a library that tries one algorithm "
        "after the other. No failure by itself."
    )
    return [_note("caught", rank, title, advice, 0, [(row.step, row.wanted_bytes) for row in rows], made_at=places)]


def _note(
    what: str, rank: Rank, title: str, advice: str, size: int, seen: Sequence[tuple[int, int]], per_step: float = 0.0,
    made_at: tuple[str, ...] = (),
) -> Finding:  # fmt: skip
    return Finding(
        rule=NAME,
        facts=Said(title=title, advice=advice),
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
