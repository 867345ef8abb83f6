"""Sentences about memory that no storage explains, that an allocator keeps, that one rank holds beside its peers, that
ran out, that was alive at the end, or that collecting frees.
"""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.findings.breakdown import UnattributedFacts
from leakscope.findings.device import (
    CaughtFacts,
    NativeBlocksFacts,
    OutsideFacts,
    PendingFacts,
    ReservedFacts,
    RetriesFacts,
)
from leakscope.findings.gc_advice import (
    Collected,
    CollectedAtEnd,
    CutsInstead,
    FreezeSaves,
    FullEachStep,
    OwnCollections,
    YoungSuffices,
)
from leakscope.findings.model import Finding
from leakscope.findings.naming import place_of
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
from leakscope.findings.peak import IdleAtPeak, LagUseDrag, LateReleaseFacts, OthersFacts, Releaser, UntouchedFacts
from leakscope.findings.ranks import RankSkewFacts
from leakscope.units import bytes_text, plural, seconds_text

_FOR_EACH_SHAPE = (
    "oneDNN and ideep keep what they have built for each new shape, up to ONEDNN_PRIMITIVE_CACHE_CAPACITY and "
    "LRU_CACHE_CAPACITY of them (1024 unless set){}: run with fixed shapes, or set both to 1, to see whether anything "
    "else grows. "
)
_ON_HOST = (
    "Look first for what no container gains item by item: a text that is made longer each step (log += ...), a list "
    "made anew from all so far, pyarrow tables, objects of C extensions; then "
)


def unattributed_title(_finding: Finding, facts: UnattributedFacts) -> str:
    """How fast memory grows that is no tensor's."""
    how = f" by {bytes_text(facts.per_step)} a step"
    if not facts.is_steady:
        how = f", not steadily, by {bytes_text(facts.grown)} in all"
    shapes = ", while shapes are new at each look" if facts.shapes_are_new else ""
    return f"memory that is no tensor's grows{how}{shapes}"


def unattributed_advice(_finding: Finding, facts: UnattributedFacts) -> str:
    """Where to look for it."""
    seen = f"; {facts.shapes:,} so far, full by step {facts.full_at_step:,}" if facts.full_at_step else ""
    shapes = _FOR_EACH_SHAPE.format(seen) if facts.shapes_are_new else ""
    look = _ON_HOST if facts.on_host else "Look "
    came = " and ".join(f"{rate:,} {name}" for name, rate in facts.came_too)
    beside = f"Each step leaves {came}: see what keeps those objects, and what they keep in C++. " if came else ""
    return (
        f"{beside}{shapes}{look}for handles of asynchronous operations that are kept (Work of isend, irecv, "
        "all_reduce(async_op=True)), distributed-autograd contexts left open, an autocast region never left, or a C++ "
        "extension that caches."
    )


def native_blocks_title(_finding: Finding, facts: NativeBlocksFacts) -> str:
    """How fast device memory grows that nothing explains."""
    grows = f"grows by {bytes_text(facts.per_step)} a step"
    return f"device memory that no Python object and no autograd path explains {grows}"


def native_blocks_advice(_finding: Finding, facts: NativeBlocksFacts) -> str:
    """What may keep it."""
    return (
        f"These blocks were made at {facts.made_at[0] if facts.made_at else 'an unknown place'} and are kept by native "
        "code: look for handles of asynchronous operations that are kept, an autocast region never left, captured "
        "graphs, or a C++ extension that caches."
    )


def reserved_title(_finding: Finding, facts: ReservedFacts) -> str:
    """How much is reserved, and how much was ever in use."""
    reserved, most = bytes_text(facts.reserved), bytes_text(facts.most)
    return f"device {facts.device} has {reserved} reserved where at most {most} were ever in use"


def reserved_advice(_finding: Finding, facts: ReservedFacts) -> str:
    """What against fragmentation."""
    private = f" {bytes_text(facts.private)} of it belong to private pools." if facts.private else ""
    return (
        "Blocks of changing sizes do not fit into each other's places: set "
        f"`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or pad inputs to a few sizes.{private}"
    )


def pending_title(_finding: Finding, facts: PendingFacts) -> str:
    """How much is dead and not given back."""
    return f"{bytes_text(facts.bytes)} of dead tensors on device {facts.device} wait for another stream"


def pending_advice(_finding: Finding, _facts: PendingFacts) -> str:
    """When it is given back."""
    return (
        "A tensor used on another stream (`record_stream`, asynchronous collectives) is given back only once that "
        "stream has passed it: wait for the Work handles, or keep the tensor and let it go after synchronising."
    )


def outside_title(_finding: Finding, facts: OutsideFacts) -> str:
    """How fast memory grows that torch has not reserved."""
    return f"memory of device {facts.device} outside torch's allocator grows by {bytes_text(facts.per_step)} a step"


def outside_advice(_finding: Finding, _facts: OutsideFacts) -> str:
    """Whose it may be."""
    return (
        "No snapshot shows it: communicators and their buffers, library handles and workspaces, captured graphs, or "
        "another process on the same device, which is counted as well."
    )


def retries_title(_finding: Finding, facts: RetriesFacts) -> str:
    """How often the device was full."""
    full = f"device {facts.device} was full {facts.times} times, in {facts.steps} steps"
    return f"{full}: its cache was given back and asked for again"


def retries_advice(_finding: Finding, _facts: RetriesFacts) -> str:
    """What it costs."""
    return "Each time waits for the device. Free what the findings above name, or take a smaller batch."


def caught_title(_finding: Finding, facts: CaughtFacts) -> str:
    """How often memory ran out without an end."""
    times = "once" if facts.times == 1 else f"{facts.times} times"
    largest = f"the largest request was {bytes_text(facts.largest_bytes)}"
    return f"device memory ran out {times} and the script went on; {largest}"


def caught_advice(_finding: Finding, _facts: CaughtFacts) -> str:
    """Who caught it."""
    return (
        "It was caught: by the script, as one that takes a smaller batch then, or by a library that tries one "
        "algorithm "
        "after the other. No failure by itself."
    )


def skew_title(_finding: Finding, facts: RankSkewFacts) -> str:
    """How much it holds, and what its peers' share would be."""
    largest = f"; the largest holder is {facts.largest}" if facts.largest else ""
    return (
        f"rank {facts.rank} holds {bytes_text(facts.held_bytes)} beside its model where its peers' share would be "
        f"{bytes_text(facts.expected_bytes)}{largest}"
    )


def skew_advice(_finding: Finding, facts: RankSkewFacts) -> str:
    """What to compare."""
    return (
        f"Compare what rank {facts.rank} holds at its last look with a peer's, by category. In a pipeline the first "
        "stages keep more microbatches in flight; the last stage keeps logits, losses and what a logged metric holds."
    )


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
    from leakscope.report.memory_snapshot.words import room_in_short

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


_OTHERS: Mapping[Releaser, tuple[str, str]] = {
    Releaser.GRADIENT: (
        "gradients of the last step are kept until zero_grad: {size} at the step's peak",
        "Call optimizer.zero_grad() right after optimizer.step(), before the next forward, and the peak falls by "
        "{fall}.",
    ),
    Releaser.COMM: (
        "sends and receives that are not yet over, or whose Work is kept, hold {size} through the step's peak",
        "Wait for an operation as early as its buffer is not needed and drop its Work then, and the peak falls by "
        "{fall}.",
    ),
    Releaser.AUTOGRAD: (
        "autograd keeps {size} through the step's peak for a backward that does not use it",
        "Compute what needs no gradient under torch.no_grad(), or detach it, so that its graph is not kept until "
        "backward, and the peak falls by {fall}.",
    ),
}
"""Who could let go to title and advice."""
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


def late_release_title(finding: Finding, facts: LateReleaseFacts) -> str:
    """`out in main()` at train.py:31: how much it keeps, since which line, and by how much the peak could fall."""
    assert finding.cut is not None
    where = f" at {finding.cut.where}" if finding.cut.where else ""
    them = "it" if facts.holders == 1 else "them"
    by_name = f" (del {', '.join(facts.variables)})" if facts.variables and not facts.arguments else ""
    return (
        f"`{finding.cut.written}`{where}: {bytes_text(facts.bytes)} at the step's peak, {_last_use(facts)}; "
        f"let go of {them}{by_name} and the peak falls by {bytes_text(facts.fall_bytes)}"
    )


def _last_use(facts: LateReleaseFacts) -> str:
    if facts.last_use_at:
        return f"last used at {line_of(facts.last_use_at)}"
    return f"not used since {line_of(facts.made_at)} made it" if facts.made_at else "not used in the step at all"


def late_release_advice(finding: Finding, facts: LateReleaseFacts) -> str:
    """When to let go of it, and what stands in the way."""
    assert finding.cut is not None
    text = (
        f"Let go of {finding.cut.written} after the last use, or move that part into a function of its own; the peak "
        f"is at {facts.peak_at}."
    )
    return text + _of_arguments(facts) + (_SAVED if facts.is_saved else "")


_SAVED = (
    " A grad node that has already run still keeps it as a saved tensor: drop retain_graph=True, or the last reference "
    "to the graph."
)


def _of_arguments(facts: LateReleaseFacts) -> str:
    if not facts.arguments:
        return ""
    return (
        f" {_is_argument(facts)} of a running call: what a caller hands over stays alive until the call returns, "
        "unless it is passed in a list that the callee empties (a boxed call) and no caller keeps a name for it."
    )


def boxed_text(facts: LateReleaseFacts) -> str:
    """What to do about arguments of a running call, in one sentence; "" where there are none."""
    if not facts.arguments:
        return ""
    return f" {_is_argument(facts)} of a running call: hand it over in a list that the callee empties."


def _is_argument(facts: LateReleaseFacts) -> str:
    return f"{', '.join(facts.arguments)} {'is an argument' if len(facts.arguments) == 1 else 'are arguments'}"


def line_of(place: str) -> str:
    """`train.py:41` of `train.py:41 forward (aten::addmm)`; all of it where it begins with no line."""
    told = place_of(place)
    return place if told is None else told.at


def untouched_title(finding: Finding, facts: UntouchedFacts) -> str:
    """`ckpt in main()` at train.py:12: how much it keeps, since when, and by how much the peak could fall."""
    assert finding.cut is not None
    where = f" at {finding.cut.where}" if finding.cut.where else ""
    them = "it" if facts.holders == 1 else "them"
    by_name = f" (del {', '.join(facts.variables)})" if facts.variables else ""
    return (
        f"`{finding.cut.written}`{where}: {bytes_text(facts.bytes)} idle since before step {facts.first_step}, "
        f"{_held_for_nothing(facts)}; no operation of steps {facts.first_step} and {facts.last_step} touched it; "
        f"let go of {them}{by_name} and {_gain(facts)}"
    )


def _held_for_nothing(facts: UntouchedFacts) -> str:
    if not facts.functions:
        return "which no code reads again"
    have = "has" if len(facts.functions) == 1 else "have"
    return f"in variables of {' and '.join(facts.functions)}, which {have} ended"


def _gain(facts: UntouchedFacts) -> str:
    on_device = facts.bytes - facts.host_bytes
    parts = [f"the peak falls by {bytes_text(on_device)}"] if on_device else []
    parts += [f"{bytes_text(facts.host_bytes)} of host memory are free"] if facts.host_bytes else []
    return " and ".join(parts)


def untouched_advice(_finding: Finding, facts: UntouchedFacts) -> str:
    """How to let go of it."""
    if facts.functions:
        return (
            "A stored exception or traceback keeps every variable of the calls it came through. Keep its text "
            "(traceback.format_exception) instead, or clear it: `error.__traceback__ = None`."
        )
    return (
        "Delete the variable after its last use, or move that part into a function of its own. Where native code was "
        "given its address, it has to stay."
    )


def others_title(_finding: Finding, facts: OthersFacts) -> str:
    """Who keeps how much through the peak."""
    return _OTHERS[facts.by][0].format(size=bytes_text(facts.bytes))


def others_advice(_finding: Finding, facts: OthersFacts) -> str:
    """What makes them let go."""
    return _OTHERS[facts.by][1].format(fall=bytes_text(facts.fall_bytes))


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
