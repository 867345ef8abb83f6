"""The text report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from leakscope.findings.gc_advice import FreezeSaves
from leakscope.findings.model import Finding, Findings, Reason, Why
from leakscope.report.finding_text import avoidable_text, held_text, title
from leakscope.report.growth_text import kinds_text, ledger_table
from leakscope.report.memory_snapshot import device_lines, device_text
from leakscope.report.rank_text import clock_text, failure_text, hung_text, within_text
from leakscope.report.ranks import RankGroup, RankReport, rank_groups, snapshots_text
from leakscope.report.rendering import WIDTH, Cropped, Line, cleaned, field_lines, short_field, text_page, wrapped
from leakscope.report.run_text import loader_in_short, run_text
from leakscope.report.text.finding import brief_finding_lines, finding_lines
from leakscope.report.text.ranks import ledger_lines, rank_lines, small_print, worker_lines
from leakscope.report.verdict_text import (
    avoidable,
    cut_in_short,
    exit_text,
    first_cut,
    growing_text,
    library,
    next_text,
    notes,
    of_block,
    steps_of,
    why_text,
)
from leakscope.run.model import Run
from leakscope.units import bytes_span, bytes_text, plural, ranks_text

AVOIDABLE_SHOWN = 12
"""Maximum number of lines, the largest first (heuristic: half a screen); the page lists all."""


def avoidable_lines(run: Run, findings: Findings) -> Iterator[Line]:
    """One line per holder of avoidable memory, the largest first."""
    found = avoidable(findings)
    if not found:
        return
    heading = f"Avoidable memory ({len(found)}): not a leak"
    yield from (heading, "=" * len(heading))
    for finding in found[:AVOIDABLE_SHOWN]:
        yield from wrapped(avoidable_text(run, finding), "- ", "  ")
    if len(found) > AVOIDABLE_SHOWN:
        yield f"- and {len(found) - AVOIDABLE_SHOWN} smaller ones: see report.html"
    yield ""


def verdict_lines(run: Run, findings: Findings, groups: Sequence[Sequence[int]] = ()) -> Iterator[Line]:
    """The head of a report: how the run failed, if it did, the verdict, the reason, and the next step.

    `groups`: ranks that behaved the same, of which one is shown.
    """
    name, failure = failure_text(run)
    if failure:
        yield from field_lines(name, failure)
    distinct = findings.leaks
    count = f": {plural(len(distinct), 'distinct leak')}" if distinct else ""
    nothing = failure and not steps_of(run) and not distinct
    count = ": nothing to judge before the first step" if nothing else count
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
    if not nothing and (step := next_text(run, findings)):
        yield from field_lines("Next", step)


def last_lines(run: Run, findings: Findings) -> Iterator[Line]:
    """The verdict repeated as the last line."""
    distinct = findings.leaks
    what = f": {cut_in_short(distinct)}" if distinct else ""
    what = f": {grows}" if (grows := growing_text(run, findings)) else what
    if isinstance(findings.why, Why) and findings.why.reason == Reason.SUPPRESSED:
        what = f": no new leak, {plural(findings.why.count, 'known leak')} suppressed"
    text = f"Verdict: {findings.verdict.upper()}{what}{exit_text(run, findings)}"
    yield from wrapped(text, "", "  ")


def about_text(run: Run, whole: bool = True) -> str:
    """`train.py: 2 ranks, 12 steps by Adam.step, 4 snapshots (960.0 ms), cpu, torch 2.13.0, native heap reader`; not
    `whole`: up to the device.
    """
    steps = f"{plural(steps_of(run), 'step')} {clock_text(run)}".strip()
    of_ranks = (plural(max(len(run.ranks), run.expected_ranks), "rank"), steps)
    of_run = (*(() if of_block(run) else of_ranks), snapshots_text(run), run.device)
    reader = f"{run.heap_reader} heap reader" if run.heap_reader else ""
    parts = (*of_run, *((f"torch {run.torch}" if run.torch else "", reader) if whole else ()))
    return f"{' '.join(run.command)}: {', '.join(part for part in parts if part)}"


COLUMN = 11
"""Width of the column of names."""
SHOWN = 3
"""Maximum number of findings that do not affect the verdict, and of notes of ranks (heuristic)."""
GROUPS = 6
"""Maximum number of groups of ranks with a line each; more are shown as a table (heuristic)."""
LINES = {"Run": 1, "Page": 4, "More": 4, "Also grows": 4}
"""Maximum lines of a field, where it is not two."""
_FIGURES: Mapping[str, Callable[[RankReport], float | None]] = {
    "allocated": lambda report: report.counted_bytes,
    "more each step": lambda report: max(report.growth_per_step or 0, 0),
    "leaked": lambda report: report.leaked_bytes,
}
"""Figures of ranks by their label."""


def closing_lines(run: Run, findings: Findings, groups: tuple[RankGroup, ...], page: str) -> Iterator[Line]:
    """The footer: growth, avoidable memory, ranks, and where to find details."""
    if findings.avoidable_over is not None:  # it decides
        yield from avoidable_lines(run, findings)
    at_length = len(groups) > GROUPS or any(group.badly for group in groups)
    for name, text in (
        *_growth(findings),
        *_avoidable(findings),
        *_listed("Library", library(findings), findings),
        *_listed("Notes", notes(findings), findings),
        *_workers(findings),
        *(("Also grows", text) for text in run_text(findings.also_grows, [group.ranks for group in groups])[:SHOWN]),
        *_collecting(findings),
        ("Device", device_text(run)),
        *(() if at_length or of_block(run) else _ranks(run, groups)),
        ("Run", about_text(run, whole=False)),
        *_more(run, page),
    ):
        if text:
            yield short_field(name, text, LINES.get(name, 2), column=COLUMN)
    if at_length:
        yield from ("", *rank_lines(run, groups))


def _more(run: Run, page: str) -> Iterator[tuple[str, str]]:
    if run.folder:
        command = f"leakscope report {shlex.quote(run.folder)} --verbose{', or --rank N' if len(run.ranks) > 1 else ''}"
        yield ("Page", f"{page}, or as text: {command}") if page else ("More", command)


def _growth(findings: Findings) -> Iterator[tuple[str, str]]:
    """The growth of the rank that grew most."""
    tables = [grown for grown, _, _ in ledger_table(findings)]
    if tables:
        most = max(tables, key=lambda grown: (grown.bytes, -grown.rank))
        rank = f" on rank {most.rank}" if len(tables) > 1 else ""
        steps = f"from step {most.from_step} to {most.to_step}"
        yield "Growth", f"{bytes_text(most.bytes)} {steps}{rank}: {kinds_text(most.lines)}"


def _avoidable(findings: Findings) -> Iterator[tuple[str, str]]:
    found = avoidable(findings)
    if found:
        many = f" by {len(found)} holders" if len(found) > 1 else ""
        size = bytes_text(sum(finding.retained_bytes for finding in found))
        yield "Avoidable", f"{size}{many}: {title(found[0])}"


def _listed(name: str, found: tuple[Finding, ...], findings: Findings) -> Iterator[tuple[str, str]]:
    """One line per finding, or only their number if there are leaks."""
    if found and findings.leaks:
        yield name, f"{plural(len(found), 'finding')} (not counted as a leak)"
        return
    for index, finding in enumerate(found[:SHOWN]):
        text = f"{title(finding)}; {held_text(finding)}; {finding.rule} [{finding.fingerprint}]"
        yield name if index == 0 else "", text
    if len(found) > SHOWN:
        yield "", f"and {len(found) - SHOWN} more"


def _workers(findings: Findings) -> Iterator[tuple[str, str]]:
    """The loader whose workers used the most memory."""
    found = [loader for loaders in findings.loaders.values() for loader in loaders]
    if found:
        largest = max(found, key=lambda loader: loader.unique_bytes)
        more = f"; and {plural(len(found) - 1, 'more loader')}" if len(found) > 1 else ""
        yield "Workers", f"{loader_in_short(largest)}{more}"


def _collecting(findings: Findings) -> Iterator[tuple[str, str]]:
    """The time that `gc.freeze` would save, unless there are leaks."""
    saves = [fact for fact in findings.gc_advice if isinstance(fact, FreezeSaves) and fact.share is not None]
    if saves and not findings.leaks:
        yield "GC", run_text(saves)[0]


def _ranks(run: Run, groups: tuple[RankGroup, ...]) -> Iterator[tuple[str, str]]:
    """One line per group of ranks, then notes on their recording."""
    texts = [_group_text(run, group) for group in groups] + _notes_of_ranks(run, groups)
    for index, text in enumerate(texts):
        yield "" if index else "Ranks", text


def _group_text(run: Run, group: RankGroup) -> str:
    """`all 2 ranks stopped by leakscope after 12 steps; 151.39 to 151.44 MiB allocated`."""
    count = len(group.ranks)
    who = f"{ranks_text(group.ranks)} "
    if count == len(run.ranks):
        who = "" if count == 1 else f"all {count} ranks "
    names = ["allocated"] if count == len(run.ranks) else [*_FIGURES]
    spans = ((what, [_FIGURES[what](report) or 0 for report in group.reports]) for what in names)
    figures = ", ".join(f"{bytes_span(sizes)} {what}" for what, sizes in spans if any(sizes))
    return "; ".join(filter(None, (f"{who}{group.report.ended}", figures, *group.apart)))


def _notes_of_ranks(run: Run, groups: tuple[RankGroup, ...]) -> list[str]:
    ranks: dict[str, list[int]] = {}
    for group in groups:
        for report in group.reports:
            for text in report.notes:
                ranks.setdefault(text, []).append(report.number)
    alone = len(run.ranks) == 1
    of_ranks = (text if alone else f"{ranks_text(sorted(those))}: {text}" for text, those in ranks.items())
    texts = [*run.notes, *of_ranks]
    return [*texts[:SHOWN], *([f"and {plural(len(texts) - SHOWN, 'more note')}"] if len(texts) > SHOWN else [])]


IN_FULL = 3
"""Number of leaks shown in short, half a screen each (heuristic); the rest get one line."""
LISTED = 20
"""Maximum number of leaks listed (heuristic)."""
MIN_IN_TEST = 12
"""Number of consecutive hops from which on a failing test hides them (heuristic: half a screen)."""
HEADINGS = {
    "leak": "Leaks",
    "library": "Held by libraries: not a leak",
    "note": "Notes: too small to judge, or not a leak",
}


def render(run: Run, findings: Findings, verbose: bool = False, width: int = WIDTH, page: str = "") -> str:
    """The report as plain text, so many columns wide, without colour; `page`: where the page of the run lies.

    Without `verbose` it is a screenful: what decides nothing takes a line, and a trace is folded.
    """
    run, findings = cleaned(run), cleaned(findings)
    lines = _whole(run, findings) if verbose else _brief(run, findings, page)
    return text_page(lines, width)


def _brief(run: Run, findings: Findings, page: str) -> Iterator[Line]:
    distinct = findings.leaks
    groups = rank_groups(run, findings)
    alike = [group.ranks for group in groups]
    yield from (*verdict_lines(run, findings, alike), "")
    for number, finding in enumerate(distinct[:IN_FULL], 1):
        yield from (*brief_finding_lines(run, finding, number), "")
    for number, finding in enumerate(distinct[IN_FULL:LISTED], IN_FULL + 1):
        yield Cropped(f"{number}. {bytes_text(finding.retained_bytes)} [{finding.fingerprint}] {title(finding)}")
    if len(distinct) > LISTED:
        yield f"and {plural(len(distinct) - LISTED, 'smaller leak')}"
    if len(distinct) > IN_FULL:
        yield ""
    yield from closing_lines(run, findings, groups, page)
    yield from ("", *small_print(run, findings, verbose=False, groups=alike))
    yield from last_lines(run, findings)


def _whole(run: Run, findings: Findings) -> Iterator[Line]:
    yield from (*verdict_lines(run, findings), *field_lines("Run", about_text(run)))
    yield from (*(field_lines("Folder", run.folder) if run.folder else ()), "")
    yield from _section(run, "leak", findings.leaks, whole=True)
    yield from (*avoidable_lines(run, findings), *ledger_lines(findings, verbose=True))
    yield from worker_lines(findings)
    yield from _aside(run, findings, whole=True)
    yield from (*rank_lines(run, rank_groups(run, findings), verbose=True), "")
    yield from device_lines(run)
    yield from small_print(run, findings, verbose=True)
    yield from last_lines(run, findings)


def render_in_test(run: Run, findings: Findings) -> str:
    """The findings of a failing test, without command and ranks."""
    run, findings = cleaned(run), cleaned(findings)
    distinct = findings.leaks
    lines: list[Line] = []
    if distinct:
        lines += [*field_lines("Next", f"{first_cut(distinct)}."), ""]
    lines += _section(run, "leak", distinct, whole=True, least=MIN_IN_TEST)
    lines += _aside(run, findings, whole=False)
    for text in (text for rank in run.ranks for snapshot in rank.heap_snapshots for text in snapshot.unjudged):
        lines += wrapped(text, "- ", "  ")
    return text_page(lines)


def _aside(run: Run, findings: Findings, whole: bool) -> Iterator[Line]:
    yield from _section(run, "library", library(findings), whole)
    yield from _section(run, "note", notes(findings), whole)


def _section(run: Run, name: str, shown: Sequence[Finding], whole: bool, least: int = 0) -> Iterator[Line]:
    """Findings under a heading, in full if `whole`, else one line each; `least` as in `trace_lines`."""
    if not shown:
        return
    heading = f"{HEADINGS[name]} ({len(shown)})"
    yield from (heading, "=" * len(heading), "")
    for number, finding in enumerate(shown, 1):
        yield from (*finding_lines(run, finding, number, least), "") if whole else _folded(finding)
    if not whole:
        yield ""


def _folded(finding: Finding) -> Iterator[Line]:
    """A finding in one paragraph."""
    yield from wrapped(f"{title(finding)}; {held_text(finding)}; {finding.rule} [{finding.fingerprint}]", "- ", "  ")
