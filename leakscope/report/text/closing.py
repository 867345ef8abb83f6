"""What is there to know beside the leaks, in a line each?"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from leakscope.findings.memory.gc_advice import FreezeSaves
from leakscope.findings.model import Finding, Findings
from leakscope.record.model import Run
from leakscope.report.per_rank import RankStory
from leakscope.report.rank_groups import RankGroup
from leakscope.report.snapshot.section import device_text
from leakscope.report.text.avoidable import avoidable_lines
from leakscope.report.text.lines import Line, short_field
from leakscope.report.text.ranks import rank_lines
from leakscope.report.text.verdict import about_text
from leakscope.report.wording import (
    avoidable,
    bytes_span,
    held_text,
    kinds_text,
    leaks,
    ledger_table,
    library,
    loader_in_short,
    notes,
    of_block,
    plural,
    ranks_text,
    run_text,
    title,
)
from leakscope.units import bytes_text

COLUMN = 11
"""Columns that the names take."""
SHOWN = 3
"""Findings that decide nothing, and notes of ranks, at most; chosen."""
GROUPS = 6
"""Groups of ranks that have a line each, at most; chosen."""
LINES = {"Run": 1, "Page": 4, "More": 4, "Also grows": 4}
"""Lines of what has not two at the most; chosen."""
_FIGURES: Mapping[str, Callable[[RankStory], float | None]] = {
    "allocated": lambda story: story.counted_bytes,
    "more each step": lambda story: max(story.growth_per_step or 0, 0),
    "leaked": lambda story: story.leaked_bytes,
}
"""What is said of ranks to what it is."""


def closing_lines(run: Run, findings: Findings, groups: tuple[RankGroup, ...], page: str) -> Iterator[Line]:
    """Where the growth went, what could be avoided, how the ranks ended, and where there is more."""
    if findings.avoidable_over is not None:  # it decides
        yield from avoidable_lines(run, findings)
    at_length = len(groups) > GROUPS or any(group.badly for group in groups)
    for name, text in (
        *_growth(findings),
        *_avoidable(findings),
        *_listed("Library", library(findings), findings),
        *_listed("Notes", notes(findings), findings),
        *_workers(findings),
        *_also_grows(findings, [group.ranks for group in groups]),
        *_collecting(findings),
        *_named("Device", device_text(run)),
        *(() if at_length or of_block(run) else _ranks(run, groups)),
        ("Run", about_text(run, whole=False)),
        *_more(run, page),
    ):
        yield short_field(name, text, LINES.get(name, 2), column=COLUMN)
    if at_length:
        yield from ("", *rank_lines(run, findings, groups))


def _more(run: Run, page: str) -> Iterator[tuple[str, str]]:
    if run.folder:
        command = f"leakscope report {shlex.quote(run.folder)} --verbose{', or --rank N' if len(run.ranks) > 1 else ''}"
        yield ("Page", f"{page}, or as text: {command}") if page else ("More", command)


def _named(name: str, text: str) -> Iterator[tuple[str, str]]:
    if text:
        yield name, text


def _growth(findings: Findings) -> Iterator[tuple[str, str]]:
    """Of the rank that grew most."""
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
    """Each; how many they are where there are leaks to mend first."""
    if found and leaks(findings):
        yield name, f"{plural(len(found), 'finding')} beside, no leak"
        return
    for index, finding in enumerate(found[:SHOWN]):
        told = f"{title(finding)}; {held_text(finding)}; {finding.rule} [{finding.fingerprint}]"
        yield name if index == 0 else "", told
    if len(found) > SHOWN:
        yield "", f"and {len(found) - SHOWN} more"


def _workers(findings: Findings) -> Iterator[tuple[str, str]]:
    """The loader whose workers took most."""
    found = [loader for loaders in findings.loaders.values() for loader in loaders]
    if found:
        largest = max(found, key=lambda loader: loader.unique_bytes)
        more = f"; and {plural(len(found) - 1, 'more loader')}" if len(found) > 1 else ""
        yield "Workers", f"{loader_in_short(largest)}{more}"


def _also_grows(findings: Findings, alike: Sequence[Sequence[int]]) -> Iterator[tuple[str, str]]:
    """Each count with what to do; of several at most the first ones."""
    for text in run_text(findings.also_grows, alike)[:SHOWN]:
        yield "Also grows", text


def _collecting(findings: Findings) -> Iterator[tuple[str, str]]:
    """What freezing would save, where that is told and nothing has to be mended first."""
    saves = [fact for fact in findings.gc_advice if isinstance(fact, FreezeSaves) and fact.share is not None]
    if saves and not leaks(findings):
        yield "Collecting", run_text(saves)[0]


def _ranks(run: Run, groups: tuple[RankGroup, ...]) -> Iterator[tuple[str, str]]:
    """Ranks that did the same in a line, then what the reader should know of a rank's recording."""
    told = [_group_text(run, group) for group in groups] + _notes_of_ranks(run, groups)
    for index, text in enumerate(told):
        yield "" if index else "Ranks", text


def _group_text(run: Run, group: RankGroup) -> str:
    """`all 2 ranks stopped by leakscope after 12 steps; 151.39 to 151.44 MiB allocated`."""
    count = len(group.ranks)
    who = f"{ranks_text(group.ranks)} "
    if count == len(run.ranks):
        who = "" if count == 1 else f"all {count} ranks "
    names = ["allocated"] if count == len(run.ranks) else [*_FIGURES]
    spans = ((what, [_FIGURES[what](story) or 0 for story in group.stories]) for what in names)
    figures = ", ".join(f"{bytes_span(sizes)} {what}" for what, sizes in spans if any(sizes))
    return "; ".join(filter(None, (f"{who}{group.story.ended}", figures, *group.apart)))


def _notes_of_ranks(run: Run, groups: tuple[RankGroup, ...]) -> list[str]:
    ranks: dict[str, list[int]] = {}
    for group in groups:
        for story in group.stories:
            for text in story.notes:
                ranks.setdefault(text, []).append(story.number)
    alone = len(run.ranks) == 1
    of_ranks = (text if alone else f"{ranks_text(sorted(those))}: {text}" for text, those in ranks.items())
    told = [*run.notes, *of_ranks]
    return [*told[:SHOWN], *([f"and {plural(len(told) - SHOWN, 'more note')}"] if len(told) > SHOWN else [])]
