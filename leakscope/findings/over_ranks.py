"""The same leak on several ranks is one finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.facts import Said, in_words
from leakscope.findings.model import Finding, Origin, Severity
from leakscope.findings.naming.trace import any_item


def merge(found: Sequence[Finding]) -> list[Finding]:
    """One finding for each fingerprint, sightings and bytes of all ranks together; leaks first."""
    by_print: dict[str, list[Finding]] = defaultdict(list)
    for finding in found:
        by_print[finding.fingerprint].append(finding)
    merged = []
    for same in by_print.values():
        best = max(
            same, key=lambda f: (f.severity == Severity.LEAK, f.retained_bytes)
        )  # a leak's words, where one rank leaks
        storages = {rank: indexes for f in same for rank, indexes in f.storages.items()}
        if len({f.cut.written for f in same if f.cut}) > 1:
            best = _of_any_item(best)
        cut = best.cut and replace(best.cut, frees_bytes=sum(f.cut.frees_bytes for f in same if f.cut))
        merged.append(
            replace(
                best,
                retained_bytes=sum(f.retained_bytes for f in same),
                bytes_per_step=sum(f.bytes_per_step for f in same),
                count=sum(f.count for f in same),
                host_bytes=sum(f.host_bytes for f in same),
                counted_bytes=sum(f.counted_bytes for f in same),
                made_at=tuple(dict.fromkeys(m for f in same for m in f.made_at)),
                sightings=tuple(s for f in same for s in f.sightings),
                cut=cut,
                storages=storages,
            )
        )
    return sorted(
        merged,
        key=lambda f: (f.severity != Severity.LEAK, f.origin == Origin.LIBRARY, -f.bytes_per_step, -f.retained_bytes),
    )


def _of_any_item(finding: Finding) -> Finding:
    """A finding without the numbers of the items in what is to be cut: they differ from rank to rank."""
    if finding.cut is None:
        return finding
    told = finding.cut.written
    said = any_item(told)
    words = in_words(finding.facts)
    return replace(
        finding,
        facts=Said(words.title.replace(told, said), words.advice.replace(told, said)),
        trace=tuple(replace(hop, reference=any_item(hop.reference)) for hop in finding.trace),
        cut=replace(
            finding.cut,
            references=tuple(
                replace(r, name=any_item(r.name), written=any_item(r.written) if k == 0 else r.written)
                for k, r in enumerate(finding.cut.references)
            ),
        ),
    )
