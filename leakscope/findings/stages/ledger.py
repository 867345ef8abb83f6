"""On which line does each group, each finding and the rest of what was counted stand?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from leakscope.findings.facts import Bounded, CameToRest
from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.grouping.names import Key
from leakscope.findings.kinds import FreedBy, Origin, RuleName, Severity
from leakscope.findings.ledger import LedgerInterval, Line, LineKind, RestedKind
from leakscope.findings.memory.account import Levels, ledger_of
from leakscope.findings.memory.balance import balances_of
from leakscope.findings.memory.scattered import SCATTERED
from leakscope.findings.memory.unattributed import GAP
from leakscope.findings.model import Finding
from leakscope.findings.ownership.facts import RetentionFacts
from leakscope.findings.stages.case import Case, RankCase


def balance_looks(case: RankCase) -> RankCase:
    """What was counted at each look, and how much of it is known."""
    return replace(case, balances=balances_of(case.rank, case.looks, case.warmup))


def heed_libraries(case: Case) -> Case:
    """With `ignore_library`, what libraries leak is a note."""
    if not case.ignore_library:
        return case
    of_library = [f.origin == Origin.LIBRARY and f.severity == Severity.LEAK for f in case.findings]
    noted = (
        replace(finding, severity=Severity.NOTE) if library else finding
        for finding, library in zip(case.findings, of_library, strict=True)
    )
    return replace(case, findings=tuple(noted))


def keep_ledger(case: Case) -> Case:
    """Ledger: the growth of each rank between its looks, line by line."""
    return replace(case, ledgers={rank.rank.number: _ledger(case, rank) for rank in case.ranks})


def is_apart(case: Case, finding: Finding) -> bool:
    """Whether the finding is suppressed or was there in an earlier run."""
    return finding.rule in case.suppress or finding.fingerprint in {*case.suppress, *case.baseline}


def _ledger(case: Case, rank: RankCase) -> tuple[LedgerInterval, ...]:
    number = rank.rank.number
    mine = [finding for finding in case.findings if number in finding.ranks]
    scattered = next((f for f in mine if f.fingerprint == SCATTERED), None)
    unknown = next((f for f in mine if f.fingerprint == GAP and f.severity == Severity.LEAK), None)
    graphs = next((f for f in mine if f.keeps_graphs and f.severity == Severity.LEAK), None)
    return ledger_of(
        rank.looks,
        rank.balances,
        rank.groups,
        _lines_of_groups(case, rank, mine),
        [(line, levels) for line, levels in _objects(case, rank, mine)],
        None if graphs is None else _line(case, graphs),
        None if unknown is None else _line(case, unknown),
        None if scattered is None else _line(case, scattered),
    )


def _lines_of_groups(case: Case, rank: RankCase, mine: Sequence[Finding]) -> Mapping[Key, Line]:
    """The line of each group that a finding is about."""
    number = rank.rank.number
    lines = dict(_held_by_libraries(case, rank, mine))
    for candidate, fingerprint in zip(rank.candidates, rank.became, strict=True):
        found = _found(mine, number, candidate, fingerprint)
        if found is not None:
            lines[candidate.group.key] = _line(case, found)
    return lines


def _found(mine: Sequence[Finding], rank: int, candidate: Candidate, fingerprint: str) -> Finding | None:
    """The finding that a candidate has become part of."""
    same = next((f for f in mine if f.fingerprint == fingerprint), None)
    if same is not None:
        return same
    # what open contexts keep has a name of its own
    contexts = (f for f in mine if f.rule == RuleName.DIST_AUTOGRAD_CONTEXT)
    return next((f for f in contexts if set(candidate.group.storages) <= set(f.storages.get(rank, ()))), None)


def _held_by_libraries(case: Case, rank: RankCase, mine: Sequence[Finding]) -> Iterator[tuple[Key, Line]]:
    """Groups without a finding of their own, most of whose last storages a library keeps."""
    kept = [(f, set(f.storages.get(rank.rank.number, ()))) for f in mine if isinstance(f.facts, RetentionFacts)]
    if not kept:
        return
    last = rank.groups.steps[-1]
    for key, at in rank.groups.at.items():
        if last in at:
            look, group = at[last]
            for finding, storages in kept:
                inside = sum(int(look.heap.bytes[s]) for s in group.storages if s in storages)
                if 2 * inside > group.bytes:
                    yield key, _line(case, finding)
                    break


def _objects(case: Case, rank: RankCase, mine: Sequence[Finding]) -> Iterator[tuple[Line, Levels]]:
    """Lines of what keeps gaining objects that are no tensors, with their bytes at each look."""
    for candidate, fingerprint in zip(rank.arrays, rank.arrays_became, strict=True):
        found = next((f for f in mine if f.fingerprint == fingerprint), None)
        if found is not None:
            yield _line(case, found), dict(enumerate(candidate.counted or candidate.series.bytes))


def _line(case: Case, finding: Finding) -> Line:
    """The line of a finding, without its bytes."""
    holder = finding.cut.written if finding.cut is not None and finding.cut.written else finding.subject
    line = Line(_kind(case, finding), 0, finding.fingerprint, holder)
    if line.kind == LineKind.RESTED:
        return Line(LineKind.RESTED, 0, rested=RestedKind.OTHER)
    return Line(LineKind.GARBAGE, 0) if line.kind == LineKind.GARBAGE else line


def _kind(case: Case, finding: Finding) -> LineKind:
    if is_apart(case, finding):
        return LineKind.APART
    if finding.origin == Origin.LIBRARY:
        return LineKind.LIBRARY
    if finding.severity == Severity.LEAK:
        return LineKind.LEAKS
    if isinstance(finding.settled_by, CameToRest):
        return LineKind.RESTED
    if isinstance(finding.settled_by, Bounded) or finding.facts.is_bounded:
        return LineKind.BOUND
    return LineKind.GARBAGE if finding.freed_by == FreedBy.GC else LineKind.SLOW
