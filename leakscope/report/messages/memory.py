"""Sentences about the memory of a run: that ran out, was alive at the end or at a peak, or that collecting frees."""

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
    Alive,
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
    wanted = f": {bytes_text(facts.wanted_bytes)} were wanted" if facts.wanted_bytes is not None else ""
    return f"out of memory in step {facts.step} at {facts.at or 'an unknown line'}{wanted}. {facts.error}"


def device_failed_text(facts: DeviceFailed) -> str:
    """What was wanted of a device, and what it had."""
    row, counted = facts.failure, facts.failure.counted
    at = f" at {row.at}" if row.at else ""
    parts = [f"{bytes_text(row.wanted_bytes)} were wanted on {row.kind}:{row.device}{at}"]
    if counted is not None:
        parts.append(f"{bytes_text(counted.allocated)} allocated of {bytes_text(counted.reserved)} reserved")
        if counted.active > counted.allocated:
            pending = counted.active - counted.allocated
            parts.append(f"{bytes_text(pending)} dead and waited for by another stream")
    parts.append(f"the driver had {bytes_text(row.free_bytes)} free, the limit is {bytes_text(row.limit_bytes)}")
    return "; ".join(parts) + "."


def room_then_text(facts: RoomThen) -> str:
    """What was missing, what lay idle, and what would have helped."""
    from leakscope.report.memory_snapshot import room_in_short

    return f"{room_in_short(facts.failure)}."


def no_room_text(_facts: NoRoomToLook) -> str:
    """Why nothing is told of that moment."""
    return "there was no room to look at what was alive when the allocation failed; what is told below was seen before."


def caught_unseen_text(_facts: CaughtUnseen) -> str:
    """What is not told."""
    return "An allocation on the CPU that fails and is caught by the script is not seen; only the one that ended it is."


def near_text(facts: CameNear) -> str:
    """Which limit came near."""
    when = f"in step {facts.step}" if facts.inside else f"after step {facts.step}"
    return f"{when}, {bytes_text(facts.used_bytes)} of {facts.limit} of {bytes_text(facts.limit_bytes)} were in use."


def alive_text(facts: Alive) -> tuple[str, ...]:
    """How much was alive when memory was short, then a line for each of the largest holders."""
    when = "then"
    if facts.failed_rank is not None:
        whose = "the" if facts.failed_rank == facts.rank else f"rank {facts.failed_rank}'s"
        when = f"when {whose} allocation failed"
    first = f"{when}, storages of {bytes_text(facts.bytes)} were alive; the largest holders:"
    return (first, *map(held_then_text, facts.holders))


def held_then_text(held: HeldThen) -> str:
    """`4.00 MiB in 1 storage: losses in main(), train.py:12`."""
    return f"{bytes_text(held.bytes)} in {plural(held.storages, 'storage')}: {_holder(held)}"


def _holder(held: HeldThen) -> str:
    if held.garbage is not None:
        waits = held.garbage == Garbage.WAITS_FOR_GC
        return "garbage that waits for gc" if waits else "a cycle that gc never frees"
    return ", ".join(part for part in (held.name, held.where) if part)


def own_collections_text(facts: OwnCollections) -> str:
    """What the program's own collections freed and cost."""
    kinds = ", ".join(
        f"{kind.collections} of generation {kind.generation} freed {_freed(kind)}" for kind in facts.by_generation
    )
    share = f", {facts.seconds / facts.steps_seconds:.0%} of its time" if facts.steps_seconds else ""
    return (
        f"the program's own collections in the {facts.steps} steps after the first: {kinds}; that is "
        f"{seconds_text(facts.seconds / facts.steps)} a step{share}."
    )


def collected_text(facts: CollectedAtEnd) -> str:
    """What collecting at the end freed."""
    parts = ", ".join(f"generation {kind.generation} {_freed(kind)}" for kind in facts.by_generation)
    full = facts.full_collections
    more = f", {full} full collections one after another" if full > 1 else ""
    return f"collecting at the end freed: {parts}{more}."


def _freed(kind: Collected) -> str:
    return f"{bytes_text(kind.freed_bytes)} in {seconds_text(kind.seconds)}"


def young_text(facts: YoungSuffices) -> str:
    """Which younger generation frees as much."""
    return (
        f"gc.collect({facts.generation}) would free {bytes_text(facts.freed_bytes)} of these "
        f"{bytes_text(facts.all_bytes)} for {seconds_text(facts.seconds)} instead of "
        f"{seconds_text(facts.full_seconds)}."
    )


def each_step_text(facts: FullEachStep) -> str:
    """What a full collection after every step would cost."""
    return (
        f"a full collection after every step would make a step of {seconds_text(facts.step_seconds)} "
        f"{facts.times:.1f} times as long."
    )


def freeze_text(facts: FreezeSaves) -> str:
    """What gc.freeze() after warm-up would save."""
    share = f", {facts.share:.0%} of the steps' time" if facts.share is not None else ""
    text = (
        f"a full collection takes {seconds_text(facts.full_seconds)}{share}; {facts.early_objects:,} of its "
        f"{facts.objects:,} objects are there since step {facts.step}, and gc.freeze() after warm-up leaves those out"
    )
    measured = facts.measured
    if measured is None:
        return f"{text}; what that saves was not measured (--steps N or --gc-diff always does)."
    ends = (
        f"{seconds_text(measured.full_seconds)} with every object in it, "
        f"{seconds_text(measured.frozen_seconds)} with every object frozen"
    )
    return f"{text}: about {seconds_text(facts.frozen_seconds)} instead (measured: {ends})."


def cuts_text(facts: CutsInstead) -> str:
    """What cutting the references does instead."""
    many = "the reference" if facts.references == 1 else f"the {facts.references} references"
    where = f" ({', '.join(facts.where)})" if facts.where else ""
    rate = bytes_text(facts.bytes_per_step)
    return f"Cutting {many} named above{where} frees the same {rate} a step at once and costs nothing."


_COULD_LET_GO: Mapping[Releaser, str] = {
    Releaser.USER: "your code could let go of",
    Releaser.LIBRARY: "only a library could let go of",
    Releaser.GRADIENT: "are gradients kept until zero_grad",
    Releaser.COMM: "are held by sends and receives that are not over",
    Releaser.AUTOGRAD: "autograd keeps for a backward that does not use them",
}
"""Who could let go of what is idle at the peak, after its size."""
_UNSEEN_SHARE = 0.01
"""Share of the peak from which what nobody saw being made is told; chosen."""


def lag_use_drag_text(facts: LagUseDrag) -> str:
    """How much of the time that the storages of a step were alive they were of use."""
    lag, use, drag = facts.lag_byte_seconds, facts.use_byte_seconds, facts.drag_byte_seconds
    whole = lag + use + drag
    return (
        f"the {facts.storages} storages that the step before step {facts.step} made and let go: of the time that their "
        f"bytes were alive, {lag / whole:.0%} was before the first use, {use / whole:.0%} between uses, "
        f"{drag / whole:.0%} after the last."
    )


def idle_text(facts: IdleAtPeak) -> str:
    """How high the peak was, and who could let go of what was idle then."""
    at = f" at {facts.peak_at}" if facts.peak_at else ""
    on = "" if facts.device == "cpu" else f" on {facts.device}"
    text = f"the peak of step {facts.step}{on} was {bytes_text(facts.peak_bytes)}{at}"
    idle = f"{bytes_text(facts.idle_bytes)} of it were not used again"
    named = [f"{bytes_text(facts.by[who])} {words}" for who, words in _COULD_LET_GO.items() if facts.by.get(who)]
    beside = (
        f" Beside it {bytes_text(facts.unseen_bytes)} were alive that other threads or native code had made unseen."
        if facts.unseen_bytes > _UNSEEN_SHARE * facts.peak_bytes
        else ""
    )
    return f"{text}; {idle}{': ' if named else ''}{', '.join(named)}.{beside}"


def rise_text(facts: RiseFacts) -> str:
    """How high tensor memory rose in a test; then, a line each, who made and who held what was alive at the peak."""
    lines = [f"tensor memory rose by {bytes_text(facts.bytes)}, {bytes_text(facts.allowed_bytes)} allowed"]
    if facts.made and facts.made[0].where:
        lines[0] += f": {facts.made[0].where} made {bytes_text(facts.made[0].bytes)} of it"
    lines += ["", f"alive at the peak, after {facts.at}, by the line that made it:"]
    for made in facts.made:
        where = made.where or "made where nobody saw it: in another thread, by numpy or from a file"
        lines.append(f"  {bytes_text(made.bytes)} in {plural(made.storages, 'storage')}: {where}")
    if facts.held_bytes:
        risen, (operation, returned) = bytes_text(facts.held_bytes), facts.returned
        when = "then" if risen == bytes_text(facts.bytes) else f"when it had risen by {risen}"
        lines += ["", f"who held it {when}:", *(f"  {held_then_text(held)}" for held in facts.held)]
        if returned:
            lines.append(f"  {bytes_text(returned)}: nobody yet, {operation} was about to return it")
    if any(device != "cpu" for device, _ in facts.devices):
        on = ", ".join(f"{bytes_text(size)} on {device}" for device, size in facts.devices)
        lines.append(f"  of that {on}")
    return "\n".join(lines) + "\n"
