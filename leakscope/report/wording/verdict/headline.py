"""What is the verdict, in the few words that are read first?"""

from __future__ import annotations

from leakscope.findings.facts import CameToRest, FollowsInput, HeldByCall
from leakscope.findings.memory.oom import ranks_out_of_memory
from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.cleaning import cleaned, one_line
from leakscope.report.wording.ended import failure_text, is_hung
from leakscope.report.wording.held import cut_name
from leakscope.report.wording.numbers import listed_numbers, plural
from leakscope.report.wording.sections import leaks, library, notes, so_far_text
from leakscope.report.wording.verdict.ledger import projected_text
from leakscope.units import bytes_text
from leakscope.verdict import Verdict


def headline(run: Run, findings: Findings) -> str:
    """`2 distinct leaks`, `Out of memory on rank 1`, `Failed: cannot tell whether it leaks`, `No leak so far`."""
    return f"{_headline(run, findings)}{' so far' if so_far_text(run) else ''}"


def _headline(run: Run, findings: Findings) -> str:
    full = sorted(rank.number for rank in ranks_out_of_memory(run))
    if full:
        return f"Out of memory on {'ranks' if len(full) > 1 else 'rank'} {listed_numbers(tuple(full))}"
    if told := leaks(findings):
        return plural(len(told), "distinct leak")
    if findings.verdict == Verdict.LEAKS:
        return "Leaks"
    if findings.verdict == Verdict.CLEAN:
        over = findings.avoidable_over
        but = "" if over is None else f", but {bytes_text(over)} avoidable: more than allowed"
        grows = growing_text(run, findings)
        though = f", though {grows}" if grows else ""
        return f"{'No new leak' if leaks_known(findings) else 'No leak'}{but}{though}"
    ended = "Hung" if any(is_hung(rank) for rank in run.ranks) else failure_text(run)[0]
    return f"{ended}: cannot tell whether it leaks" if ended else "Cannot tell whether it leaks"


def growing_text(run: Run, findings: Findings) -> str:
    """`kept grows by 24 B a step, 2.29 MiB after 100,000 steps`: what grows or fills in a run that is clean; "" where
    nothing does.
    """
    if findings.verdict != Verdict.CLEAN:
        return ""
    seen = [f for f in (*notes(findings), *library(findings)) if f.bytes_per_step > 0]
    growing = [f for f in seen if not f.settled]
    filling = [f for f in seen if f.settled and not isinstance(f.settled_by, CameToRest | FollowsInput | HeldByCall)]
    told = growing or filling
    if not told:
        return ""
    most = max(told, key=lambda finding: finding.bytes_per_step)
    name = one_line(cleaned(cut_name(most.cut) if most.cut is not None else most.subject)) or "memory"
    others = f" and {len(told) - 1} more" if len(told) > 1 else ""
    if not growing:
        return f"{name}{others} {'is' if len(told) == 1 else 'are'} filling up to a bound"
    rate = sum(finding.bytes_per_step for finding in growing)
    verb = "grows" if len(growing) == 1 else "grow"
    return f"{name}{others} {verb} by {bytes_text(rate)} a step, {projected_text(run, rate)}"


def leaks_known(findings: Findings) -> bool:
    """Whether it leaks in a way that is known."""
    return any(finding.is_leak for finding in findings.suppressed)
