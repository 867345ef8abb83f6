"""Sentences about growth that has a bound or an end, and about what else grows."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.findings.counters import AlsoGrows, Counted
from leakscope.findings.facts import Bounded, CameToRest, EmptiedLater, FollowsInput, HeldByCall, TooLarge
from leakscope.run.rows import Recompiled
from leakscope.units import bytes_text, plural


def would_show(emptied: EmptiedLater) -> str:
    """What run would show whether it is emptied, as a sentence."""
    if emptied.seen:
        return f"The last snapshot, at step {emptied.seen:,}, was taken before that."
    if emptied.steps is not None:
        return f"A run of {emptied.steps:,} steps shows whether it is."
    return f"A run that goes on past {emptied.where} shows whether it is."


def settled_advice(settled_by: Bounded | CameToRest | EmptiedLater | FollowsInput | HeldByCall) -> str:
    """Why a growth is no leak."""
    if isinstance(settled_by, EmptiedLater):
        full = f"; it holds {bytes_text(settled_by.full_bytes)} by then" if settled_by.full_bytes is not None else ""
        sure = "" if settled_by.is_decided else ", under a condition whose outcome the source does not show"
        return f"It is {settled_by.text}{sure}{full}. {would_show(settled_by)}"
    if isinstance(settled_by, Bounded):
        full = f"when it is full it holds {bytes_text(settled_by.full_bytes)}"
        items = f"{settled_by.items} of {settled_by.bound} items are in it"
        return f"No leak as long as its bound is what you want: {items}; {full}."
    if isinstance(settled_by, FollowsInput):
        first, last = settled_by.elements
        return (
            f"It is made anew in each step, and is larger because the model's input was: {first:,} elements at the "
            f"first snapshot, {last:,} at the last."
        )
    if isinstance(settled_by, HeldByCall):
        return f"A local variable of a call of {settled_by.package} that was running: it is released when that returns."
    return (
        f"It grew so until step {settled_by.step}; the memory counted later did not go on with it: it has been emptied "
        "since, or is full."
    )


def too_large_text(known: TooLarge) -> str:
    """Why a bound is no reason to let it grow, as sentences before the advice; of memory that is known, how much."""
    bound = known.bound
    each = {"graphs": "a graph", "modules": "a module", "parameters": "parameters"}.get(known.holds, "")
    of_all = f" of the {bytes_text(known.memory_bytes)} that there are" if known.memory_bytes and not each else ""
    why = f"each item keeps {each}, and " if each else ""
    return (
        f"It has a bound, and that is high: {bound.items} of {bound.bound} items are in it, {why}"
        f"{'' if each else 'and '}when it is full it holds {bytes_text(bound.full_bytes)}{of_all}. "
    )


_CLOSE: Mapping[str, str] = {
    "unix socket": "end what is started anew, a pool, manager or process group, before the next one is",
    "socket": "close what is connected anew: a client, store or server object is kept, or left behind unclosed",
    "pipe": "end and join the processes that are started anew, or set persistent_workers=True for a DataLoader",
    "/dev/shm/": "each is a shared tensor that is still held: let go of it, or keep a clone() of what others have sent",
    "/": "open files in a with block, or close them",
}
"""How the kind of a descriptor begins, to what to do; the first that fits."""
_CLOSE_OTHERS = "close what opens them"


def also_grows_text(facts: AlsoGrows) -> str:
    """`143 file descriptors more from step 3 to 40 (...): what to do`."""
    return _TEXTS[facts.what](facts)


def _over(facts: AlsoGrows) -> str:
    return f"from step {facts.from_step} to {facts.to_step}"


def _descriptors(facts: AlsoGrows) -> str:
    more = facts.now - facts.before
    kinds = ", ".join(f"{count} `{kind}`" for kind, count in facts.by)
    limit = f" of the {facts.limit} that the system allows" if facts.limit is not None else ""
    kind = facts.by[0][0] if facts.by else ""
    cure = next((cure for begins, cure in _CLOSE.items() if kind.startswith(begins)), _CLOSE_OTHERS)
    return (
        f"{plural(more, 'file descriptor')} more {_over(facts)}, {facts.now} now{limit}{': ' if kinds else ''}{kinds}. "
        f"To do: {cure}."
    )


def _shared(facts: AlsoGrows) -> str:
    first, last = facts.segments or (0, 0)
    return (
        f"{bytes_text(facts.now - facts.before)} more shared memory (/dev/shm) {_over(facts)}, "
        f"{plural(last, 'segment')} after {first}: tensors that share_memory_() or a queue of torch.multiprocessing "
        "has moved there. To do: let go of those that are done with; each takes a mapping, and most a descriptor."
    )


def _compiled(facts: AlsoGrows) -> str:
    told = f"torch.compile has compiled {plural(facts.now - facts.before, 'time')} {_over(facts)}"
    again = "".join(map(_again, facts.again[:2]))
    limit = ", until dynamo's limit, and runs uncompiled from then on" if facts.over_limit else ""
    return (
        f"{told}{again}{limit}. To do: mark what changes as dynamic (dynamic=True, torch._dynamo.mark_dynamic), pass "
        "numbers as tensors, or keep one compiled function instead of a new one each time; TORCH_LOGS=recompiles tells "
        "each reason."
    )


def _again(one: Recompiled) -> str:
    why = f", because of `{one.reason}`" if one.reason else ""
    return f"; `{one.name}` ({one.at}) again {plural(one.times, 'time')} in all{why}"


def _pinned(facts: AlsoGrows) -> str:
    return (
        f"{bytes_text(facts.now - facts.before)} more pinned host memory {_over(facts)}, {bytes_text(facts.now)} now. "
        "To do: let go of batches of a pin_memory loader and of pinned copies once they are on the device."
    )


def _pools(facts: AlsoGrows) -> str:
    return (
        f"{bytes_text(facts.now - facts.before)} more in private pools of the device {_over(facts)}, "
        f"{bytes_text(facts.now)} now. To do: give graphs that do not run at the same time one pool "
        "(torch.cuda.graph(g, pool=...)), and let go of CUDAGraph and MemPool objects that are done with."
    )


_TEXTS = {
    Counted.DESCRIPTORS: _descriptors,
    Counted.SHARED_MEMORY: _shared,
    Counted.COMPILED: _compiled,
    Counted.PINNED_MEMORY: _pinned,
    Counted.PRIVATE_POOLS: _pools,
}
