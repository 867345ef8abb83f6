"""How do findings become one, over places, ranks and looks?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leakscope.findings.grouping.bounds import downgraded
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.kinds import FreedBy, Origin, Severity
from leakscope.findings.model import Cut, Finding, See, Sighting
from leakscope.findings.naming.trace import any_item
from leakscope.findings.thresholds import Thresholds

Findings = Sequence[Finding]


def by_weight(finding: Finding) -> tuple[bool, int, int]:
    """The key by which findings that become one are ordered: the first lends its words, trace and cut.

    That which needs the most references cut goes before a larger one: its cut frees both.
    """
    return finding.severity != Severity.LEAK, -_count_of_cut(finding), -finding.retained_bytes


def with_one_cut(findings: Findings) -> list[tuple[int, ...]]:
    """Positions of the findings of one rank that the same cut mends, the one that tells most first."""
    same: dict[object, list[int]] = defaultdict(list)
    for place, finding in enumerate(findings):
        cut = finding.cut
        # cycles that one line closes, over the same references: of what is there by several names
        closed = tuple(sorted(reference.name for reference in finding.cycle))
        shared = cut is not None and (finding.freed_by == FreedBy.PROGRAM or bool(cut.where and closed))
        mends = (finding.freed_by, cut.reference, cut.where, cut.written, cut.also, closed) if cut and shared else place
        same[mends].append(place)
    one = [tuple(sorted(places, key=lambda place: by_weight(findings[place]))) for places in same.values()]
    return _with_what_hangs_above(findings, one)


def _with_what_hangs_above(findings: Findings, one: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """A cycle all of whose cut is part of what is cut for a cycle below it joins that one: a module with hooks of its
    own that has a child with such hooks.
    """
    joined: list[tuple[int, ...]] = []
    for places in sorted(one, key=lambda places: by_weight(findings[places[0]])):
        first = findings[places[0]]
        below = next((k for k, other in enumerate(joined) if _is_part(first, findings[other[0]])), None)
        if below is None:
            joined.append(places)
        else:
            joined[below] += places
    return sorted(joined, key=min)


def _is_part(finding: Finding, other: Finding) -> bool:
    """Whether the references to cut for the other free the garbage of this one too, as they are more and those of this
    one among them.
    """
    if {finding.freed_by, other.freed_by} != {FreedBy.GC} or not _count_of_cut(finding) < _count_of_cut(other):
        return False
    return bool(mine := _all_of_cut(finding)) and mine <= _all_of_cut(other)


def _count_of_cut(finding: Finding) -> int:
    return len(finding.cut.references) if finding.cut is not None else 0


def _all_of_cut(finding: Finding) -> frozenset[int]:
    """The references to cut, each in all its instances."""
    return frozenset(r for reference in (finding.cut.references if finding.cut else ()) for r in reference.indexes)


def weighed_together(findings: Findings, candidates: Sequence[Candidate], thresholds: Thresholds) -> list[Finding]:
    """The findings of one rank before they are one: notes of one cut are leaks where together they are large enough.

    Each item of a list may bring many small storages, under as many names.
    """
    weighed = list(findings)
    for places in with_one_cut(findings):
        if any(findings[place].severity == Severity.LEAK for place in places):
            continue  # it lends the fingerprint, which a small one beside it must not change
        counting = [place for place in places if _is_growth(findings[place], candidates[place])]
        least = thresholds.of_data(any(candidates[place].on_device for place in counting))
        lines = [candidates[place].series for place in counting]
        total = sum(max(findings[place].retained_bytes, candidates[place].series.total) for place in counting)
        if (
            len(counting) > 1
            and sum(findings[place].bytes_per_step for place in counting) >= least
            and total >= max(line.floor(least) for line in lines)
        ):
            for place in counting:
                weighed[place] = replace(findings[place], severity=Severity.LEAK)
    return weighed


def _is_growth(finding: Finding, candidate: Candidate) -> bool:
    """Whether it would be a leak if it were large."""
    large = replace(finding, severity=Severity.LEAK)
    return not finding.facts.is_bounded and downgraded(large, candidate).severity == Severity.LEAK


def merge_findings(same: Findings) -> Finding:
    """Findings that are one: each field as `MERGED` says, all others those of the first by weight."""
    first = min(same, key=by_weight)
    if len(same) == 1:
        return first
    if len({finding.cut.written for finding in same if finding.cut}) > 1:
        first = _of_any_item(first)
    merged: dict[str, Any] = {name: merge(same) for name, merge in MERGED.items()}
    return replace(first, cut=_cut(first.cut, same), **merged)


def merge_by_fingerprint(findings: Findings) -> list[Finding]:
    """One finding for each fingerprint; leaks first, the library's after the application's."""
    same: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        same[finding.fingerprint].append(finding)
    return sorted(
        map(merge_findings, same.values()),
        key=lambda f: (f.severity != Severity.LEAK, f.origin == Origin.LIBRARY, -f.bytes_per_step, -f.retained_bytes),
    )


def _total(field: str) -> Callable[[Findings], Any]:
    return lambda same: sum(getattr(finding, field) for finding in same)


def _fingerprint(same: Findings) -> str:
    """Of those that weigh most whichever comes first: which is the largest differs from run to run."""
    worst = min(same, key=by_weight).severity
    return min(finding.fingerprint for finding in same if finding.severity == worst)


def _sightings(same: Findings) -> tuple[Sighting, ...]:
    """What was seen of all at one look of one rank is one sighting."""
    seen: Counter[tuple[int, int]] = Counter()
    for sighting in (s for finding in same for s in finding.sightings):
        seen[sighting.rank, sighting.step] += sighting.bytes
    return tuple(Sighting(rank, step, size) for (rank, step), size in sorted(seen.items()))


def _storages(same: Findings) -> Mapping[int, tuple[int, ...]]:
    ranks = dict.fromkeys(rank for finding in same for rank in finding.storages)
    return {rank: tuple(s for finding in same for s in finding.storages.get(rank, ())) for rank in ranks}


def _see(same: Findings) -> See | None:
    return next((finding.see for finding in same if finding.see is not None), None)


def _made_at(same: Findings) -> tuple[str, ...]:
    return tuple(dict.fromkeys(place for finding in same for place in finding.made_at))


def _cut(cut: Cut | None, same: Findings) -> Cut | None:
    cuts = [finding.cut for finding in same if finding.cut]
    return cut and replace(
        cut, frees_bytes=sum(each.frees_bytes for each in cuts), after_gc=any(each.after_gc for each in cuts)
    )


MERGED: Mapping[str, Callable[[Findings], Any]] = {
    "fingerprint": _fingerprint,
    "retained_bytes": _total("retained_bytes"),
    "bytes_per_step": _total("bytes_per_step"),
    "count": _total("count"),
    "host_bytes": _total("host_bytes"),
    "counted_bytes": _total("counted_bytes"),
    "made_at": _made_at,
    "sightings": _sightings,
    "storages": _storages,
    "see": _see,
}
"""How each field of findings that are one is made of theirs; the cut frees what all their cuts free."""


def _of_any_item(finding: Finding) -> Finding:
    """A finding without the numbers of the items in what is to be cut: they differ from rank to rank."""
    if finding.cut is None:
        return finding
    cut = finding.cut
    return replace(
        finding,
        subject=any_item(finding.subject),
        trace=tuple(replace(hop, reference=any_item(hop.reference)) for hop in finding.trace),
        cut=replace(
            cut,
            references=tuple(
                replace(r, name=any_item(r.name), written=any_item(r.written) if k == 0 else r.written)
                for k, r in enumerate(cut.references)
            ),
        ),
    )
