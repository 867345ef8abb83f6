"""Sentences about memory: out of memory, alive at the end, at the peak, and freed by gc."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.findings.gc_advice import (
    Collected,
    CollectedAtEnd,
    CutsInstead,
    FreezeSaves,
    FullEachStep,
    OwnCollections,
    YoungSuffices,
)
from leakscope.findings.oom import (
    AliveAtFailure,
    AllocationFailed,
    CameNear,
    CaughtUnseen,
    DeviceFailed,
    Garbage,
    HeldThen,
    NoRoomToLook,
    RiseFacts,
    RoomThen,
)
from leakscope.findings.peak import IdleAtPeak, LagUseDrag, Releaser
from leakscope.units import bytes_text, plural, seconds_text


def failed_text(facts: AllocationFailed) -> str:
    """Which allocation failed, and where."""
    wanted = f" when allocating {bytes_text(facts.wanted_bytes)}" if facts.wanted_bytes is not None else ""
    return f"out of memory in step {facts.step} at {facts.at or 'an unknown line'}{wanted}. {facts.error}"


def device_failed_text(facts: DeviceFailed) -> str:
    """The failed allocation of a device and the state of its allocator."""
    row, counted = facts.failure, facts.failure.counted
    at = f" at {row.at}" if row.at else ""
    parts = [f"tried to allocate {bytes_text(row.wanted_bytes)} on {row.kind}:{row.device}{at}"]
    if counted is not None:
        parts.append(f"{bytes_text(counted.allocated)} allocated of {bytes_text(counted.reserved)} reserved")
        if counted.active > counted.allocated:
            pending = counted.active - counted.allocated
            parts.append(f"{bytes_text(pending)} freed but pending on another stream")
    parts.append(f"the driver had {bytes_text(row.free_bytes)} free, the limit is {bytes_text(row.limit_bytes)}")
    return "; ".join(parts) + "."


def room_then_text(facts: RoomThen) -> str:
    """Missing and unused memory, and the fix."""
    from leakscope.report.memory_snapshot import room_in_short

    return f"{room_in_short(facts.failure)}."


def no_room_text(_facts: NoRoomToLook) -> str:
    """Why there is no heap snapshot of the failure."""
    return "too little memory for a heap snapshot at the failure; the figures below are from earlier snapshots."


def caught_unseen_text(_facts: CaughtUnseen) -> str:
    """Failures that are not recorded."""
    return "A failed CPU allocation that the script catches is not recorded, only one that ends the script."


def near_text(facts: CameNear) -> str:
    """The limit that was nearly reached."""
    when = f"in step {facts.step}" if facts.inside else f"after step {facts.step}"
    return f"{when}, {bytes_text(facts.used_bytes)} of {facts.limit} of {bytes_text(facts.limit_bytes)} were in use."


def alive_text(facts: AliveAtFailure) -> tuple[str, ...]:
    """Live bytes when memory was short, then one line for each of the largest referrers."""
    when = "at that time"
    if facts.failed_rank is not None:
        whose = "the" if facts.failed_rank == facts.rank else f"rank {facts.failed_rank}'s"
        when = f"when {whose} allocation failed"
    first = f"{when}, {bytes_text(facts.bytes)} of storages were alive, mostly held by:"
    return (first, *map(held_then_text, facts.holders))


def held_then_text(held: HeldThen) -> str:
    """`4.00 MiB in 1 storage: losses in main(), train.py:12`."""
    return f"{bytes_text(held.bytes)} in {plural(held.storages, 'storage')}: {_holder(held)}"


def _holder(held: HeldThen) -> str:
    if held.garbage is not None:
        waits = held.garbage == Garbage.WAITS_FOR_GC
        return "garbage awaiting gc" if waits else "uncollectable cycle"
    return ", ".join(part for part in (held.name, held.where) if part)


def own_collections_text(facts: OwnCollections) -> str:
    """Memory freed by the collections of the program, and their cost."""
    kinds = ", ".join(
        f"{kind.collections} of generation {kind.generation}, {_freed(kind)}" for kind in facts.by_generation
    )
    share = f" ({facts.seconds / facts.steps_seconds:.0%} of the time)" if facts.steps_seconds else ""
    return (
        f"garbage collections in the {facts.steps} steps after the first: {kinds}; "
        f"{seconds_text(facts.seconds / facts.steps)} per step{share}."
    )


def collected_text(facts: CollectedAtEnd) -> str:
    """Memory freed by the collection at the end."""
    parts = ", ".join(f"generation {kind.generation} {_freed(kind)}" for kind in facts.by_generation)
    full = facts.full_collections
    more = f", {full} full collections in a row" if full > 1 else ""
    return f"garbage collection at the end: {parts}{more}."


def _freed(kind: Collected) -> str:
    return f"freed {bytes_text(kind.freed_bytes)} in {seconds_text(kind.seconds)}"


def young_text(facts: YoungSuffices) -> str:
    """A younger generation that frees as much."""
    return (
        f"gc.collect({facts.generation}) frees {bytes_text(facts.freed_bytes)} of these "
        f"{bytes_text(facts.all_bytes)} in {seconds_text(facts.seconds)} instead of "
        f"{seconds_text(facts.full_seconds)}."
    )


def each_step_text(facts: FullEachStep) -> str:
    """Cost of a full collection after every step."""
    return (
        f"a full collection after every step makes a step of {seconds_text(facts.step_seconds)} "
        f"{facts.times:.1f} times as long."
    )


def freeze_text(facts: FreezeSaves) -> str:
    """Time saved by gc.freeze() after warm-up."""
    share = f" ({facts.share:.0%} of the step time)" if facts.share is not None else ""
    text = (
        f"a full collection takes {seconds_text(facts.full_seconds)}{share}; {facts.early_objects:,} of its "
        f"{facts.objects:,} objects exist since step {facts.step}, and gc.freeze() after warm-up skips them"
    )
    measured = facts.measured
    if measured is None:
        return f"{text}; the savings were not measured (use --steps N or --gc-diff)."
    ends = (
        f"{seconds_text(measured.full_seconds)} with all objects, "
        f"{seconds_text(measured.frozen_seconds)} with all objects frozen"
    )
    return f"{text}: about {seconds_text(facts.frozen_seconds)} instead (measured: {ends})."


def cuts_text(facts: CutsInstead) -> str:
    """The effect of the cuts compared with gc."""
    many = "the reference" if facts.references == 1 else f"the {facts.references} references"
    where = f" ({', '.join(facts.where)})" if facts.where else ""
    rate = bytes_text(facts.bytes_per_step)
    return f"Cutting {many} above{where} frees the same {rate} per step immediately, at no cost."


_COULD_LET_GO: Mapping[Releaser, str] = {
    Releaser.USER: "your code can release",
    Releaser.LIBRARY: "only a library can release",
    Releaser.GRADIENT: "gradients kept until zero_grad",
    Releaser.COMM: "held by pending sends and receives",
    Releaser.AUTOGRAD: "saved by autograd and unused by backward",
}
"""What can release memory that is idle at the peak; follows the bytes."""
_UNSEEN_SHARE = 0.01
"""Share of the peak from which memory without a recorded allocation is reported; heuristic: less is noise."""


def lag_use_drag_text(facts: LagUseDrag) -> str:
    """Share of the lifetime of a step's storages before, during and after their use."""
    lag, use, drag = facts.lag_byte_seconds, facts.use_byte_seconds, facts.drag_byte_seconds
    whole = lag + use + drag
    return (
        f"lifetime of the {facts.storages} storages allocated and freed in the step before step {facts.step} (by "
        "bytes): "
        f"{lag / whole:.0%} before the first use, {use / whole:.0%} between uses, {drag / whole:.0%} idle after "
        "the last use."
    )


def idle_text(facts: IdleAtPeak) -> str:
    """Bytes at the peak, and what can release the idle part."""
    at = f" at {facts.peak_at}" if facts.peak_at else ""
    on = "" if facts.device == "cpu" else f" on {facts.device}"
    text = f"the peak of step {facts.step}{on} was {bytes_text(facts.peak_bytes)}{at}"
    idle = f"{bytes_text(facts.idle_bytes)} of it idle (not used again)"
    named = [f"{bytes_text(facts.by[who])} {words}" for who, words in _COULD_LET_GO.items() if facts.by.get(who)]
    beside = (
        f" Another {bytes_text(facts.unseen_bytes)} was allocated by other threads or native code, unrecorded."
        if facts.unseen_bytes > _UNSEEN_SHARE * facts.peak_bytes
        else ""
    )
    return f"{text}; {idle}{': ' if named else ''}{', '.join(named)}.{beside}"


def rise_text(facts: RiseFacts) -> str:
    """Rise of tensor memory in a test; then the allocation sites and referrers at the peak, one per line."""
    lines = [f"tensor memory rose by {bytes_text(facts.bytes)}, {bytes_text(facts.allowed_bytes)} allowed"]
    if facts.made and facts.made[0].where:
        lines[0] += f": {bytes_text(facts.made[0].bytes)} of it allocated at {facts.made[0].where}"
    lines += ["", f"alive at the peak, after {facts.at}, by allocation site:"]
    for made in facts.made:
        where = made.where or "unknown: another thread, numpy or a file"
        lines.append(f"  {bytes_text(made.bytes)} in {plural(made.storages, 'storage')}: {where}")
    if facts.held_bytes:
        risen, (operation, returned) = bytes_text(facts.held_bytes), facts.returned
        when = "at the peak" if risen == bytes_text(facts.bytes) else f"after a rise of {risen}"
        lines += ["", f"held {when} by:", *(f"  {held_then_text(held)}" for held in facts.held)]
        if returned:
            lines.append(f"  {bytes_text(returned)}: the result of {operation}, not yet returned")
    if any(device != "cpu" for device, _ in facts.devices):
        on = ", ".join(f"{bytes_text(size)} on {device}" for device, size in facts.devices)
        lines.append(f"  of that {on}")
    return "\n".join(lines) + "\n"
