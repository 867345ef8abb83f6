"""How did each rank end, and what did it hold?"""

from __future__ import annotations

from collections.abc import Iterator

from leakscope.findings.model import Findings
from leakscope.record.model import Run
from leakscope.report.cleaning import one_line
from leakscope.report.per_rank import RankStory, rank_stories
from leakscope.report.text.lines import wrapped
from leakscope.report.wording import error_text
from leakscope.units import bytes_text


def rank_lines(run: Run, findings: Findings) -> Iterator[str]:
    """All ranks: how they ended, a table, and what else is known of each."""
    stories = rank_stories(run, findings)
    yield "Ranks"
    yield "====="
    for story in stories:
        yield from _ended(story)
    yield ""
    yield from _table(stories)
    for story in stories:
        yield from _figures(story)


def _ended(story: RankStory) -> Iterator[str]:
    mark = "!" if story.badly else " "
    yield from wrapped(f"{mark} rank {story.number} {story.ended}", "", "    ")
    if error := error_text(story.ended, story.error):
        yield from wrapped(error, "    error: ", "           ")
    for line in story.stack:
        yield from wrapped(line, "    | ", "    | ")
    if story.log and (story.badly or story.error):
        yield from wrapped(story.log, "    log: ", "         ")


def _table(stories: tuple[RankStory, ...]) -> Iterator[str]:
    heads = ("rank", "steps", "counted", "growth/step", "explained", "leaked", "peak", "gc would free", "gc freed")
    rows = [
        (
            str(s.number),
            str(s.steps),
            _known(s.counted_bytes),
            _known(s.growth_per_step),
            _known(s.explained_bytes),
            _known(s.leaked_bytes),
            _known(s.summary.peak_bytes),
            _known(s.predicted_bytes),
            _known(s.gc_freed_bytes),
        )
        for s in stories
    ]
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    yield "(- is unknown; counted: what the allocator has out, explained: the storages found)"


def _known(count: float | None) -> str:
    return "-" if count is None else bytes_text(count)


def _figures(story: RankStory) -> Iterator[str]:
    categories = sorted(story.categories.items(), key=lambda item: (-item[1], item[0]))
    texts = [
        ", ".join(f"{one_line(name)} {bytes_text(count)}" for name, count in categories if count),
        story.gc,
        story.own_collections,
        story.looking,
        *story.notes,
    ]
    texts = [text for text in texts if text]
    if texts:
        yield ""
        yield f"  rank {story.number}"
        for text in texts:
            yield from wrapped(text, "    ", "      ")
