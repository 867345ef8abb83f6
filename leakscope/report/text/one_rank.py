"""What is there to know of one rank?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from leakscope.findings.model import Finding, Findings
from leakscope.record.model import Run
from leakscope.report.cleaning import cleaned
from leakscope.report.rank_figures import COLUMNS
from leakscope.report.rank_groups import RankGroup, rank_groups
from leakscope.report.rank_notes import all_of
from leakscope.report.snapshot.section import device_lines
from leakscope.report.text.ledger import ledger_lines
from leakscope.report.text.lines import WIDTH, Line, field_lines, laid_out, wrapped
from leakscope.report.text.ranks import error_lines
from leakscope.report.text.small_print import small_print
from leakscope.report.wording import cut_name, leaks, line_to_edit, plural, ranks_text, run_text, title
from leakscope.units import bytes_text

_COLUMN = 16
"""Columns that the name of a figure takes."""


def render(run: Run, findings: Findings, numbers: Sequence[int], width: int = WIDTH) -> str:
    """All that is known of these ranks, one after the other, as text; they are ranks of the run."""
    run, findings = cleaned(run), cleaned(findings)
    groups = rank_groups(run, findings)
    lines = [line for number in numbers for line in _rank(run, findings, groups, number)]
    return "\n".join(line.rstrip() for line in laid_out(lines, width)).rstrip() + "\n"


def _rank(run: Run, findings: Findings, groups: Sequence[RankGroup], number: int) -> Iterator[Line]:
    group = next(group for group in groups if number in group.ranks)
    story = next(story for story in group.stories if story.number == number)
    alone = replace(run, ranks=tuple(rank for rank in run.ranks if rank.number == number), notes=())
    own = _of_rank(findings, number)
    heading = f"Rank {number} of {plural(len(run.ranks), 'rank')}"
    yield from (heading, "=" * len(heading))
    yield from field_lines("ended", story.ended, "", _COLUMN)
    yield from error_lines(story, stack=True, log=False)
    others = [rank for rank in group.ranks if rank != number]
    like = f"{ranks_text(others)} did the same" if others else "no other rank did the same"
    if len(run.ranks) > 1:
        yield from field_lines("beside others", "; ".join([*group.apart, like]), "", _COLUMN)
    for column in COLUMNS:
        yield from field_lines(column.head, column.text((story,)), "", _COLUMN)
    if story.log:
        yield from field_lines("log", story.log, "", _COLUMN)
    yield ""
    for sentence in run_text(own.out_of_memory):
        yield from wrapped(sentence, "- ", "  ")
    yield from _findings(findings, own, number)
    yield from ledger_lines(own, verbose=True)
    if device := list(device_lines(alone)):
        yield from (*(line for text in device for line in wrapped(text, "", "  ")), "")
    yield from small_print(alone, own, verbose=True)
    if notes := list(all_of(story)):
        yield from ("Notes", "=====", *(line for text in notes for line in wrapped(text, "- ", "  ")), "")


def _of_rank(findings: Findings, number: int) -> Findings:
    """What of the findings is of that rank."""
    return replace(
        findings,
        findings=tuple(f for f in findings.findings if number in f.ranks),
        suppressed=tuple(f for f in findings.suppressed if number in f.ranks),
        unjudged=tuple(item for item in findings.unjudged if item.rank == number),
        ranks={rank: summary for rank, summary in findings.ranks.items() if rank == number},
        ledgers={rank: ledger for rank, ledger in findings.ledgers.items() if rank == number},
        listed=tuple(alive for alive in findings.listed if alive.rank == number),
        out_of_memory=tuple(fact for fact in findings.out_of_memory if fact.rank == number),
        gc_advice=tuple(fact for fact in findings.gc_advice if fact.rank == number),
        drag=tuple(fact for fact in findings.drag if fact.rank == number),
        also_grows=tuple(fact for fact in findings.also_grows if fact.rank == number),
    )


def _findings(findings: Findings, own: Findings, number: int) -> Iterator[Line]:
    """The findings that it has, numbered as in the report, and how large they were there at each look."""
    numbers = {finding.fingerprint: place for place, finding in enumerate(leaks(findings), 1)}
    for finding in own.findings:
        which = f"leak {numbers[finding.fingerprint]}" if finding.fingerprint in numbers else finding.severity
        yield from wrapped(f"{which}: {title(finding)} [{finding.fingerprint}]", "- ", "  ")
        if finding.cut is not None:
            yield from wrapped(f"cut `{cut_name(finding.cut)}` {line_to_edit(finding)}".rstrip(), "  ")
        yield from wrapped(_seen(finding, number), "  ")
    if own.findings:
        yield ""


def _seen(finding: Finding, number: int) -> str:
    seen = sorted((s for s in finding.sightings if s.rank == number), key=lambda sighting: sighting.step)
    return ", ".join(f"step {sighting.step}: {bytes_text(sighting.bytes)}" for sighting in seen)
