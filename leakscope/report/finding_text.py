"""Sentences about one finding: title, size, reference path, cut, fix, what frees it, advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from leakscope.findings.comm import buffers_text
from leakscope.findings.facts import (
    Bounded,
    CommBuffers,
    EmptiedLater,
    FollowsInput,
    FreedBy,
    HeldByCall,
    HopStatus,
    OnlyTensorsFreed,
    Plateaued,
    Severity,
    TooLarge,
)
from leakscope.findings.known_leaks import package_advice_for
from leakscope.findings.model import Cut, CutReference, Finding, Hop, HopReason
from leakscope.findings.rules import rule_named
from leakscope.report.rendering import one_line
from leakscope.run.model import Run
from leakscope.units import bytes_text, listed_numbers, plural

ADDED_AT = "Added at (from static analysis):"
"""Label of lines found by static analysis, which were not observed to run."""
_REASONS: Mapping[HopReason, str] = {
    HopReason.FUNCTION_RUNS: "the function is running",
    HopReason.MODULE: "module namespace, alive until exit",
    HopReason.THREAD_RUNS: "the thread is running",
    HopReason.NATIVE: "referenced by a running call or native code",
    HopReason.INTERPRETER: "referenced by the interpreter",
    HopReason.ABOVE_CUT: "on the path from the GC root",
    HopReason.ABOVE_LIBRARY: "on the path from the GC root",
    HopReason.ONLY_CUT: "reachable only through the cut",
    HopReason.ONLY_CUTS: "reachable only through the cuts",
    HopReason.MORE_HOLDERS: "also referenced from elsewhere",
    HopReason.CYCLE_ITSELF: "unreachable: kept alive by the cycle",
    HopReason.HELD_BY_CYCLE: "referenced by the cycle",
    HopReason.STILL_NEEDED: "still needed",
    HopReason.NOT_USED_AGAIN: "not used again before it is released",
    HopReason.LEFT_OPEN: "context opened and never exited",
    HopReason.KEPT_BY_LIBRARY: "retained by the library",
}
"""Reason for the status of an object on a reference path."""


_RANKS_NAMED = 3
"""Ranks that the head of a finding lists; heuristic: with more, their number is shorter."""
_REST_SHARE = 0.05
"""Share of the retained memory from which a remainder after the cut is reported; heuristic: less is rounding."""


def held_text(finding: Finding, when: str = "") -> str:
    """`960.00 KiB retained in 5 storages at the last snapshot, growing 192.00 KiB per step`.

    On an accelerator the part in host memory is added.
    """
    if holds_nothing(finding):
        return f"no memory retained, seen {plural(finding.count, 'time')}" if finding.count else "no memory retained"
    storages = f" in {plural(finding.count, 'storage')}" if finding.count else ""
    rate = f"{bytes_text(finding.bytes_per_step)}"
    growth = f", growing {rate} per step" if finding.bytes_per_step else ""
    if finding.freed_late:
        growth = f", {rate} allocated per step and freed late"
    host = _host_text(finding)
    if finding.before_bytes:
        before = f"{bytes_text(finding.before_bytes)} retained before"
        return f"{bytes_text(finding.retained_bytes)} added by the calls{host}{growth} ({before})"
    return f"{bytes_text(finding.retained_bytes)} retained{storages} {when or when_text(finding)}{host}{growth}"


def _host_text(finding: Finding) -> str:
    """`, 64.00 MiB of it in host memory`: the part outside the accelerator; "" if there is none."""
    part = "" if finding.host_bytes >= finding.retained_bytes else f"{bytes_text(finding.host_bytes)} of it "
    return f", {part}in host memory" if finding.host_bytes else ""


def when_text(finding: Finding) -> str:
    """The heap snapshot that the bytes are of: the last one, unless the program collected just before it."""
    if rule_named(finding.rule).at_peak:
        return "at the step's peak"
    last: dict[int, int] = {}
    most: dict[int, int] = {}
    for seen in sorted(finding.sightings, key=lambda s: s.step):
        last[seen.rank] = seen.bytes
        most[seen.rank] = max(most.get(seen.rank, 0), seen.bytes)
    if not sum(last.values()) < finding.retained_bytes <= sum(most.values()):
        return "at the last snapshot"
    if finding.retained_bytes < sum(most.values()):
        return "at the last or largest snapshot of each rank"
    return "at the largest snapshot" if len(most) == 1 else "at the largest snapshot of each rank"


def holds_nothing(finding: Finding) -> bool:
    """Whether the finding is about an event and retains no memory."""
    return not finding.retained_bytes and not finding.trace and finding.cut is None


def seen_text(finding: Finding) -> str:
    """`rank 0, 1; steps 3 to 12`."""
    if not finding.sightings:
        return "in no judged snapshot"
    many = "ranks" if len(finding.ranks) > 1 else "rank"
    first, last = finding.first_step, finding.last_step
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{many} {listed_numbers(finding.ranks)}; {steps}"


def freed_text(finding: Finding) -> str:
    """What frees the memory, as a phrase that follows `freed by`."""
    if finding.freed_by == FreedBy.GC:
        if finding.collections:
            return f"the garbage collector ({plural(finding.collections, 'full collection')})"
        return "the garbage collector"
    if finding.freed_by == FreedBy.NEVER:
        return "nothing: it is kept alive by C++ references that gc cannot see"
    if not finding.trace and rule_named(finding.rule).at_peak:
        return "your code, when it drops all references"
    if finding.cut is not None and finding.cut.after_gc:
        return "your code, when it drops the reference, and the next gc"
    if not finding.trace or rule_named(finding.rule).is_native:
        return "native code; whether gc can free it is unknown"
    return "your code, when it drops the reference; gc cannot free it"


def proved_text(finding: Finding) -> str:
    """`72.00 MiB freed when a forked copy made the cut`, or why it was not measured; "" if unknown."""
    cut = finding.cut
    if cut is None:
        return ""
    if cut.proved_bytes is not None:
        return f"{bytes_text(cut.proved_bytes)} freed when a forked copy of the process made the cut"
    if isinstance(cut.unproved, OnlyTensorsFreed):
        freed = bytes_text(cut.unproved.bytes)
        return f"not measured: {freed} of tensors freed; the memory of autograd nodes is only counted"
    return f"not measured: {cut.unproved}" if cut.unproved else ""


def measured_text(finding: Finding) -> str:
    """`measured 72.00 of 72.00 MiB`: freed and retained bytes if the cut was tried; else as `proved_text`."""
    cut = finding.cut
    if cut is None or cut.proved_bytes is None:
        return proved_text(finding)
    return f"measured {_part_text(cut.proved_bytes, max(finding.retained_bytes, cut.proved_bytes))}"


def _part_text(part: int, whole: int) -> str:
    """`72.00 of 144.00 MiB`."""
    number, _, unit = bytes_text(part).rpartition(" ")
    of = bytes_text(whole)
    return f"{number if of.endswith(f' {unit}') else bytes_text(part)} of {of}"


def cycle_text(finding: Finding) -> str:
    """`function extract, closure extract -> cell, contents -> function extract`; "" without a cycle, or if the trace
    already contains it.
    """
    if not finding.cycle or any(closes_cycle(finding, index) for index in range(len(finding.trace))):
        return ""
    hops = " -> ".join(f"{one_line(r.holder)}, {one_line(r.name)}" for r in finding.cycle)
    return f"{hops} -> {one_line(finding.cycle[-1].held)}"


def status_word(finding: Finding, hop: Hop) -> str:
    """Status of an object on the trace: `held` in notes, and `idle` for memory unused at the peak."""
    if hop.status != HopStatus.LEAKED:
        return hop.status
    if rule_named(finding.rule).at_peak:
        return "idle"
    return "held" if finding.severity == Severity.NOTE and finding.freed_by == FreedBy.PROGRAM else "leaked"


def cut_name(cut: Cut) -> str:
    """The reference to cut as a Python expression, if known."""
    return one_line(cut.written or cut.reference)


def also_text(cut: Cut) -> str:
    """` together with log.last in main()`: further references to cut; "" if one is enough."""
    return f" together with {' and '.join(f'`{one_line(reference)}`' for reference in cut.also)}" if cut.also else ""


def no_cut_text(finding: Finding) -> str:
    """Reason why no single cut is enough."""
    return finding.facts.why_no_cut() or rule_named(finding.rule).why_no_cut


def figures(finding: Finding) -> tuple[tuple[str, str], ...]:
    """The figures in the head of a finding, as (figure, label).

    (`72.00 MiB`, `retained at the last snapshot, in 768 storages`), (`6.00 MiB`, `growth per step`), (`frees
    72.00 MiB`, `when cut, measured: 72.00 of 72.00 MiB`), ...
    """
    ranks, steps = seen_text(finding).partition("; ")[::2]
    seen: tuple[tuple[str, str], ...] = ((ranks, f"seen at {steps}"),) if finding.ranks else ()
    if len(finding.ranks) > _RANKS_NAMED:
        seen = ((plural(len(finding.ranks), "rank"), f"{listed_numbers(finding.ranks)}; seen at {steps}"),)
    if holds_nothing(finding):
        return ((plural(finding.count, "time"), "seen, no memory retained"), *seen)
    storages = f", in {plural(finding.count, 'storage')}" if finding.count else ""
    when = "added by the calls" if finding.before_bytes else f"retained {when_text(finding)}"
    held = (bytes_text(finding.retained_bytes), f"{when}{storages}{_host_text(finding)}")
    how = "allocated per step, freed late" if finding.freed_late else "growth per step"
    growth = ((bytes_text(finding.bytes_per_step), how),) if finding.bytes_per_step else ()
    return (held, *growth, *_frees(finding), *seen)


def _frees(finding: Finding) -> tuple[tuple[str, str], ...]:
    """Bytes that the cut frees, measured if it was tried."""
    cut = finding.cut
    if cut is None or cut.reported_bytes is None:
        return ()
    freed = bytes_text(cut.reported_bytes)
    if cut.proved_bytes is not None:
        measured = _part_text(cut.reported_bytes, max(finding.retained_bytes, cut.proved_bytes))
        return ((f"frees {freed}", f"when cut, measured: {measured}"),)
    when = "when cut, at the next gc" if cut.after_gc else "when cut"
    part = cut.unproved
    how = f"measured: {bytes_text(part.bytes)} of tensors" if isinstance(part, OnlyTensorsFreed) else "not measured"
    rest = rest_text(finding)
    return ((f"frees {freed}", f"{when}, {how}{f'; {rest}' if rest else ''}"),)


def line_to_edit(finding: Finding) -> str:
    """The line to edit, or "".

    It is that of the function in the cycle or with the cache, else the retention site, else the line of the referrer.
    """
    if (line := finding.facts.line_to_edit(finding)) is not None:
        return line
    references = finding.cut.references if finding.cut is not None else ()
    if references and references[0].where and _is_of_cache(finding, references[0]):
        return references[0].where
    added = [place for reference in references for place in reference.added_at]
    return next((place for place in (*added, *(reference.where for reference in references)) if place), "")


def _is_of_cache(finding: Finding, reference: CutReference) -> bool:
    """Whether the referrer is the wrapper of `functools.lru_cache`, whose line is that of the decorator."""
    place = reference.trace
    holders = finding.trace[place : place + 1] if place is not None else ()
    return any(hop.type == "functools._lru_cache_wrapper" for hop in holders)


def would_be_freed(finding: Finding) -> str:
    """`frees 72.00 MiB on 2 ranks`, summed over the ranks of the finding; "" without a cut."""
    if finding.cut is None:
        return ""
    together = f" on {len(finding.ranks)} ranks" if len(finding.ranks) > 1 else ""
    rest = rest_text(finding)
    return f"{cut_frees_text(finding.cut)}{together}{f' ({rest})' if rest else ''}"


def rest_text(finding: Finding) -> str:
    """`another cycle retains the other 3.01 MiB`: garbage that the cut leaves; "" if that is little or unknown.

    All instances of the reference are cut in the graph, so what still awaits gc is in another cycle.
    """
    freed = finding.cut.reported_bytes if finding.cut is not None else None
    if freed is None or finding.freed_by != FreedBy.GC or len(finding.ranks) > 1:
        return ""
    rest = finding.retained_bytes - freed
    return f"another cycle retains the other {bytes_text(rest)}" if rest >= _REST_SHARE * finding.retained_bytes else ""


def cut_frees_text(cut: Cut) -> str:
    """`frees 72.00 MiB`, with the time if it is not freed at once."""
    if cut.reported_bytes is None:
        return "the freed bytes are unknown, as this torch version does not expose all C++ references"
    return f"frees {bytes_text(cut.reported_bytes)}{' at the next gc' if cut.after_gc else ''}"


def reason_text(hop: Hop) -> str:
    """Reason for the status of an object on the trace, or ""."""
    return _REASONS[hop.reason] if isinstance(hop.reason, HopReason) else hop.reason


def new_reasons(finding: Finding) -> tuple[str, ...]:
    """Reason of each hop, or "" if it repeats that of the previous one."""
    hops = finding.trace
    same = [False, *((a.status, a.reason) == (b.status, b.reason) for a, b in pairwise(hops))]
    return tuple("" if is_same else reason_text(hop) for hop, is_same in zip(hops, same, strict=False))


def suspects(finding: Finding) -> frozenset[int]:
    """Hops whose reference may be the one at fault: from the last object expected to live to the first leaked one.

    Where no such reference is on the trace (a cycle is leaked all the way round) it is the one to cut.
    """
    between = frozenset(
        index
        for index, (hop, after) in enumerate(pairwise(finding.trace))
        if hop.reference and hop.status != HopStatus.LEAKED and after.status != HopStatus.EXPECTED
    )
    cut = finding.cut_position
    if between or cut is None:
        return between
    return frozenset({cut})


NO_TRACE = "No reference path from a Python or autograd root."
"""Shown instead of an unknown trace."""


def closes_cycle(finding: Finding, index: int) -> bool:
    """Whether the trace returns to its start at this hop, closing a cycle."""
    return index < len(finding.trace) - 1 and not finding.trace[index].reference


def further_paths(finding: Finding) -> Iterator[tuple[int, CutReference]]:
    """The references to cut that have a path of their own beside the trace, each with the number of its first hop: the
    hops of those paths are numbered on from the trace's.
    """
    number = len(finding.trace)
    for reference in finding.cut.references if finding.cut is not None else ():
        if reference.path:
            yield number, reference
            number += len(reference.path)


def holds_by(hop: Hop, reference: CutReference) -> bool:
    """Whether a hop holds the next one through a reference to cut."""
    return not set(hop.references).isdisjoint(reference.indexes)


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


def comm_buffers_text(buffers: CommBuffers) -> str:
    """One sentence about communication buffers that the cut reference retains."""
    dead = "their" if buffers.dead == buffers.count else f"{buffers.dead} of the"
    weak = f"; {dead} Python tensors are dead, but their storages are alive" if buffers.dead else ""
    return (
        f" It includes {plural(buffers.count, 'communication buffer')} ({bytes_text(buffers.bytes)}: "
        f"{buffers_text(buffers)}{weak}), retained by this reference and not by a pending operation."
    )


def title(finding: Finding) -> str:
    """Describe what leaks in one line.

    Args:
        finding: A finding of `judge`, `check` or `watch`.

    Returns:
        The title of the finding in every report.

    >>> import torch, leakscope
    >>> kept = []
    >>> found = leakscope.check(lambda: kept.append(torch.ones(1 << 20)), repeats=3)
    >>> "kept" in leakscope.title(found.findings[0])
    True

    """
    return finding.facts.title_for(finding)


def advice(finding: Finding) -> str:
    """Describe how to fix a finding.

    Args:
        finding: A finding of `judge`, `check` or `watch`.

    Returns:
        One or more sentences.

    >>> import torch, leakscope
    >>> kept = []
    >>> found = leakscope.check(lambda: kept.append(torch.ones(1 << 20)), repeats=3)
    >>> "kept" in leakscope.advice(found.findings[0])
    True

    """
    own = _advice(finding) + "".join(f" This also frees {bytes_text(b.bytes)} of {b.noun}s." for b in finding.beside)
    if finding.too_large is not None:
        own = too_large_text(finding.too_large) + own
    package_advice = package_advice_for(finding)
    if package_advice is not None:
        own = f"{package_advice.what[:1].upper()}{package_advice.what[1:]}. {package_advice.cure}"
    known = finding.upstream
    if known is not None:
        own = f"Known upstream ({known.issue}): {known.what}. {known.cure or own}".rstrip()
    return finding.facts.preface() + own


def avoidable_text(run: Run, finding: Finding) -> str:
    """A finding of avoidable memory in one or two lines: bytes, referrer and advice."""
    short = finding.facts.short_advice()
    more = f". {advice(finding)}" if short is None else f". {short}" if short else ""
    if len(run.ranks) == 1:
        return title(finding) + more
    together = f", {bytes_text(finding.retained_bytes)} in total" if len(finding.ranks) > 1 else ""
    ranks = f"{'rank' if len(finding.ranks) == 1 else 'ranks'} {listed_numbers(finding.ranks)}"
    return f"{ranks}{together}: {title(finding)}{more}"


def _advice(finding: Finding) -> str:
    """Advice of the finding itself."""
    if finding.settled_by is not None:
        return settled_advice(finding.settled_by)
    if finding.keeps_graphs and not finding.settled:
        return finding.facts.advice_with_graphs(finding)
    buffers = comm_buffers_text(finding.comm_buffers) if finding.comm_buffers else ""
    return finding.facts.advice_for(finding) + buffers
