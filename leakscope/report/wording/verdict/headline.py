"""What is the verdict, in the few words that are read first?"""

from __future__ import annotations

from leakscope.findings.memory.oom import ranks_out_of_memory
from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.wording.ended import failure_text, is_hung
from leakscope.report.wording.numbers import listed_numbers, plural
from leakscope.report.wording.sections import leaks, so_far_text
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
        return f"{'No new leak' if leaks_known(findings) else 'No leak'}{but}"
    ended = "Hung" if any(is_hung(rank) for rank in run.ranks) else failure_text(run)[0]
    return f"{ended}: cannot tell whether it leaks" if ended else "Cannot tell whether it leaks"


def leaks_known(findings: Findings) -> bool:
    """Whether it leaks in a way that is known."""
    return any(finding.is_leak for finding in findings.suppressed)
