"""Sentences about a memory snapshot, shared by all formats."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.memory_snapshot.analysis import (
    DeviceReport,
    Fragmentation,
    HostReport,
    OutOfMemory,
    Pool,
    SnapshotReport,
)
from leakscope.memory_snapshot.oom import Help, Remedy, Room
from leakscope.memory_snapshot.replay import LabelKind, Labelled
from leakscope.memory_snapshot.sites import Site, SiteKind
from leakscope.memory_snapshot.verdict import Concern, ConcernKind, SnapshotsReport
from leakscope.units import bytes_text, seconds_text
from leakscope.verdict import Verdict

_MOST_STREAMS = 4
"""Streams told at the most, chosen."""
_MOST_POOLS = 8
"""Private pools told at the most, chosen."""
_PRESET = {"pinned_num_register_threads": "1"}
"""Settings of torch that are not off unasked (c10/cuda/CUDAAllocatorConfig.h)."""
_ANSWERS = {
    True: "would have been enough at best",
    False: "not enough",
    None: "whether that is enough is not told",
}
"""Whether a remedy would have helped, in words."""
_NO_RELEASES = "no release was recorded, so what was idle then is not told"
_MOST_SITES = 3
"""Places told in the first line, chosen."""


def verdict_line(report: SnapshotsReport) -> str:
    """What the files say in one line: the most urgent concern (of memory that ran out what grew, too) and how many more
    there are, the peak and what held it, what is alive at the end, and whether that grew.
    """
    judgement = report.judgement
    several = len(report.snapshots) > 1
    told = list(judgement.concerns[:1])
    if told and told[0].kind == ConcernKind.OUT_OF_MEMORY:
        told += [concern for concern in judgement.concerns if concern.kind == ConcernKind.GROWTH][:1]
    parts = [concern_text(concern, several) for concern in told]
    if len(judgement.concerns) > len(told):
        parts[-1] += f" (and {len(judgement.concerns) - len(told)} more)"
    devices = [(device, snapshot) for snapshot in report.snapshots for device in snapshot.devices]
    if not parts and judgement.verdict == Verdict.CLEAN:
        fewest = min((device.growth for device, _ in devices), key=lambda growth: growth.steps)
        how = ", inferred from allocations that repeat themselves" if fewest.inferred else ""
        parts.append(f"nothing grew at every one of {fewest.steps} steps{how}")
    highest, its = max(devices, key=lambda pair: pair[0].peak_bytes)
    if highest.peak_bytes:
        parts.append(held_text(highest) + (f" ({title(its)})" if several else ""))
    if judgement.verdict == Verdict.INCONCLUSIVE:
        return "; ".join([*parts, f"growth {judgement.verdict}: {judgement.why}"])
    return f"{judgement.verdict}: {'; '.join(parts)}"


def held_text(device: DeviceReport) -> str:
    """`peak 12.97 GiB: 2.56 GiB of model.py:39 forward, 2.25 GiB of model.py:532 silu; 1.28 GiB at the end`."""
    sites = device.end_sites if device.peak_event < 0 else device.peak_sites
    held = ", ".join(f"{bytes_text(entry.bytes)} {_made(entry.site)}" for entry in sites[:_MOST_SITES])
    if device.peak_event < 0:
        return f"{bytes_text(device.requested_bytes)} alive: {held}"
    return f"peak {bytes_text(device.peak_bytes)}: {held}; {bytes_text(device.requested_bytes)} at the end"


def _made(site: Site) -> str:
    return f"({site.where})" if site.kind == SiteKind.UNKNOWN else f"of {site.where}"


def _place(site: Site | None) -> str:
    """As the subject of a sentence."""
    return "an unknown place" if site is None or site.kind == SiteKind.UNKNOWN else site.where


def concern_text(concern: Concern, several: bool) -> str:
    """One concern as a clause; with `several` files it says which."""
    where = _place(concern.site)
    origin = (
        "" if not several else f" on rank {concern.rank}" if concern.rank is not None else f" in {concern.snapshot}"
    )
    made = f"; made at {where}" if concern.site and concern.site.kind != SiteKind.UNKNOWN else ""
    amount, of = bytes_text(concern.bytes), bytes_text(concern.of_bytes)
    if concern.kind == ConcernKind.OUT_OF_MEMORY:
        alive = bytes_text(concern.alive_bytes)
        return f"out of memory{origin}: {where} asked for {amount} with {alive} alive and {of} of the device free"
    if concern.kind == ConcernKind.GROWTH:
        per_step = bytes_text(concern.per_step)
        kept = f"{concern.steps} steps in a row, {amount} alive at the end"
        return f"{where} keeps {per_step} more each step{origin} ({kept})"
    if concern.kind == ConcernKind.RANK_EXCESS:
        return f"{where} holds {amount} more on rank {concern.rank} than on its peers ({of})"
    if concern.kind == ConcernKind.PENDING_FREES:
        return f"{amount} of dead tensors wait for another stream{origin} (record_stream{made})"
    return f"{amount} of {of} reserved is stuck between live blocks{origin}"


def host_text(host: HostReport) -> str:
    """Pinned host memory, which torch 2.14 and later may record."""
    unknown = f", and {host.unknown} whose size this file gives under an unknown name" if host.unknown else ""
    return (
        f"pinned host memory: {bytes_text(host.active_bytes)} active of {bytes_text(host.reserved_bytes)} "
        f"in {host.segments} segments{unknown}"
    )


def title(snapshot: SnapshotReport) -> str:
    """`rank 3 (cuda_step_000012.pickle)`, or the file alone where no rank is known."""
    return snapshot.name if snapshot.rank is None else f"rank {snapshot.rank} ({snapshot.name})"


def peak_text(device: DeviceReport) -> str:
    """Peak and where it stands in the trace."""
    if device.peak_event < 0:
        return "unknown without a history"
    return f"{bytes_text(device.peak_bytes)} after event {device.peak_event} of {device.events}"


def history_text(device: DeviceReport) -> str:
    """How many events the file has of a device, and whether they go back to the beginning."""
    return f"{device.events} events, history {device.history}"


def facts(device: DeviceReport) -> tuple[tuple[str, str], ...]:
    """The device's figures as pairs of label and text."""
    rows = [
        ("history", history_text(device)),
        ("alive at the end", f"{bytes_text(device.requested_bytes)} in {_active_blocks(device)} blocks"),
        ("peak", peak_text(device)),
        ("by kind", _kinds_told(device)) if device.peak_categories else ("", ""),
        ("reserved", f"{bytes_text(device.reserved_bytes)} in {device.segments} segments"),
        ("fragmentation", _fragmentation(device.fragmentation) + (" (at the end)" if device.out_of_memory else "")),
    ]
    if device.pending.blocks or device.pending.requests or device.pending.highest_bytes:
        at_end = f"{bytes_text(device.pending.bytes)} in {device.pending.blocks} blocks at the end"
        rows.append(("pending frees", f"{at_end}, at most {bytes_text(device.pending.highest_bytes)} during the trace"))
    if len(device.streams) > 1:
        peaks = [f"{bytes_text(peak.peak_bytes)} on {peak.stream}" for peak in device.streams[:_MOST_STREAMS]]
        rows.append(("stream peaks", ", ".join(peaks)))
    private = sorted((pool for pool in device.pools if pool.pool != (0, 0)), key=lambda pool: -pool.peak_bytes)
    rows += [(f"private pool {pool.pool[0]},{pool.pool[1]}", _pool(pool)) for pool in private[:_MOST_POOLS]]
    if len(private) > _MOST_POOLS:
        rows.append(("private pools", f"{len(private) - _MOST_POOLS} more, smaller ones"))
    if device.growth.marker:
        growth = device.growth
        how = f"inferred, as allocations repeat themselves from {growth.marker} on"
        marked = f"each from one {growth.marker} to the next"
        rows.append(("steps", f"{growth.steps} complete, {how if growth.inferred else marked}"))
    return tuple(row for row in rows if row[0])


def _kinds_told(device: DeviceReport) -> str:
    return f"{kinds_text(device.peak_categories)} {'at the end' if device.peak_event < 0 else 'at the peak'}"


def kinds_text(categories: Mapping[str, int]) -> str:
    """`activation 1.20 GiB, parameter 300.00 MiB, ... (judged from stacks and life spans)`."""
    return f"{each_kind_text(categories)} (judged from stacks and life spans)"


def each_kind_text(categories: Mapping[str, int]) -> str:
    """`activation 1.20 GiB, parameter 300.00 MiB`."""
    return ", ".join(f"{kind} {bytes_text(count)}" for kind, count in categories.items())


def label_text(label: Labelled) -> str:
    """`Torch-Compiled Region: 0/0`, or `metadata encoder`."""
    return label.name if label.kind == LabelKind.COMPILED else f"{label.kind} {label.name}"


def settings_text(settings: Mapping[str, str]) -> str:
    """The allocator's settings that are not as torch has them unasked; empty where all are."""
    plain = {"", "0", "0.0", "-1", "False", "None", "[]", "{}"}
    own = {name: value for name, value in settings.items() if value not in plain and _PRESET.get(name) != value}
    return ", ".join(f"{name}={value}" for name, value in own.items())


def _fragmentation(scraps: Fragmentation) -> str:
    stuck = f"{bytes_text(scraps.stuck_bytes)} stuck between live blocks"
    return (
        f"{bytes_text(scraps.inactive_bytes)} reserved and unused: "
        f"{bytes_text(scraps.releasable_bytes)} in empty segments, "
        f"{stuck} (largest piece {bytes_text(scraps.largest_stuck_bytes)}); "
        f"rounding adds {bytes_text(scraps.rounding_bytes)}"
    )


def _pool(pool: Pool) -> str:
    pending = f", {bytes_text(pool.pending_bytes)} pending" if pool.pending_bytes else ""
    active = f"{bytes_text(pool.active_bytes)} active of {bytes_text(pool.reserved_bytes)} reserved{pending}"
    return f"{active}, at most {bytes_text(pool.peak_bytes)} ({pool.owner})"


def _active_blocks(device: DeviceReport) -> int:
    return sum(count for state, count in device.blocks.items() if state != "inactive")


def failure_texts(device: DeviceReport) -> tuple[str, ...]:
    """One sentence for each moment memory ran out."""
    texts = []
    for failure in device.out_of_memory:
        when = "" if failure.at is None else f", {seconds_text(failure.at)} into the trace"
        texts.append(
            f"event {failure.event}{when}: {_place(failure.site)} asked for {bytes_text(failure.requested_bytes)}; "
            f"{bytes_text(failure.alive_bytes)} alive of {bytes_text(failure.reserved_bytes)} reserved, "
            f"device free {bytes_text(failure.device_free_bytes)}"
        )
    return tuple(texts)


def failure_lines(device: DeviceReport) -> tuple[str, ...]:
    """One sentence for each moment memory ran out, and the arithmetic of the first."""
    told = [f"Out of memory at {text}" for text in failure_texts(device)]
    return (*told[:1], *(line for failure in device.out_of_memory[:1] for line in room_texts(failure)), *told[1:])


def room_texts(failure: OutOfMemory) -> tuple[str, ...]:
    """The arithmetic of one failure, line by line: what was missing, what lay idle, what would have helped."""
    room = failure.room
    if room is None:
        return (_NO_RELEASES,)
    lines = list(_missing_and_idle(failure, room))
    if len(room.pools) > 1:
        lines += [
            f"{_pool_name(row.pool)}, stream {row.stream}: {bytes_text(row.reserved_bytes)} reserved, "
            f"{bytes_text(row.idle_bytes)} idle, largest piece {bytes_text(row.largest_idle_bytes)}"
            for row in room.pools
        ]
    return (*lines, *(_help_text(remedy, room) for remedy in room.helps))


def room_in_short(failure: OutOfMemory) -> str:
    """The same in one sentence, without the pools and how each remedy works."""
    if failure.room is None:
        return _NO_RELEASES
    parts = list(_missing_and_idle(failure, failure.room))
    for enough, answer in _ANSWERS.items():
        helps = [f"{_name(each)} ({bytes_text(each.bytes)})" for each in failure.room.helps if each.enough is enough]
        if helps:
            parts.append(f"{answer}: {', '.join(helps)}")
    return "; ".join(parts)


def _name(remedy: Help) -> str:
    return "a smaller batch" if remedy.remedy == Remedy.SMALLER_BATCH else str(remedy.remedy)


def _missing_and_idle(failure: OutOfMemory, room: Room) -> tuple[str, str]:
    free = bytes_text(failure.device_free_bytes)
    return (
        f"to be reserved {bytes_text(room.needed_bytes)}, device free {free}{_lack(room)}",
        f"idle {bytes_text(room.idle_bytes)} of {bytes_text(failure.reserved_bytes)} reserved, largest piece for the "
        f"request {bytes_text(room.largest_idle_bytes)}",
    )


def _lack(room: Room) -> str:
    if room.limited:
        return (
            ": that would have been enough, so a limit of the process's own refused it "
            "(set_per_process_memory_fraction), or the driver"
        )
    return "" if room.missing_bytes is None else f": short by {bytes_text(room.missing_bytes)}"


def _pool_name(pool: tuple[int, int]) -> str:
    return "default pool" if pool == (0, 0) else f"private pool {pool[0]},{pool[1]}"


def _help_text(remedy: Help, room: Room) -> str:
    brought = bytes_text(remedy.bytes)
    if remedy.remedy == Remedy.SMALLER_BATCH:
        made = f"smaller batch: {bytes_text(remedy.of_bytes)} alive were made in the forward"
        most = " at the most" if room.limited else ""
        if not remedy.enough:
            return f"{made}, and {brought}{most} were missing: not enough"
        return f"{made}, {remedy.bytes / remedy.of_bytes:.0%} less of it is {brought}{most}"
    if remedy.remedy == Remedy.EXPANDABLE_SEGMENTS and room.expandable:
        return f"{remedy.remedy}: are in use already"
    what = {
        Remedy.EMPTY_CACHE: f"{brought} in segments that held nothing",
        Remedy.EXPANDABLE_SEGMENTS: f"{brought} of idle pieces could have been used together",
        Remedy.MAX_SPLIT_SIZE: f"{brought} in the largest segment that only smaller pieces kept",
    }[remedy.remedy]
    return f"{remedy.remedy}: {what}: {_ANSWERS[remedy.enough]}"
