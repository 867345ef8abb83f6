"""What is the verdict, why, and what is to be done?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.findings.model import Findings
from leakscope.findings.why import Reason, Why
from leakscope.record.model import Run
from leakscope.report.per_rank import looking_text
from leakscope.report.text.lines import Line, field_lines, wrapped
from leakscope.report.wording import (
    clock_text,
    cut_in_short,
    exit_text,
    failure_text,
    growing_text,
    hung_text,
    leaks,
    next_text,
    of_block,
    plural,
    run_text,
    steps_of,
    why_text,
    within_text,
)


def verdict_lines(run: Run, findings: Findings, groups: Sequence[Sequence[int]] = ()) -> Iterator[Line]:
    """What a report opens with: how the run failed, where it did, the verdict, why, and what to do next.

    `groups`: ranks that did the same, of which one is told.
    """
    name, failure = failure_text(run)
    if failure:
        yield from field_lines(name, failure)
    distinct = leaks(findings)
    count = f": {plural(len(distinct), 'distinct leak')}" if distinct else ""
    nothing = failure and not steps_of(run) and not distinct
    count = ": before the first step there is nothing to judge" if nothing else count
    count = f": {grows}" if (grows := growing_text(run, findings)) else count
    yield from field_lines("Verdict", f"{findings.verdict.upper()}{count}{exit_text(run, findings)}")
    if hung := hung_text(run):
        yield from field_lines("Hung", hung)
    if within := within_text(run):
        yield from field_lines("Within", within)
    if not nothing:
        yield from field_lines("Why", why_text(findings))
    for sentence in run_text(findings.out_of_memory, groups):
        yield from field_lines("Memory", sentence)
    if not nothing and (told := next_text(run, findings)):
        yield from field_lines("Next", told)


def about_lines(run: Run) -> Iterator[Line]:
    """What ran, and where all of it lies."""
    yield from field_lines("Run", about_text(run))
    if run.folder:
        yield from field_lines("Folder", run.folder)


def last_lines(run: Run, findings: Findings) -> Iterator[Line]:
    """The verdict once more, for who sees only the end."""
    distinct = leaks(findings)
    what = f": {cut_in_short(distinct)}" if distinct else ""
    what = f": {grows}" if (grows := growing_text(run, findings)) else what
    if isinstance(findings.why, Why) and findings.why.reason == Reason.SUPPRESSED:
        what = f": no new leak, {plural(findings.why.count, 'known leak')} suppressed"
    told = f"Verdict: {findings.verdict.upper()}{what}{exit_text(run, findings)}"
    yield from wrapped(told, "", "  ")


def about_text(run: Run, whole: bool = True) -> str:
    """`train.py: 2 ranks, 12 steps by Adam.step, 4 looks (960.0 ms), cpu, torch 2.13.0, native heap reader`; not
    `whole`: up to the device.
    """
    steps = f"{plural(steps_of(run), 'step')} {clock_text(run)}".strip()
    of_ranks = (plural(max(len(run.ranks), run.expected_ranks), "rank"), steps)
    of_run = (*(() if of_block(run) else of_ranks), looking_text(run), run.device)
    reader = f"{run.heap_reader} heap reader" if run.heap_reader else ""
    parts = (*of_run, *((f"torch {run.torch}" if run.torch else "", reader) if whole else ()))
    return f"{' '.join(run.command)}: {', '.join(part for part in parts if part)}"
