"""Sentences about the facts of a run: out of memory, gc, idle memory, other growth, DataLoader workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from leakscope.findings.counters import AlsoGrows, CountKind
from leakscope.findings.facts import (
    AliveAtEnd,
    RunFacts,
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
from leakscope.findings.oom import (
    AliveAtFailure,
    AllocationFailed,
    CameNear,
    CaughtUnseen,
    DeviceFailed,
    Garbage,
    HeldThen,
    NoRoomForSnapshot,
    RiseFacts,
    RoomThen,
)
from leakscope.findings.peak import IdleAtPeak, LagUseDrag, Releaser
from leakscope.findings.workers import LoaderMemory, WorkerLine, WorkerLineKind
from leakscope.run.rows import Recompiled
from leakscope.units import bytes_text, like_text, one_of_each, plural, seconds_text


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


def no_snapshot_text(_facts: NoRoomForSnapshot) -> str:
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
        owner = "the" if facts.failed_rank == facts.rank else f"rank {facts.failed_rank}'s"
        when = f"when {owner} allocation failed"
    first = f"{when}, {bytes_text(facts.bytes)} of storages were alive, mostly held by:"
    return (first, *map(holder_text, facts.holders))


def holder_text(held: HeldThen) -> str:
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


_COULD_RELEASE: Mapping[Releaser, str] = {
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
    named = [f"{bytes_text(facts.by[who])} {words}" for who, words in _COULD_RELEASE.items() if facts.by.get(who)]
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
        lines += ["", f"held {when} by:", *(f"  {holder_text(held)}" for held in facts.held)]
        if returned:
            lines.append(f"  {bytes_text(returned)}: the result of {operation}, not yet returned")
    if any(device != "cpu" for device, _ in facts.devices):
        on = ", ".join(f"{bytes_text(size)} on {device}" for device, size in facts.devices)
        lines.append(f"  of that {on}")
    return "\n".join(lines) + "\n"


_CLOSE: Mapping[str, str] = {
    "unix socket": "shut down each pool, manager or process group before starting the next",
    "socket": "close each client, store or server object that opens a connection",
    "pipe": "terminate and join child processes, or set persistent_workers=True for a DataLoader",
    "/dev/shm/": "each is a shared tensor that is still referenced: drop it, or keep a clone() of received tensors",
    "/": "open files in a with block, or close them",
}
"""Prefix of the kind of a descriptor to the fix; the first match applies."""
_CLOSE_OTHERS = "close the objects that open them"


def also_grows_text(facts: AlsoGrows) -> str:
    """`143 more file descriptors from step 3 to 40 (...). Fix: ...`."""
    return _TEXTS[facts.what](facts)


def _over(facts: AlsoGrows) -> str:
    return f"from step {facts.from_step} to {facts.to_step}"


def _descriptors(facts: AlsoGrows) -> str:
    more = facts.now - facts.before
    kinds = ", ".join(f"{count} `{kind}`" for kind, count in facts.by)
    limit = f" (limit {facts.limit})" if facts.limit is not None else ""
    kind = facts.by[0][0] if facts.by else ""
    cure = next((cure for begins, cure in _CLOSE.items() if kind.startswith(begins)), _CLOSE_OTHERS)
    return (
        f"{more} more file {'descriptor' if more == 1 else 'descriptors'} {_over(facts)}, {facts.now} in total{limit}"
        f"{': ' if kinds else ''}{kinds}. Fix: {cure}."
    )


def _shared(facts: AlsoGrows) -> str:
    first, last = facts.segments or (0, 0)
    return (
        f"{bytes_text(facts.now - facts.before)} more shared memory (/dev/shm) {_over(facts)}, "
        f"{plural(last, 'segment')} after {first}: tensors moved there by share_memory_() or a queue of "
        "torch.multiprocessing. Fix: drop tensors that are no longer used; each takes a mapping, and most a descriptor."
    )


def _compiled(facts: AlsoGrows) -> str:
    text = f"torch.compile compiled {plural(facts.now - facts.before, 'time')} {_over(facts)}"
    again = "".join(map(_again, facts.again[:2]))
    limit = ", reached dynamo's limit, and now runs uncompiled" if facts.over_limit else ""
    return (
        f"{text}{again}{limit}. Fix: mark changing sizes as dynamic (dynamic=True, torch._dynamo.mark_dynamic), pass "
        "numbers as tensors, or reuse one compiled function. TORCH_LOGS=recompiles shows each reason."
    )


def _again(one: Recompiled) -> str:
    why = f", because of `{one.reason}`" if one.reason else ""
    return f"; `{one.name}` ({one.at}) recompiled {plural(one.times, 'time')}{why}"


def _pinned(facts: AlsoGrows) -> str:
    return (
        f"{bytes_text(facts.now - facts.before)} more pinned host memory {_over(facts)}, {bytes_text(facts.now)} in "
        "total. Fix: drop batches of a pin_memory loader and other pinned copies once they are on the device."
    )


def _pools(facts: AlsoGrows) -> str:
    return (
        f"{bytes_text(facts.now - facts.before)} more in private pools of the device {_over(facts)}, "
        f"{bytes_text(facts.now)} in total. Fix: share one pool between graphs that do not run at the same time "
        "(torch.cuda.graph(g, pool=...)), and drop CUDAGraph and MemPool objects that are no longer used."
    )


_TEXTS = {
    CountKind.DESCRIPTORS: _descriptors,
    CountKind.SHARED_MEMORY: _shared,
    CountKind.COMPILED: _compiled,
    CountKind.PINNED_MEMORY: _pinned,
    CountKind.PRIVATE_POOLS: _pools,
}


_KINDS = {
    WorkerLineKind.OTHER_COPIES: "copies of other memory of the parent process (each full collection writes to it)",
    WorkerLineKind.OWN: "allocated since the first reading",
    WorkerLineKind.MAPPED: "files and shared memory mapped by no other process",
    WorkerLineKind.BEGAN: "allocated before the first reading",
}


def loader_text(loader: LoaderMemory) -> str:
    """`2 workers of Images (train.py:14 main), forked, started 3 times: at most 93.0 MiB unique memory, at step 8`."""
    started = loader.started
    how = {"fork": "forked"}.get(started.method, f"started with {started.method}")
    at = f" ({started.started_at})" if started.started_at else ""
    times = f", started {loader.lives} times" if loader.lives > 1 else ""
    kept = ", persistent" if started.persistent else ""
    return (
        f"{plural(started.workers, 'worker')} of {started.dataset}{at}, {how}{times}{kept}: "
        f"at most {bytes_text(loader.unique_bytes)} unique memory, at step {loader.step}"
    )


def worker_line_text(line: WorkerLine) -> str:
    """`copies of self.samples of Images`."""
    return f"copies of `{line.holder}`" if line.kind == WorkerLineKind.COPIES else _KINDS[line.kind]


def loader_notes(loader: LoaderMemory) -> tuple[str, ...]:
    """Notes about prefetched batches, memory that is returned, and pinned copies."""
    texts = []
    if loader.sent_bytes:
        bound = f"at most {loader.most_sent} " if loader.most_sent is not None else ""
        texts.append(
            f"{bound}prefetched batches (prefetch_factor x num_workers): at most {bytes_text(loader.sent_bytes)} in "
            "shared memory; bounded, not a leak"
        )
    if loader.gives_back:
        texts.append("workers exit after each epoch and return their memory")
    elif loader.started.persistent:
        texts.append("persistent_workers: workers keep their memory between epochs")
    if loader.pinned_bytes is not None:
        texts.append(
            f"a thread pins each batch in the parent process: at most {bytes_text(loader.pinned_bytes)} pinned"
        )
    return tuple(texts)


def loader_lines(loader: LoaderMemory) -> tuple[str, ...]:
    """All lines and notes of a loader."""
    lines = (f"{bytes_text(line.bytes)}: {worker_line_text(line)}" for line in loader.lines if line.bytes)
    return (*lines, *loader_notes(loader))


def loader_in_short(loader: LoaderMemory) -> str:
    """Workers of a loader and their largest line, as one line."""
    largest = loader.lines[0]
    return f"{loader_text(loader)}; {bytes_text(largest.bytes)} {worker_line_text(largest)}"


GARBAGE = "garbage awaiting gc"
"""Unreachable memory without a finding."""
UNCOLLECTABLE = "uncollectable cycles"


def _alive_by_category(alive: AliveAtEnd) -> Iterator[tuple[str, int]]:
    """Categories with their bytes; unreachable memory is split by whether gc frees it."""
    for name, size in alive.categories.items():
        if name != "leaked":
            yield name, size
            continue
        never = min(alive.uncollectable_bytes, size)
        yield from ((what, part) for what, part in ((GARBAGE, size - never), (UNCOLLECTABLE, never)) if part)


def listed_texts(alive: Iterable[AliveAtEnd], groups: Sequence[Sequence[int]] = ()) -> tuple[str, ...]:
    """Memory alive at the end of the main code, on one rank of each group."""
    listed = list(alive)
    shown = one_of_each((each.rank for each in listed), groups)
    return tuple(
        f"{like_text(each.rank, shown[each.rank])}: "
        + (", ".join(f"{name} {bytes_text(size)}" for name, size in _alive_by_category(each)) or "no tensor memory")
        for each in listed
        if each.rank in shown
    )


OF_RUN: Mapping[type, Callable[[Any], str]] = {
    AllocationFailed: failed_text,
    NoRoomForSnapshot: no_snapshot_text,
    CameNear: near_text,
    CaughtUnseen: caught_unseen_text,
    DeviceFailed: device_failed_text,
    RoomThen: room_then_text,
    OwnCollections: own_collections_text,
    CollectedAtEnd: collected_text,
    YoungSuffices: young_text,
    FullEachStep: each_step_text,
    FreezeSaves: freeze_text,
    CutsInstead: cuts_text,
    LagUseDrag: lag_use_drag_text,
    AlsoGrows: also_grows_text,
    IdleAtPeak: idle_text,
}
"""Type of the facts of a run to the function that renders them as a sentence."""


def run_text(facts: Iterable[RunFacts], groups: Sequence[Sequence[int]] = ()) -> tuple[str, ...]:
    """Sentences about the facts of a run: `Rank 0: out of memory in step 3 at ...`.

    `groups`: ranks with the same behaviour. A fact of several ranks of a group is given for the first of them.
    """
    listed = list(facts)
    ranks: dict[type, set[int]] = {}
    for fact in listed:
        if fact.rank is not None:
            ranks.setdefault(type(fact), set()).add(fact.rank)
    shown = {kind: one_of_each(of_kind, groups) for kind, of_kind in ranks.items()}
    return tuple(
        sentence if fact.rank is None else f"R{like_text(fact.rank, shown[type(fact)][fact.rank])[1:]}: {sentence}"
        for fact in listed
        if fact.rank is None or fact.rank in shown[type(fact)]
        for sentence in (alive_text(fact) if isinstance(fact, AliveAtFailure) else (OF_RUN[type(fact)](fact),))
    )
