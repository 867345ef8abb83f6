"""The lines of the source that add to what a cut names, and the edit that fixes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.facts import (
    EmptiedLater,
    Facts,
    Severity,
    TooLarge,
)
from leakscope.findings.model import (
    CutReference,
    Finding,
    Hop,
    Unjudged,
    UnjudgedReason,
)
from leakscope.findings.naming import file_at
from leakscope.findings.rules.frame_hold import FrameFacts, LocalsHolder
from leakscope.findings.rules.retained_graph import GraphFacts
from leakscope.findings.rules.rule import because
from leakscope.findings.source.bounds import emptied_later
from leakscope.findings.source.edits import suggested
from leakscope.findings.source.index import Sources
from leakscope.findings.source.stores import Store, as_in_source, stores_for
from leakscope.findings.source.uses import Uses
from leakscope.graph.model import ObjectKind
from leakscope.run.model import Run

_WRITTEN = (ObjectKind.FUNCTION, ObjectKind.FRAME, ObjectKind.GENERATOR, ObjectKind.CLASS)
"""Kinds of objects defined at their own line and reported with that of the reference from them."""


def find_lines(findings: Sequence[Finding], run: Run) -> tuple[list[Finding], list[Unjudged]]:
    """The findings with the lines of the kept source that add to what their cuts name, and the edit that fixes them.

    Also returns those whose source could not be read.
    """
    sources, found, unjudged = Sources(run.sources), [], []
    for finding in findings:
        try:
            found.append(with_lines(finding, sources, run))
        except Exception as error:  # noqa: BLE001 - source of a form that was not foreseen must not cost the verdict
            found.append(finding)
            why = because(UnjudgedReason.NO_SOURCE, error)
            unjudged.append(Unjudged(finding.rule, min(finding.ranks, default=0), why))
    return found, unjudged


def _with_one_line_each(trace: Sequence[Hop]) -> tuple[Hop, ...]:
    """A trace in which each function or class has one line, and what closes a cycle has that of its first place."""
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
    """The finding with lines at each reference of its cut; without a cut, or if the sources show none, only the lines
    of its trace change.

    It becomes a note if the source empties the container, unless the `run` shows otherwise.
    """
    if finding.cut is None:
        return replace(finding, trace=_with_one_line_each(finding.trace))
    found = [stores_for(finding, reference, sources) for reference in finding.cut.references]
    emptied = None if run is None else emptied_later(finding, found, run, sources)
    settled_by = emptied if isinstance(emptied, EmptiedLater) else finding.settled_by
    suggestion = suggested(finding, found, sources) if settled_by is None else None
    references = tuple(
        _with_added(
            reference, tuple(dict.fromkeys(store.where for store in stores)), _puts_tensor(finding, reference, stores)
        )
        for reference, stores in zip(finding.cut.references, found, strict=True)
    )
    references = tuple(
        as_in_source(finding, reference, stores) for reference, stores in zip(references, found, strict=True)
    )
    return replace(
        finding,
        facts=_in_source(finding.facts, found, sources),
        severity=Severity.NOTE if isinstance(emptied, EmptiedLater) else finding.severity,
        settled_by=settled_by,
        too_large=emptied if isinstance(emptied, TooLarge) else finding.too_large,
        trace=_with_one_line_each([_at_its_line(hop, finding.cut.references, references) for hop in finding.trace]),
        cut=replace(finding.cut, references=references),
        subject=references[0].written if finding.subject == finding.cut.written else finding.subject,
        suggestion=suggestion,
    )


def _in_source(facts: Facts, found: Sequence[Sequence[Store]], sources: Sources) -> Facts:
    """The facts of a rule, corrected by the source: whether a graph is needed, and whether an exception is used beyond
    its text.
    """
    if isinstance(facts, GraphFacts) and not facts.of_gradient:
        needed = any(Uses(store, sources).differentiated() for stores in found for store in stores)
        return replace(facts, is_differentiated=needed)
    if isinstance(facts, FrameFacts) and facts.keeper == LocalsHolder.EXCEPTION:
        stored = [store for stores in found for store in stores]
        return replace(facts, is_text=bool(stored) and all(Uses(store, sources).as_text() for store in stored))
    return facts


def _at_its_line(hop: Hop, before: Sequence[CutReference], after: Sequence[CutReference]) -> Hop:
    """A hop; for a module's namespace, which shows the line of its reference, with the line of the cut."""
    if hop.kind != ObjectKind.NAMESPACE:
        return hop
    lines = {old.where: new.where for old, new in zip(before, after, strict=True)}
    return replace(hop, where=lines.get(hop.where, hop.where))


def _puts_tensor(finding: Finding, reference: CutReference, stores: Sequence[Store]) -> bool:
    """Whether the reference holds a tensor itself: the lines, not the last one of its name, put the tensor there.

    Those of a closure on a cycle are where its function is defined and stored.
    """
    if reference.trace is None or reference.trace + 1 >= len(finding.trace):
        return False
    held = finding.trace[reference.trace + 1].kind
    return held in (ObjectKind.TENSOR, ObjectKind.PARAMETER) and all(store.name != "def" for store in stores)


def _with_added(reference: CutReference, added_at: tuple[str, ...], puts_tensor: bool) -> CutReference:
    """The reference with the lines that add to it; the first replaces its own line if they put a tensor there and it
    had another line of that file.
    """
    files = {file_at(place) for place in added_at}
    moves = puts_tensor and reference.where not in added_at and file_at(reference.where) in files
    return replace(reference, added_at=added_at, where=added_at[0] if moves else reference.where)
