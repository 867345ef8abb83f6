"""How did each rank end, and what did it hold?"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.cleaning import one_line
from leakscope.report.per_rank import RankStory, rank_stories
from leakscope.report.text.lines import Line, wrapped
from leakscope.units import bytes_text

ALWAYS = 4
"""The first columns of the table; the others stand there where some rank has something in them."""
HEADS = ("rank", "steps", "allocated", "growth/step", "in tensors", "leaked", "peak", "gc would free", "gc freed")
"""Allocated: what the process has of its allocator at the last look. In tensors: of the storages found there."""


def rank_lines(run: Run, findings: Findings, verbose: bool = False) -> Iterator[Line]:
    """All ranks: how they ended, a table, and what else is known of each; nothing where the report has said it all."""
    stories = rank_stories(run, findings)
    lines = list(_ends(stories, verbose))
    if verbose or any(story.counted_bytes is not None for story in stories):
        lines += [*([""] if lines else []), *_table(stories, verbose)]
    for story in stories:
        lines += _figures(story, verbose)
    if run.notes:
        lines += ["", "  the run", *(line for text in run.notes for line in wrapped(text, "    ", "      "))]
    if lines:
        yield from ("Ranks", "=====", *lines)


def _ends(stories: tuple[RankStory, ...], verbose: bool) -> Iterator[Line]:
    if len(stories) > 1 and len({story.ended for story in stories}) == 1 and not any(map(_says_more, stories)):
        yield f"  all {len(stories)} ranks {stories[0].ended}"
        return
    for story in stories:
        told = len(stories) == 1 and story.opens_the_report and not verbose
        if not told:
            yield from wrapped(f"{'!' if story.badly else ' '} rank {story.number} {story.ended}", "", "    ")
        if story.error:
            yield from wrapped(story.error, "    error: ", "           ")
        if not (told and story.printed_by_python):
            for line in story.stack:
                yield from wrapped(line, "    | ", "    | ")
        if story.log and not told and (story.badly or story.error):
            yield from wrapped(story.log, "    log: ", "         ")


def _says_more(story: RankStory) -> bool:
    return story.badly or bool(story.error or story.stack)


def _table(stories: tuple[RankStory, ...], verbose: bool) -> Iterator[Line]:
    sizes = [
        (
            s.counted_bytes,
            s.growth_per_step,
            s.explained_bytes,
            s.leaked_bytes,
            s.summary.peak_bytes,
            s.predicted_bytes,
            s.gc_freed_bytes,
        )
        for s in stories
    ]
    rows = [(str(s.number), str(s.steps), *map(_known, of_rank)) for s, of_rank in zip(stories, sizes, strict=True)]
    shown = [
        column
        for column in range(len(HEADS))
        if verbose or column < ALWAYS or any(of_rank[column - 2] for of_rank in sizes)
    ]
    widths = {column: max(len(row[column]) for row in (HEADS, *rows)) for column in shown}
    for row in (HEADS, *rows):
        yield "  ".join(row[column].rjust(widths[column]) for column in shown)
    if any(row[column] == "-" for row in rows for column in shown):
        yield "(- is unknown)"


def _known(count: float | None) -> str:
    return "-" if count is None else bytes_text(count)


def _figures(story: RankStory, verbose: bool) -> Iterator[Line]:
    categories = sorted(story.categories.items(), key=lambda item: (-item[1], item[0]))
    texts = [
        ", ".join(f"{one_line(name)} {bytes_text(count)}" for name, count in categories if count),
        story.gc,
        story.own_collections,
        story.looking,
    ]
    texts = [text for text in (*(texts if verbose else ()), *story.notes) if text]
    texts += [text for text in story.not_read if text] if verbose else []
    if texts:
        yield ""
        yield f"  rank {story.number}"
        for text in texts:
            yield from wrapped(text, "    ", "      ")
