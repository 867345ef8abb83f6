"""Which lines of the user's source put something where a cut is, and which edit would mend it?"""

from __future__ import annotations

from dataclasses import replace

from leakscope.findings.model import Finding
from leakscope.findings.source.edits import suggested
from leakscope.findings.source.lines import stores_for
from leakscope.findings.source.sources import Sources
from leakscope.findings.stages.case import Case


def find_lines(case: Case) -> Case:
    """Lines of the kept source that add to what the cuts name, and the edit that would mend it."""
    sources = Sources(case.run.sources)
    return replace(case, findings=tuple(with_lines(finding, sources) for finding in case.findings))


def with_lines(finding: Finding, sources: Sources) -> Finding:
    """The finding with those lines at each reference of its cut; as it is where the sources show none."""
    if finding.cut is None:
        return finding
    try:
        found = [stores_for(finding, reference, sources) for reference in finding.cut.references]
        suggestion = suggested(finding, found, sources)
    except Exception:  # noqa: BLE001 - a program of a shape that nobody thought of must not cost the verdict
        return finding
    references = tuple(
        replace(reference, added_at=tuple(dict.fromkeys(store.where for store in stores)))
        for reference, stores in zip(finding.cut.references, found, strict=True)
    )
    return replace(finding, cut=replace(finding.cut, references=references), suggestion=suggestion)
