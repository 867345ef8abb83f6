"""Sentences about bounded growth and about growth other than tensor memory."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.findings.counters import AlsoGrows, CountKind
from leakscope.findings.facts import Bounded, EmptiedLater, FollowsInput, HeldByCall, Plateaued, TooLarge
from leakscope.run.rows import Recompiled
from leakscope.units import bytes_text, plural


def would_show(emptied: EmptiedLater) -> str:
    """The run that would show whether the container is emptied, as a sentence."""
    if emptied.seen:
        return f"The last snapshot, at step {emptied.seen:,}, was taken before that."
    if emptied.steps is not None:
        return f"A run of {emptied.steps:,} steps shows whether this happens."
    return f"A run that continues past {emptied.where} shows whether this happens."


def settled_advice(settled_by: Bounded | Plateaued | EmptiedLater | FollowsInput | HeldByCall) -> str:
    """Why growth is not a leak."""
    if isinstance(settled_by, EmptiedLater):
        full = f"; it then holds {bytes_text(settled_by.full_bytes)}" if settled_by.full_bytes is not None else ""
        sure = "" if settled_by.is_decided else ", under a condition that static analysis cannot decide"
        return f"The container is {settled_by.text}{sure}{full}. {would_show(settled_by)}"
    if isinstance(settled_by, Bounded):
        full = f"{bytes_text(settled_by.full_bytes)} when full"
        items = f"{settled_by.items} of {settled_by.bound} items"
        return f"Not a leak if the bound is intended: {items}, {full}."
    if isinstance(settled_by, FollowsInput):
        first, last = settled_by.elements
        return (
            f"Replaced in each step, and larger because the model input is larger: {first:,} elements at the first "
            f"snapshot, {last:,} at the last."
        )
    if isinstance(settled_by, HeldByCall):
        return f"A local variable of a running call of {settled_by.package}: it is released when the call returns."
    return (
        f"It grew until step {settled_by.step}. Allocated memory did not grow afterwards, so it was emptied or is full."
    )


def too_large_text(known: TooLarge) -> str:
    """Why a bound is too high, as sentences before the advice, with the share of memory if known."""
    bound = known.bound
    each = {"graphs": "an autograd graph", "modules": "a module", "parameters": "parameters"}.get(known.holds, "")
    of_all = f" of {bytes_text(known.memory_bytes)} memory" if known.memory_bytes and not each else ""
    why = f"each item keeps {each}, " if each else ""
    return (
        f"Its bound is too high: {bound.items} of {bound.bound} items, {why}{bytes_text(bound.full_bytes)}{of_all} "
        "when full. "
    )


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
    told = f"torch.compile compiled {plural(facts.now - facts.before, 'time')} {_over(facts)}"
    again = "".join(map(_again, facts.again[:2]))
    limit = ", reached dynamo's limit, and now runs uncompiled" if facts.over_limit else ""
    return (
        f"{told}{again}{limit}. Fix: mark changing sizes as dynamic (dynamic=True, torch._dynamo.mark_dynamic), pass "
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
