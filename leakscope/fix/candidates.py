"""The candidates for one leak, ranked."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from leakscope.findings.facts import RuleName
from leakscope.findings.model import Finding, Suggestion
from leakscope.findings.source.edits import StoreCase
from leakscope.findings.source.index import Sources
from leakscope.findings.source.stores import on_trace, stores_for
from leakscope.fix.container_edits import container_candidates
from leakscope.fix.model import Candidate, Change, candidate_of
from leakscope.fix.value_edits import keeps_graph, takes_numbers, value_candidates

_MOST = 16
"""Maximum candidates of one leak: each costs a run of the script."""
_STORES = 12
"""Maximum stores of one reference that are edited together."""
_CONTAINERS = frozenset((
    RuleName.DIST_AUTOGRAD_CONTEXT, RuleName.P2P_BUFFER, RuleName.HOOK_PILEUP, RuleName.STEP_GROWTH,
    RuleName.OBJECT_GROWTH, RuleName.NATIVE_HOLD, RuleName.WORKER_GROWTH,
))  # fmt: skip
"""Rules of leaks whose container is more often at fault than the value in it."""


def candidates(
    finding: Finding, sources: Sources, problem: Callable[[str], object] = lambda _: None
) -> list[Candidate]:
    """The edits that may fix a leak, the most plausible first; each must be tried.

    Args:
        finding: The leak.
        sources: The files of the run.
        problem: Called with a sentence for an error of leakscope, which costs some candidates.

    Returns:
        Distinct candidates, not more than are worth a run each.

    """
    stores = store_cases(finding, sources)
    values = _until_error(value_candidates(finding, stores, sources), problem)
    containers = _until_error(container_candidates(finding, stores, sources), problem)
    in_containers = finding.rule in _CONTAINERS and not keeps_graph(finding)
    families = (containers, values) if in_containers else (values, containers)
    first = suggested(finding, sources)
    as_number = finding.suggestion is not None and ".item()" in finding.suggestion.after
    if as_number and any(takes_numbers(case, sources) for case in stores):
        first = []  # `value_edits` has it after `float()`, which numbers allow as well
    found = _distinct((*first, *_alternating(*families)))
    return found[:_MOST]


def store_cases(finding: Finding, sources: Sources) -> list[StoreCase]:
    """All stores of each reference of a finding's cut."""
    found = []
    for reference in finding.cut.references if finding.cut is not None else ():
        place, trace = on_trace(finding, reference)
        for store in stores_for(finding, reference, sources, _STORES) if place is not None else ():
            parsed = sources.file(store.found.scope.file)
            if parsed is not None:
                found.append(StoreCase(finding, trace, place or 0, store, parsed, sources))
    return found


def suggested(finding: Finding, sources: Sources) -> list[Candidate]:
    """The finding's own suggestion, if its lines are still there."""
    edit = finding.suggestion
    before: dict[str, str] = {}
    for place in edit.places if edit is not None else ():
        parsed = sources.file(place.where.rpartition(":")[0])
        if parsed is None:
            return []
        before[parsed.name] = "\n".join(parsed.lines)
    after = dict(before)
    for place in sorted(edit.places, key=_line, reverse=True) if edit is not None else ():
        name = place.where.rpartition(":")[0]
        text = _replaced(after[name], place)
        if text is None:
            return []
        after[name] = text
    if edit is None or ("isinstance(" in edit.after and keeps_graph(finding)):
        return []  # `value_edits` has it after the edit without the test
    first = edit.after.partition("\n")[0] or f"without {edit.before.partition(chr(10))[0]}"
    found = candidate_of(f"`{first}` at {edit.where}", before, after)
    return [found] if found is not None else []


def _line(place: Suggestion) -> int:
    return int(place.where.rpartition(":")[2])


def _replaced(text: str, place: Suggestion) -> str | None:
    """A text with the edit of one place, with the indentation of its lines; None if these are others."""
    lines, first, old = text.split("\n"), _line(place) - 1, place.before.split("\n")
    present = lines[first : first + len(old)]
    if textwrap.dedent("\n".join(present)).strip() != textwrap.dedent(place.before).strip():
        return None
    indent = present[0][: len(present[0]) - len(present[0].lstrip())]
    new = [indent + line if line else line for line in place.after.split("\n")] if place.after else []
    lines[first : first + len(old)] = new
    return "\n".join(lines)


def _until_error(family: Iterable[Candidate], problem: Callable[[str], object]) -> Iterator[Candidate]:
    """The candidates of a family up to the first error: source of an unforeseen form must not cost the others."""
    try:
        yield from family
    except Exception as error:  # noqa: BLE001 - becomes a note
        problem(f"not all edits could be written: {type(error).__name__}: {error}")


def _alternating(first: Iterable[Candidate], second: Iterable[Candidate]) -> Iterator[Candidate]:
    """Both families: some of the first, some of the second, then the rest."""
    first, second = iter(first), iter(second)
    for family, count in ((first, 6), (second, 5), (first, _MOST), (second, _MOST)):
        yield from islice(family, count)


def _distinct(found: Iterable[Candidate]) -> list[Candidate]:
    distinct: dict[tuple[Change, ...], Candidate] = {}
    for one in found:
        distinct.setdefault(one.changes, one)
    return list(distinct.values())
