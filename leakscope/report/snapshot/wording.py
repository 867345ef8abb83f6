"""How do all formats word what a memory snapshot says?"""

from __future__ import annotations

from leakscope.allocator.figures import DeviceReport, HostReport, SnapshotReport
from leakscope.allocator.judging import Concern, ConcernKind, SnapshotsReport
from leakscope.allocator.layout import Fragmentation, Pool
from leakscope.allocator.sites import SiteKind
from leakscope.units import bytes_text, seconds_text
from leakscope.verdict import Verdict


def verdict_line(report: SnapshotsReport) -> str:
    """The verdict in one line: the word, the most urgent concern, and how many more there are."""
    judgement = report.judgement
    several = len(report.snapshots) > 1
    parts = [concern_text(concern, several) for concern in judgement.concerns[:1]]
    if len(judgement.concerns) > 1:
        parts[0] += f" (and {len(judgement.concerns) - 1} more)"
    if judgement.verdict == Verdict.INCONCLUSIVE:
        parts.append(f"growth cannot be judged, as {judgement.why}")
    if not parts:
        steps = min(device.growth.steps for snapshot in report.snapshots for device in snapshot.devices)
        parts.append(f"nothing grew at every one of {steps} steps")
    return f"{judgement.verdict}: {'; '.join(parts)}"


def concern_text(concern: Concern, several: bool) -> str:
    """One concern as a clause; with `several` files it says which."""
    where = concern.site.where if concern.site else "an unknown place"
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
        ("reserved", f"{bytes_text(device.reserved_bytes)} in {device.segments} segments"),
        ("fragmentation", _fragmentation(device.fragmentation)),
    ]
    if device.pending.blocks or device.pending.requests or device.pending.highest_bytes:
        at_end = f"{bytes_text(device.pending.bytes)} in {device.pending.blocks} blocks at the end"
        rows.append(("pending frees", f"{at_end}, at most {bytes_text(device.pending.highest_bytes)} during the trace"))
    rows += [
        (f"private pool {pool.pool[0]},{pool.pool[1]}", _pool(pool)) for pool in device.pools if pool.pool != (0, 0)
    ]
    if device.growth.marker:
        rows.append(("steps", f"{device.growth.steps} complete, each from one {device.growth.marker} to the next"))
    return tuple(rows)


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
    return (
        f"{bytes_text(pool.active_bytes)} active of {bytes_text(pool.reserved_bytes)} reserved{pending} ({pool.owner})"
    )


def _active_blocks(device: DeviceReport) -> int:
    return sum(count for state, count in device.blocks.items() if state != "inactive")


def failure_texts(device: DeviceReport) -> tuple[str, ...]:
    """One sentence for each moment memory ran out."""
    texts = []
    for failure in device.out_of_memory:
        when = "" if failure.at is None else f", {seconds_text(failure.at)} into the trace"
        texts.append(
            f"event {failure.event}{when}: {failure.site.where} asked for {bytes_text(failure.requested_bytes)}; "
            f"{bytes_text(failure.alive_bytes)} alive of {bytes_text(failure.reserved_bytes)} reserved, "
            f"device free {bytes_text(failure.device_free_bytes)}"
        )
    return tuple(texts)
