"""What of a run goes under which heading?"""

from __future__ import annotations

from leakscope.findings.kinds import NOT_JUDGED, Origin, Severity
from leakscope.findings.model import Finding, Findings, Unjudged
from leakscope.findings.why import UnjudgedReason, WhyUnjudged
from leakscope.record.kinds import EndKind, MadeBy
from leakscope.record.model import Run
from leakscope.report.wording.numbers import plural
from leakscope.verdict import Returned, Verdict


def leaks(findings: Findings) -> tuple[Finding, ...]:
    """What decides the verdict, whoever's code closes or keeps it."""
    return findings.leaks


def avoidable(findings: Findings) -> tuple[Finding, ...]:
    """Memory that lies there for longer than it is needed, the largest first."""
    found = [f for f in findings.findings if f.severity == Severity.AVOIDABLE]
    return tuple(sorted(found, key=lambda f: -f.retained_bytes))


def notes(findings: Findings) -> tuple[Finding, ...]:
    """The application's findings that decide nothing."""
    return tuple(f for f in findings.findings if f.origin != Origin.LIBRARY and f.severity == Severity.NOTE)


def library(findings: Findings) -> tuple[Finding, ...]:
    """What libraries hold without leaking it."""
    return tuple(f for f in findings.findings if f.origin == Origin.LIBRARY and f.severity == Severity.NOTE)


def is_fault(unjudged: Unjudged) -> bool:
    """Whether a rule failed, which the reader must know whatever the verdict is."""
    faults = (UnjudgedReason.RAISED, UnjudgedReason.NOT_LOADED, UnjudgedReason.NO_SOURCE)
    return isinstance(unjudged.why, WhyUnjudged) and unjudged.why.reason in faults


def is_worth_telling(unjudged: Unjudged) -> bool:
    """Whether something else than a run that was too short kept a rule from judging, which "why" says already."""
    short = (UnjudgedReason.TOO_FEW_LOOKS, UnjudgedReason.NO_STEP)
    return not (isinstance(unjudged.why, WhyUnjudged) and unjudged.why.reason in short)


def steps_of(run: Run) -> int:
    """Steps of the rank that took most."""
    return max((max(rank.ended.steps, len(rank.steps)) for rank in run.ranks), default=0)


def of_block(run: Run) -> bool:
    """Whether it was one block of code, without steps."""
    return run.made_by == MadeBy.BLOCK


def again_text(run: Run) -> str:
    """What to do once something is mended: `run the same command again`."""
    return "run the same command again" if run.made_by == MadeBy.COMMAND else "run it again"


def so_far_text(run: Run) -> str:
    """`the run goes on, after 40 steps`, of one that was read before its end; else ""."""
    on = any(rank.ended.how == EndKind.RUNNING for rank in run.ranks)
    return f"the run goes on, after {plural(steps_of(run), 'step')}" if on else ""


def exit_text(run: Run, findings: Findings) -> str:
    """` (exit status 23)`; "" where no command ends with it, and of a run that has not ended
    ` (so far: the run goes on, after 40 steps)`. Where nothing could be judged it names what makes that a failure.
    """
    if told := so_far_text(run):
        return f" (so far: {told})"
    if run.made_by != MadeBy.COMMAND or findings.returned == Returned.NOT:
        return ""
    passed = findings.verdict == Verdict.INCONCLUSIVE and not findings.exit_status
    choice = f", {NOT_JUDGED} with --fail-on-inconclusive" if passed and findings.returned == Returned.OWN else ""
    return f" (exit status {findings.exit_status}{choice})"
