"""Sentences about what is no tensor: objects, descriptors, shared memory, compiled code, pinned memory, pools."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.findings.counts.growth import AlsoGrows, Counted
from leakscope.findings.model import Finding
from leakscope.findings.rules.object_growth import Collects, ObjectFacts
from leakscope.record.rows.counts import Recompiled
from leakscope.report.wording.growth import end_text
from leakscope.report.wording.numbers import plural
from leakscope.units import bytes_text

_FEW = 10
"""Items a step from which on they are told without a fraction."""
_CLOSE: Mapping[str, str] = {
    "unix socket": "end what is started anew, a pool, manager or process group, before the next one is",
    "socket": "close what is connected anew: a client, store or server object is kept, or left behind unclosed",
    "pipe": "end and join the processes that are started anew, or set persistent_workers=True for a DataLoader",
    "/dev/shm/": "each is a shared tensor that is still held: let go of it, or keep a clone() of what others have sent",
    "/": "open files in a with block, or close them",
}
"""How the kind of a descriptor begins, to what to do; the first that fits."""
_CLOSE_OTHERS = "close what opens them"


def objects_title(finding: Finding, facts: ObjectFacts) -> str:
    """`history in main() gains 1 str a step, 600.00 KiB a step, and lets none go`."""
    end = end_text(finding)
    pace = f"{bytes_text(finding.bytes_per_step)} a step{end if end.startswith(',') else f',{end}'}"
    return f"{finding.subject} gains {_gained(facts)}, {pace}"


def _gained(facts: ObjectFacts) -> str:
    """`12 str a step`, `attributes (1 str a step)`."""
    rate = facts.items_per_step
    count = f"{rate:,.0f}" if rate >= _FEW or rate == round(rate) else f"{rate:.1f}"
    gained = f"{count} {facts.item} a step"
    if facts.collects == Collects.CHAIN:
        return f"{gained} in a chain"
    return f"attributes ({gained})" if facts.collects == Collects.ATTRIBUTES else gained


def objects_advice(finding: Finding, facts: ObjectFacts) -> str:
    """What lets go of it, by what kind of thing gains it."""
    held = finding.subject
    return {
        Collects.LIST: f"Write what goes into {held} to a file, keep a summary (a count, a mean), or give it a bound "
        "(collections.deque(maxlen=...)).",
        Collects.DICT: f"Each step puts something under a new key into {held}: take out what is done with, write it to "
        "a file, or give it a bound.",
        Collects.SET: f"Each step puts something new in {held}: take out what is done with, or keep a count.",
        Collects.QUEUE: f"More is put into {held} than is taken out: give it a bound (maxlen=...), or write it to a "
        "file.",
        Collects.CHAIN: f"Each {facts.item} is held by the next one: keep a number or a name there instead of the "
        f"object, or end the chain that {held} leads to at some length.",
        Collects.ATTRIBUTES: f"Each step sets attributes of {held} under new names: use names that stay the same, or "
        "delete what is done with.",
    }[facts.collects]


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
