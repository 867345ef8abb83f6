"""Which lines of the user's source put something where a cut is, which edit would mend it, and what does without?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.facts import Facts
from leakscope.findings.model import CutReference, Finding, Hop, Unjudged
from leakscope.findings.naming.place import file_at
from leakscope.findings.ownership.known_leaks import TYPES
from leakscope.findings.pipeline.see import see
from leakscope.findings.rules.frame_hold import FrameFacts, Keeper
from leakscope.findings.rules.retained_graph import GraphFacts
from leakscope.findings.rules.rule import because
from leakscope.findings.source.edits import suggested
from leakscope.findings.source.filling import while_it_fills
from leakscope.findings.source.lines import stores_for
from leakscope.findings.source.sources import Sources
from leakscope.findings.source.stores import Store
from leakscope.findings.source.uses import Uses
from leakscope.findings.source.written import as_in_source
from leakscope.findings.stages.case import Case, RankCase
from leakscope.findings.why import UnjudgedReason
from leakscope.graph.model import ObjectKind
from leakscope.record.kinds import Direction
from leakscope.record.model import Run
from leakscope.record.read.operations import column

_WRITTEN = (ObjectKind.FUNCTION, ObjectKind.FRAME, ObjectKind.GENERATOR, ObjectKind.CLASS)
"""Kinds of what is written on a line of its own, and told with that of the reference by which it holds."""


def find_lines(case: Case) -> Case:
    """Lines of the kept source that add to what the cuts name, and the edit that would mend it."""
    sources, found, unjudged = Sources(case.run.sources), [], []
    for finding in case.findings:
        try:
            found.append(with_lines(finding, sources, case.run))
        except Exception as error:  # noqa: BLE001 - source of a form that was not foreseen must not cost the verdict
            found.append(finding)
            why = because(UnjudgedReason.NO_SOURCE, error)
            unjudged.append(Unjudged(finding.rule, min(finding.ranks, default=0), why))
    return replace(
        case,
        findings=tuple(replace(finding, trace=_with_one_line_each(finding.trace)) for finding in found),
        unjudged=(*case.unjudged, *unjudged),
    )


def point_to_backward(case: RankCase) -> RankCase:
    """What of leakscope's own backward does without a finding, where the rank is a stage of a pipeline."""
    of_torch = any(name.startswith(TYPES) for look in case.looks[-1:] for name in look.heap.strings)
    directions = () if of_torch or not case.findings else column(case.rank.operations, "direction")
    by_hand = any(direction in tuple(Direction) for direction in directions)
    return replace(case, findings=tuple(replace(finding, see=see(finding, by_hand)) for finding in case.findings))


def _with_one_line_each(trace: Sequence[Hop]) -> tuple[Hop, ...]:
    """A trace on which no function or class has two lines, and what closes a cycle has that of its first place."""
    first: dict[int, str] = {}
    for hop in trace:
        if hop.index is not None and hop.where:
            first.setdefault(hop.index, hop.where)
    return tuple(
        replace(hop, where=first.get(hop.index, hop.where))
        if hop.index is not None and (hop.kind in _WRITTEN or not hop.reference)
        else hop
        for hop in trace
    )


def with_lines(finding: Finding, sources: Sources, run: Run | None = None) -> Finding:
    """The finding with those lines at each reference of its cut; as it is where the sources show none.

    A note where the source empties what gains, as far as the `run` has not seen that.
    """
    if finding.cut is None:
        return finding
    found = [stores_for(finding, reference, sources) for reference in finding.cut.references]
    told = replace(finding, facts=_in_source(finding.facts, found, sources))
    told = told if run is None else while_it_fills(told, found, run, sources)
    suggestion = suggested(finding, found, sources) if told.settled_by is None else None
    references = tuple(
        _with_added(
            reference, tuple(dict.fromkeys(store.where for store in stores)), _puts_tensor(finding, reference, stores)
        )
        for reference, stores in zip(finding.cut.references, found, strict=True)
    )
    references = tuple(
        as_in_source(finding, reference, stores) for reference, stores in zip(references, found, strict=True)
    )
    trace = tuple(_at_its_line(hop, finding.cut.references, references) for hop in finding.trace)
    is_cut = finding.subject == finding.cut.written
    return replace(
        told,
        trace=trace,
        cut=replace(finding.cut, references=references),
        subject=references[0].written if is_cut else finding.subject,
        suggestion=suggestion,
    )


def _in_source(facts: Facts, found: Sequence[Sequence[Store]], sources: Sources) -> Facts:
    """What a rule knows, corrected by the source: whether a graph is needed, and whether an exception is more than its
    text.
    """
    if isinstance(facts, GraphFacts) and not facts.of_gradient:
        needed = any(Uses(store, sources).differentiated() for stores in found for store in stores)
        return replace(facts, is_differentiated=needed)
    if isinstance(facts, FrameFacts) and facts.keeper == Keeper.EXCEPTION:
        stored = [store for stores in found for store in stores]
        return replace(facts, is_text=bool(stored) and all(Uses(store, sources).as_text() for store in stored))
    return facts


def _at_its_line(hop: Hop, before: Sequence[CutReference], after: Sequence[CutReference]) -> Hop:
    """A hop; that of a module's namespace, which shows the line of its reference, with the line told for the cut."""
    if hop.kind != ObjectKind.NAMESPACE:
        return hop
    lines = {old.where: new.where for old, new in zip(before, after, strict=True)}
    return replace(hop, where=lines.get(hop.where, hop.where))


def _puts_tensor(finding: Finding, reference: CutReference, stores: Sequence[Store]) -> bool:
    """Whether the reference holds a tensor itself: the lines, not the last one of its name, put the tensor there.

    Those of a closure on a cycle are where its function is written and stored.
    """
    if reference.trace is None or reference.trace + 1 >= len(finding.trace):
        return False
    held = finding.trace[reference.trace + 1].kind
    return held in (ObjectKind.TENSOR, ObjectKind.PARAMETER) and all(store.name != "def" for store in stores)


def _with_added(reference: CutReference, added_at: tuple[str, ...], puts_tensor: bool) -> CutReference:
    """The reference with the lines that add to it; the first of them its own, where they put a tensor there and it had
    another line of that file.
    """
    files = {file_at(place) for place in added_at}
    moves = puts_tensor and reference.where not in added_at and file_at(reference.where) in files
    return replace(reference, added_at=added_at, where=added_at[0] if moves else reference.where)
