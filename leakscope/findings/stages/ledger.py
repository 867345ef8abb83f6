"""On which line does each group, each finding and the rest of what was counted stand?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from leakscope.findings.facts import Bounded, CameToRest, EmptiedLater, FollowsInput
from leakscope.findings.kinds import FreedBy, Origin, RuleName, Severity
from leakscope.findings.known.suppressed import suppression_of
from leakscope.findings.ledger import LedgerInterval, Line, LineKind, RestedKind
from leakscope.findings.memory.account import GroupLevels, LinesOfFindings, ledger_of
from leakscope.findings.memory.balance import balances_of
from leakscope.findings.memory.scattered import SCATTERED
from leakscope.findings.memory.unattributed import GAP
from leakscope.findings.model import Finding
from leakscope.findings.ownership.facts import RetentionFacts
from leakscope.findings.stages.case import Case, JudgedRank, RankCase


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


def set_apart(case: Case) -> Case:
    """What is known already says so."""
    said = (replace(finding, suppressed_by=suppression_of(finding, case.known)) for finding in case.findings)
    return replace(case, findings=tuple(said))


def keep_ledger(case: Case) -> Case:
    """Ledger: the growth of each rank between its looks, line by line."""
    return replace(case, ledgers={rank.number: _ledger(case.findings, rank) for rank in case.ranks})


def _ledger(findings: Sequence[Finding], rank: JudgedRank) -> tuple[LedgerInterval, ...]:
    mine = [finding for finding in findings if rank.number in finding.ranks]
    scattered = next((f for f in mine if f.fingerprint == SCATTERED), None)
    unknown = next((f for f in mine if f.fingerprint == GAP and f.severity == Severity.LEAK), None)
    graphs = next((f for f in mine if f.keeps_graphs and f.severity == Severity.LEAK), None)
    by_name = {finding.fingerprint: finding for finding in reversed(mine)}  # the first of a name
    lines = LinesOfFindings(
        of_groups=[_line(_found(group, rank.number, mine, by_name)) for group in rank.account.groups],
        of_objects=[_line(by_name.get(fingerprint)) for fingerprint, _ in rank.account.objects],
        graphs=_line(graphs),
        unknown=_line(unknown),
        scattered=_line(scattered),
    )
    return ledger_of(rank.account, lines)


def _found(group: GroupLevels, rank: int, mine: Sequence[Finding], by_name: Mapping[str, Finding]) -> Finding | None:
    """The finding that is about a group: that of the candidate that it was, else one of a library that keeps most of
    it.
    """
    for fingerprint, storages in reversed(group.became):
        if fingerprint in by_name:
            return by_name[fingerprint]
        # what open contexts keep has a name of its own
        contexts = (f for f in mine if f.rule == RuleName.DIST_AUTOGRAD_CONTEXT)
        same = next((f for f in contexts if set(storages) <= set(f.storages.get(rank, ()))), None)
        if same is not None:
            return same
    return next((f for f in mine if f.fingerprint in group.kept_by and isinstance(f.facts, RetentionFacts)), None)


def _line(finding: Finding | None) -> Line | None:
    """The line of a finding, without its bytes; None for none."""
    if finding is None:
        return None
    holder = finding.cut.written if finding.cut is not None and finding.cut.written else finding.subject
    line = Line(_kind(finding), 0, finding.fingerprint, holder)
    if line.kind == LineKind.RESTED:
        return Line(LineKind.RESTED, 0, rested=RestedKind.OTHER)
    return Line(LineKind.GARBAGE, 0) if line.kind == LineKind.GARBAGE else line


def _kind(finding: Finding) -> LineKind:
    if finding.suppressed_by is not None:
        return LineKind.APART
    if finding.origin == Origin.LIBRARY:
        return LineKind.LIBRARY
    if finding.severity == Severity.LEAK:
        return LineKind.LEAKS
    if isinstance(finding.settled_by, CameToRest):
        return LineKind.RESTED
    if isinstance(finding.settled_by, FollowsInput):
        return LineKind.FOLLOWS
    if isinstance(finding.settled_by, (Bounded, EmptiedLater)) or finding.facts.is_bounded:
        return LineKind.BOUND
    return LineKind.GARBAGE if finding.freed_by == FreedBy.GC else LineKind.SLOW
