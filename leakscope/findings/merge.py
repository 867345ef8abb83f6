"""Merges findings over places, ranks and snapshots, by one exhaustive table of fields."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from leakscope.findings.facts import AlsoFreed, CommBuffers, Facts, FreedBy, Origin, Severity
from leakscope.findings.judged import JudgedCandidate
from leakscope.findings.model import Cut, Finding, Hop, Sighting
from leakscope.findings.naming import any_item
from leakscope.findings.thresholds import Thresholds

Findings = Sequence[Finding]


def severity_then_size(finding: Finding | JudgedCandidate) -> tuple[bool, int, int, str, str]:
    """Sort key for findings that become one: the first provides words, trace and cut.

    The one with most references to cut precedes a larger one: its cut frees both.
    """
    leak = finding.severity == Severity.LEAK
    # by name if nothing else distinguishes them: the order of ranks is arbitrary
    return not leak, -_count_of_cut(finding), -finding.retained_bytes, finding.rule, finding.subject


def with_one_cut(judged: Sequence[JudgedCandidate]) -> list[tuple[int, ...]]:
    """Positions of the candidates of one rank that the same cut fixes, the most informative first."""
    same: dict[object, list[int]] = defaultdict(list)
    for place, one in enumerate(judged):
        cut = one.cut
        # cycles closed by one line over the same references: several names of one leak
        closed = tuple(sorted(reference.name for reference in one.cycle))
        shared = cut is not None and (one.freed_by == FreedBy.PROGRAM or bool(cut.where and closed))
        same[(one.freed_by, cut.keys, closed) if cut and shared else place].append(place)
    alike = [tuple(sorted(places, key=lambda place: severity_then_size(judged[place]))) for places in same.values()]
    joined: list[tuple[int, ...]] = []
    for places in sorted(alike, key=lambda places: severity_then_size(judged[places[0]])):
        first = judged[places[0]]
        below = next((k for k, other in enumerate(joined) if _is_part(first, judged[other[0]])), None)
        if below is None:
            joined.append(places)
        else:
            joined[below] += places
    return sorted(joined, key=min)


def _is_part(one: JudgedCandidate, other: JudgedCandidate) -> bool:
    """Whether the references to cut for the other free this one too: they are more, and include those of this one.

    A module with hooks whose child has such hooks, or the state of parameters that an optimizer also has in its groups.
    """
    if one.freed_by != other.freed_by or not _count_of_cut(one) < _count_of_cut(other):
        return False
    if one.freed_by == FreedBy.NEVER:
        return False
    if one.freed_by == FreedBy.PROGRAM and (one.rule, one.severity) != (other.rule, other.severity):
        return False  # each rule has its own advice
    return bool(one.cut_in) and one.cut_in <= other.cut_in


def _count_of_cut(finding: Finding | JudgedCandidate) -> int:
    return len(finding.cut.references) if finding.cut is not None else 0


def decide_severities(judged: Sequence[JudgedCandidate], thresholds: Thresholds) -> None:
    """Decide the severity of the candidates of one rank.

    Notes with one cut are leaks if they are large enough together: each item of a list may bring many small storages,
    under as many names.
    """
    for places in with_one_cut(judged):
        if any(judged[place].severity == Severity.LEAK for place in places):
            continue  # it provides the fingerprint, which a small one beside it must not change
        growing = [judged[place] for place in places if _would_leak(judged[place])]
        min_per_step = thresholds.for_data(any(one.candidate.on_device for one in growing))
        total = sum(max(one.retained_bytes, one.candidate.series.total) for one in growing)
        if (
            len(growing) > 1
            and sum(one.bytes_per_step for one in growing) >= min_per_step
            and total >= max(one.candidate.series.floor(min_per_step) for one in growing)
        ):
            for one in growing:
                one.severity = Severity.LEAK
    for one in judged:
        one.decide_severity()


def _would_leak(one: JudgedCandidate) -> bool:
    """Whether it would be a leak if it were larger."""
    return not one.facts.is_bounded and one.candidate.is_certain and one.candidate.settled_by is None


def merge_findings(same: Findings, order: Callable[[Finding], Any] = severity_then_size) -> Finding:
    """Join findings as one, each field according to `MERGED`; the first by `order` provides the words."""
    in_order = sorted(same, key=order)
    if len(same) == 1:
        return in_order[0]
    merged = {name: merge(name, in_order) for name, merge in MERGED.items()}
    if len({finding.cut.written for finding in same if finding.cut}) > 1:
        merged |= _of_any_item(merged["subject"], merged["trace"], merged["cut"])
    return Finding(**merged)


def merge_by_fingerprint(findings: Findings) -> list[Finding]:
    """One finding for each fingerprint; leaks first, the library's after the application's."""
    same: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        same[finding.fingerprint].append(finding)
    return sorted(
        map(merge_findings, same.values()),
        key=lambda f: (
            *(f.severity != Severity.LEAK, f.origin == Origin.LIBRARY, -f.bytes_per_step, -f.retained_bytes),
            *(f.rule, f.subject, f.fingerprint),  # the order of objects in the heap is arbitrary
        ),
    )


Merge = Callable[[str, Sequence[Any]], Any]
"""The value of a field of findings that are merged, or of their cuts, by its name. The heaviest one comes first."""


def _first(field: str, same: Sequence[Any]) -> Any:
    """The value of the heaviest finding: words, and what belongs to them."""
    return getattr(same[0], field)


def _known(field: str, same: Findings) -> Any:
    """The value of the heaviest finding with any."""
    return next((value for finding in same if (value := getattr(finding, field))), getattr(same[0], field))


def _total(field: str, same: Sequence[Any]) -> Any:
    return sum(getattr(one, field) for one in same)


def _any(field: str, same: Sequence[Any]) -> bool:
    return any(getattr(one, field) for one in same)


def _all(field: str, same: Sequence[Any]) -> bool:
    return all(getattr(one, field) for one in same)


def _most(field: str, same: Findings) -> Any:
    return max((value for finding in same if (value := getattr(finding, field)) is not None), default=None)


def _if_all(field: str, same: Findings) -> Any:
    """What contradicts a leak, if it does so for each."""
    return getattr(same[0], field) if all(getattr(finding, field) is not None for finding in same) else None


def _worst(field: str, same: Findings) -> Any:
    order = tuple({"severity": Severity, "freed_by": _WORST_FREED}[field])
    return min((getattr(finding, field) for finding in same), key=order.index)


_WORST_FREED = (FreedBy.NEVER, FreedBy.PROGRAM, FreedBy.GC)


def _fingerprint(_: str, same: Findings) -> str:
    """The smallest fingerprint among the heaviest: which one is the largest differs between runs."""
    worst = same[0].severity
    return min(finding.fingerprint for finding in same if finding.severity == worst)


def _sightings(_: str, same: Findings) -> tuple[Sighting, ...]:
    """All findings at one snapshot of one rank are one sighting."""
    seen: Counter[tuple[int, int]] = Counter()
    for sighting in (s for finding in same for s in finding.sightings):
        seen[sighting.rank, sighting.step] += sighting.bytes
    return tuple(Sighting(rank, step, size) for (rank, step), size in sorted(seen.items()))


def _storages(_: str, same: Findings) -> Mapping[int, tuple[int, ...]]:
    ranks = dict.fromkeys(rank for finding in same for rank in finding.storages)
    return {rank: tuple(s for finding in same for s in finding.storages.get(rank, ())) for rank in ranks}


def _union(field: str, same: Findings) -> frozenset[Any]:
    return frozenset().union(*(getattr(finding, field) for finding in same))


def _made_at(_: str, same: Findings) -> tuple[str, ...]:
    """The lines of the largest first."""
    by_size = sorted(same, key=lambda finding: -finding.retained_bytes)
    return tuple(dict.fromkeys(place for finding in by_size for place in finding.made_at))


def _cut(_: str, same: Findings) -> Cut | None:
    """The heaviest one's cut, which frees what all their cuts free; None where that has none."""
    if same[0].cut is None:
        return None
    cuts = [finding.cut for finding in same if finding.cut is not None]
    return Cut(**{name: merge(name, cuts) for name, merge in MERGED_CUT.items()})


def _beside(_: str, same: Findings) -> tuple[AlsoFreed, ...]:
    """Bytes of each kind, over all."""
    sizes: Counter[str] = Counter()
    for beside in (beside for finding in same for beside in finding.beside):
        sizes[beside.noun] += beside.bytes
    return tuple(AlsoFreed(size, noun) for noun, size in sizes.items())


def _comm_buffers(_: str, same: Findings) -> CommBuffers | None:
    each = [finding.comm_buffers for finding in same if finding.comm_buffers is not None]
    return reduce(add, each) if each else None


def _facts(_: str, same: Findings) -> Facts:
    """The heaviest finding's facts, with the heaviest of each rank summed."""
    first = same[0].facts
    of_ranks = {finding.ranks: finding.facts for finding in reversed(same) if type(finding.facts) is type(first)}
    return first.over_ranks(list(of_ranks.values()))


MERGED_CUT: Mapping[str, Merge] = {
    "references": _first,
    "frees_bytes": _total,
    "proved_bytes": _first,
    "unproved": _first,
    "after_gc": _any,
    "is_exact": _all,
}
"""How each field of the cut of merged findings is made of those of their cuts."""
MERGED: Mapping[str, Merge] = {
    "rule": _first,
    "facts": _facts,
    "fingerprint": _fingerprint,
    "severity": _worst,
    "least_per_step": _first,
    "freed_by": _worst,
    "retained_bytes": _total,
    "bytes_per_step": _total,
    "trace": _first,
    "cut": _cut,
    "origin": _first,
    "library": _first,
    "collections": _most,
    "made_at": _made_at,
    "sightings": _sightings,
    "see": _known,
    "cycle": _first,
    "count": _total,
    "before_bytes": _total,
    "host_bytes": _total,
    "counted_bytes": _total,
    "subject": _first,
    "noun": _first,
    "settled_by": _if_all,
    "too_large": _known,
    "keeps_graphs": _any,
    "comm_buffers": _comm_buffers,
    "beside": _beside,
    "upstream": _known,
    "suggestion": _known,
    "suppressed_by": _if_all,
    "storages": _storages,
    "cut_in": _union,
}
"""How each field of a merged finding is made of those of the findings; a field without an entry fails a test."""


def _of_any_item(subject: str, trace: Sequence[Hop], cut: Cut | None) -> dict[str, Any]:
    """Fields without item numbers in what is to be cut: they differ between ranks."""
    if cut is None:
        return {}
    references = (
        replace(r, name=any_item(r.name), written=any_item(r.written) if k == 0 else r.written)
        for k, r in enumerate(cut.references)
    )
    return {
        "subject": any_item(subject),
        "trace": tuple(replace(hop, reference=any_item(hop.reference)) for hop in trace),
        "cut": replace(cut, references=tuple(references)),
    }
