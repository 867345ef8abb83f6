"""Growth that a line of the source will end, and that no snapshot has seen end yet."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.facts import Bounded, EmptiedLater, TooLarge
from leakscope.findings.grouping.bounds import MOST_OF_MEMORY
from leakscope.findings.kinds import FreedBy, RuleName, Severity
from leakscope.findings.memory.worker_growth import WorkerGrowthFacts
from leakscope.findings.model import Finding
from leakscope.findings.source.emptying import Emptying, emptied_at, first_of, without_reached
from leakscope.findings.source.lines import on_trace
from leakscope.findings.source.sources import Sources
from leakscope.findings.source.stores import Store
from leakscope.findings.source.uses import Uses
from leakscope.findings.thresholds import memory_there
from leakscope.graph.model import ObjectKind
from leakscope.record.kinds import MadeBy
from leakscope.record.model import Run

_RULES = (RuleName.STEP_GROWTH, RuleName.OBJECT_GROWTH, RuleName.WORKER_GROWTH, RuleName.VIEW_HOLD)
"""Rules about what a container gains; what the others report is unintended, however long it stays."""
_NEVER_FILLING = (ObjectKind.NN_MODULE, ObjectKind.PARAMETER, ObjectKind.OPTIMIZER, ObjectKind.EXCEPTION)
"""Kinds of objects of which one a step is a leak though they are let go of later: each keeps a model, or frames."""
_ITEMS = re.compile(r", ([\d,]+) items?\b")


def while_it_fills(finding: Finding, found: Sequence[Sequence[Store]], run: Run, sources: Sources) -> Finding:
    """The finding as a note where the source empties all that it names, and no snapshot can have seen that yet.

    `found` are the adding lines of each reference to cut.
    """
    if finding.settled_by is not None or not _may_fill(finding, found, run, sources):
        return finding
    assert finding.cut is not None
    emptied = None
    for reference, stores in zip(finding.cut.references, found, strict=True):
        items, gained = _items(finding)
        lines = emptied_at(finding, reference, stores, sources)
        left = without_reached(lines, items, gained, _span(finding))
        if not left or len(left) < len(lines):
            return finding  # a line that has taken effect, and it grew all the same
        emptied = first_of([one for one in (emptied, first_of(left)) if one is not None])
    return finding if emptied is None else _settled(finding, emptied, run)


def _may_fill(finding: Finding, found: Sequence[Sequence[Store]], run: Run, sources: Sources) -> bool:
    if finding.cut is None or finding.freed_by != FreedBy.PROGRAM or finding.rule not in _RULES:
        return False
    if run.made_by not in (MadeBy.COMMAND, MadeBy.PROFILER) or not all(found):
        return False
    place = max((r.trace for r in finding.cut.references if r.trace is not None), default=0)
    below = {hop.kind for hop in finding.trace[place + 1 :]}
    if not below.isdisjoint(_NEVER_FILLING):
        return False
    graphs = finding.keeps_graphs or ObjectKind.GRAD_NODE in below
    return not graphs or all(Uses(store, sources).differentiated() for stores in found for store in stores)


def _items(finding: Finding) -> tuple[int, float]:
    """(items, items a step) of the container that gains, -1 where they are not known."""
    assert finding.cut is not None
    place, trace = on_trace(finding, finding.cut.references[0])
    label = next((hop.object for hop in trace[place or 0 :] if hop.kind == ObjectKind.CONTAINER), "")
    told = _ITEMS.search(label)
    if told is None:
        return -1, 0.0
    items = int(told[1].replace(",", ""))
    if isinstance(finding.facts, WorkerGrowthFacts):
        return items, finding.facts.items_per_batch / max(finding.facts.workers, 1)
    return items, items * finding.bytes_per_step / max(finding.retained_bytes, 1)


def _span(finding: Finding) -> int:
    """Steps between the first and the last snapshot, on the rank where those are fewest."""
    seen = [[s.step for s in finding.sightings if s.rank == rank] for rank in finding.ranks]
    return min((max(steps) - min(steps) for steps in seen), default=0)


def _settled(finding: Finding, emptied: Emptying, run: Run) -> Finding:
    items, gained = _items(finding)
    each = finding.retained_bytes / items if items > 0 else 0.0
    last = max((s.step for s in finding.sightings), default=0)
    steps = full = None
    if emptied.bound is not None and items >= 0:
        full = round(each * max(emptied.bound, items))
        steps = last + math.ceil(max(emptied.bound - items, 0) / gained) + 1 if gained > 0 else None
    elif emptied.every is not None:
        steps = max(last, run.warmup + 2 * emptied.every)
        full = round(finding.bytes_per_step * emptied.every)
    if emptied.bound is not None and full is not None and _is_too_large(finding, full, run):
        there = memory_there(run.ranks[0], False)
        return replace(finding, too_large=TooLarge(Bounded(items, emptied.bound, full), "", there))
    if finding.severity == Severity.NOTE and not emptied.is_decided:
        return finding
    ran = max((len(rank.steps) for rank in run.ranks if rank.number in finding.ranks), default=0)
    settled = EmptiedLater(
        where=emptied.where,
        items=items,
        bound=emptied.bound,
        every=emptied.every,
        is_decided=emptied.is_decided,
        steps=steps,
        seen=last if steps is not None and ran >= steps else 0,
        full_bytes=full,
    )
    return replace(finding, severity=Severity.NOTE, settled_by=settled)


def _is_too_large(finding: Finding, full: int, run: Run) -> bool:
    """Whether the bound is no reason to let it grow, as for a bound that the container has itself."""
    rank = next((rank for rank in run.ranks if rank.number in finding.ranks), None)
    there = (
        memory_there(rank, 2 * finding.host_bytes < finding.retained_bytes and run.device != "cpu") if rank else None
    )
    return there is not None and full > MOST_OF_MEMORY * there
