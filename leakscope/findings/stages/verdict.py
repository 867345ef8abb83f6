"""What is shown, what is listed apart, and is it a leak?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakscope.findings.facts import EmptiedLater
from leakscope.findings.kinds import NOT_JUDGED, Severity
from leakscope.findings.known.suppressed import unused
from leakscope.findings.memory.gc_advice import gc_advice
from leakscope.findings.memory.oom import out_of_memory
from leakscope.findings.model import Finding, Findings
from leakscope.findings.stages.case import Case
from leakscope.findings.verdict import verdict_of, verdicts_of_ranks
from leakscope.findings.why import Reason, Why
from leakscope.record.model import Run
from leakscope.verdict import Verdict


def give_verdict(case: Case) -> Case:
    """Verdict: what is shown, what is listed apart, and whether it is a leak."""
    run = case.run
    findings = [as_known(f, run) for f in case.findings]
    apart = tuple(f for f in findings if f.suppressed_by is not None)
    shown = tuple(f for f in findings if f.suppressed_by is None)
    written = {found.fingerprint: found.written for rank in case.ranks for found in rank.open_cases}
    open_cases = [written[f.fingerprint] for f in shown if f.fingerprint in written]
    garbage = sum(rank.garbage for rank in case.ranks)
    verdict, why = verdict_of(run, shown, apart, case.unjudged, open_cases, case.ledgers, garbage)
    verdict, why = while_filling(verdict, why, shown)
    over = avoidable_over(shown, case.fail_on_avoidable)
    judged = Findings(
        verdict=verdict,
        why=why,
        exit_status=0,
        avoidable_over=over,
        fail_on_inconclusive=case.fail_on_inconclusive,
        findings=shown,
        suppressed=apart,
        unused=unused(case.known, findings) if verdict != Verdict.INCONCLUSIVE else (),
        expired=case.known.expired,
        unjudged=case.unjudged,
        ranks={
            number: replace(case.summaries[number], verdict=of_rank)
            for number, of_rank in verdicts_of_ranks(run, verdict, shown).items()
            if number in case.summaries
        },
        ledgers=case.ledgers,
        listed=tuple(listed for rank in case.ranks for listed in rank.listed),
        out_of_memory=(
            *out_of_memory([rank.shortage for rank in case.ranks], run.device),
            *(failure for rank in case.ranks for failure in rank.device_failures),
        ),
        gc_advice=gc_advice(run, shown),
        loaders={rank.number: rank.loaders for rank in case.ranks if rank.loaders},
        drag=tuple(fact for rank in case.ranks for fact in rank.drag),
        also_grows=tuple(fact for rank in case.ranks for fact in rank.also_grows),
    )
    status = NOT_JUDGED if judged.unjudged_fails and over is None else case.leak_exit_code
    return replace(case, judged=replace(judged, exit_status=status if judged.failed else 0))


_CLEAN = (Reason.NOTHING_GREW, Reason.LITTLE_GREW, Reason.BALANCED)


def while_filling(verdict: Verdict, why: Why, shown: Sequence[Finding]) -> tuple[Verdict, Why]:
    """A clean verdict that names what grows until a line of the source empties it; inconclusive where that line may
    never do so.
    """
    filling = [(f, f.settled_by) for f in shown if isinstance(f.settled_by, EmptiedLater)]
    if verdict != Verdict.CLEAN or not filling:
        return verdict, why
    most, emptied = min(filling, key=lambda each: (each[1].is_decided, -each[0].bytes_per_step))
    if emptied.is_decided and why.reason not in _CLEAN:
        return verdict, why
    told = replace(
        why,
        reason=Reason.FILLING,
        detail=most.cut.written if most.cut is not None else most.subject,
        bytes_per_step=most.bytes_per_step,
        emptied=emptied,
    )
    return (Verdict.CLEAN if emptied.is_decided else Verdict.INCONCLUSIVE), told


def as_known(finding: Finding, run: Run) -> Finding:
    """A finding without the bytes that cuts would free, where a look did not show all that C++ holds."""
    if not any(look.hides for rank in run.ranks if rank.number in finding.ranks for look in rank.looks):
        return finding
    cut = finding.cut and replace(finding.cut, is_told=False)
    return replace(finding, cut=cut, trace=tuple(replace(hop, frees_bytes=None) for hop in finding.trace))


def avoidable_over(shown: Sequence[Finding], limit: int | None) -> int | None:
    """Avoidable bytes of all ranks, where they are more than the limit; each storage is in one finding alone."""
    total = sum(f.retained_bytes for f in shown if f.severity == Severity.AVOIDABLE)
    return total if limit is not None and total > limit else None
