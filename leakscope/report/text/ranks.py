"""How did the ranks end, and what did they hold? Those that did the same in a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.per_rank import RankStory
from leakscope.report.rank_groups import RankGroup
from leakscope.report.rank_notes import all_of, notes_of, notes_together
from leakscope.report.text.lines import Line, wrapped
from leakscope.report.text.rank_table import Row, table
from leakscope.report.wording import count_span, leaks, ranks_text

_ROWS = 16
"""Groups of ranks, chosen, that have a line; and sets of ranks whose notes are told."""
_WHOLE = 3
"""Groups of ranks that ended badly, chosen, of which more than a line is told."""


def rank_lines(run: Run, findings: Findings, groups: Sequence[RankGroup], verbose: bool = False) -> Iterator[Line]:
    """How the ranks ended, a table, and what else is known of them; nothing where the report has said it all.

    A line for each group of ranks that did the same; `verbose`: for each rank.
    """
    stories = sorted((story for group in groups for story in group.stories), key=lambda story: story.number)
    lines = list(_ends(groups, verbose))
    if verbose or any(story.counted_bytes is not None for story in stories):
        lines += [*([""] if lines else []), *_table(findings, groups, stories, verbose)]
    lines += _told_of_each(groups, verbose)
    if run.notes:
        lines += ["", "  the run", *(line for text in run.notes for line in wrapped(text, "    ", "      "))]
    if lines:
        yield from ("Ranks", "=====", *lines)


def _ends(groups: Sequence[RankGroup], verbose: bool) -> Iterator[Line]:
    alone = len(groups) == 1 and len(groups[0].ranks) == 1
    badly = [group for group in groups if group.badly]
    for place, group in enumerate(badly if verbose else badly[:_ROWS]):
        yield from _badly(group, alone, place < _WHOLE, verbose)
    if len(badly) > _ROWS and not verbose:
        ranks = ranks_text(sorted(rank for group in badly[_ROWS:] for rank in group.ranks))
        yield from wrapped(f"! {ranks} ended badly too: --rank N tells of each", "", "    ")
    well: dict[tuple[str, ...], list[RankStory]] = {}
    for group in groups:
        if not group.badly:
            well.setdefault(group.story.ending, []).extend(group.stories)
    for stories in well.values():
        yield from _well(sorted(stories, key=lambda story: story.number), len(well) == 1 and not badly)
    for group in groups:
        if group.apart:
            yield from wrapped(f"! {ranks_text(group.ranks)} {', '.join(group.apart)}", "", "    ")


def _badly(group: RankGroup, alone: bool, whole: bool, verbose: bool) -> Iterator[Line]:
    """Ranks that ended badly, in the words of the first of them."""
    story = group.story
    told = alone and story.opens_the_report and not verbose
    if not told:
        yield from wrapped(f"! {ranks_text(group.ranks)} {story.ended}", "", "    ")
        if len({(each.ended, each.error) for each in group.stories}) > 1:
            yield from wrapped(f"(as rank {story.number} says it; the others' words differ)", "    ")
    if not whole and not verbose:
        return
    yield from error_lines(story, stack=not (told and story.printed_by_python), log=not told)


def error_lines(story: RankStory, stack: bool, log: bool) -> Iterator[Line]:
    """What a rank said of its end beside how it ended."""
    if story.error:
        yield from wrapped(story.error, "    error: ", "           ")
    for line in story.stack if stack else ():
        yield from wrapped(line, "    | ", "    | ")
    if story.log and log and (story.badly or story.error):
        yield from wrapped(story.log, "    log: ", "         ")


def _well(stories: Sequence[RankStory], are_all: bool) -> Iterator[Line]:
    first = stories[0]
    many = len(stories) > 1
    who = f"all {len(stories)} ranks" if are_all and many else ranks_text(story.number for story in stories)
    other = [story.steps for story in stories if story.steps != first.steps]
    more = f", some of them after {count_span(other)}" if other else ""
    yield from wrapped(f"  {who} {first.ended}{more}", "", "    ")
    for story in stories:
        yield from error_lines(story, stack=True, log=True)


def _table(
    findings: Findings, groups: Sequence[RankGroup], stories: Sequence[RankStory], verbose: bool
) -> Iterator[Line]:
    numbers = {finding.fingerprint: number for number, finding in enumerate(leaks(findings), 1)}
    if verbose:
        yield from table([Row((story,)) for story in stories], whole=True)
        return
    rows = [
        Row(group.stories, tuple(sorted(numbers[print_] for print_ in group.fingerprints if print_ in numbers)))
        for group in groups
    ]
    yield from table(rows[:_ROWS], whole=False)
    if rest := groups[_ROWS:]:
        ranks = ranks_text(sorted(rank for group in rest for rank in group.ranks))
        yield from wrapped(f"and {len(rest)} more groups, {ranks}: --verbose tells of each", "")


def _told_of_each(groups: Sequence[RankGroup], verbose: bool) -> Iterator[Line]:
    """What is known of ranks beside their figures."""
    together = notes_together(groups, all_of if verbose else notes_of)
    shown = together if verbose else together[:_ROWS]
    for ranks, texts in sorted(shown):
        yield ""
        yield from wrapped(ranks_text(ranks), "  ", "    ")
        for text in texts:
            yield from wrapped(text, "    ", "      ")
    if rest := sorted({rank for ranks, _ in together[len(shown) :] for rank in ranks}):
        yield ""
        yield from wrapped(f"notes on {ranks_text(rest)} are left out: --rank N tells those of a rank", "  ", "    ")
