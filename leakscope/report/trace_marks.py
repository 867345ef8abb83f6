"""Marks on the hops of a reference path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from leakscope.findings.facts import HopStatus
from leakscope.findings.model import CutReference, Finding, Hop
from leakscope.findings.naming import place_of
from leakscope.run.model import Run


def suspects(finding: Finding) -> frozenset[int]:
    """Hops whose reference may be the one at fault: from the last object expected to live to the first leaked one.

    Where no such reference is on the trace (a cycle is leaked all the way round) it is the one to cut.
    """
    trace = finding.trace
    between = frozenset(i for i in range(len(trace) - 1) if _may_be_at_fault(trace[i], trace[i + 1]))
    cut = finding.cut_position
    return between or (frozenset() if cut is None else frozenset({cut}))


def _may_be_at_fault(holder: Hop, held: Hop) -> bool:
    return bool(holder.reference) and holder.status != HopStatus.LEAKED and held.status != HopStatus.EXPECTED


PLACES_SHOWN = 3
"""Maximum number of allocation sites shown; `findings.json` has all."""


def allocation_sites(run: Run, finding: Finding) -> tuple[tuple[str, str], ...]:
    """(place, source line) of what made most of its tensors; a line that stands below the next place too is "" here."""
    places = finding.made_at[:PLACES_SHOWN]
    lines = [source_line(run, place) for place in places]
    shown = ["" if line == after else line for line, after in pairwise([*lines, ""])]
    return tuple(zip(places, shown, strict=True))


NO_TRACE = "No reference path from a Python or autograd root."
"""Shown instead of an unknown trace."""


def says_why(finding: Finding) -> tuple[bool, ...]:
    """Whether to show each hop's reason: not if it repeats the previous one."""
    hops = finding.trace
    later = ((before.status, before.reason) != (hop.status, hop.reason) for before, hop in pairwise(hops))
    return (*(True for _ in hops[:1]), *later)


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


@dataclass(frozen=True)
class KeptLine:
    """A line of source recorded with the run."""

    name: str
    """Key of its file in `Run.sources`."""
    number: int
    text: str


def kept_line(run: Run, where: str) -> KeptLine | None:
    """The source line that `train.py:12 main` points at; None if the source was not recorded."""
    place = place_of(where)
    if place is None:
        return None
    name = place.file
    ends = [kept for kept in run.sources if kept.endswith("/" + name) or name.endswith("/" + kept)]
    name = name if name in run.sources or len(ends) != 1 else ends[0]
    lines = run.sources.get(name, ())
    return KeptLine(name, place.line, lines[place.line - 1]) if place.line <= len(lines) else None


def source_line(run: Run, where: str) -> str:
    """The text of that line; "" if the source was not recorded."""
    line = kept_line(run, where)
    return "" if line is None else line.text.strip()
