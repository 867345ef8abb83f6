"""What is there to know of ranks beside their figures, said once for all ranks of which it is known?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from leakscope.report.cleaning import one_line
from leakscope.report.per_rank import RankStory
from leakscope.report.rank_groups import RankGroup
from leakscope.report.wording.ended import GARBAGE
from leakscope.units import bytes_text


def notes_together(
    groups: Sequence[RankGroup], texts: Callable[[RankStory], Iterable[str]]
) -> tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]:
    """(ranks, what is known of just these); what is known of a rank that stands for others comes first."""
    first = [group.story for group in groups]
    others = [story for group in groups for story in group.stories[1:]]
    of_ranks: dict[str, list[int]] = {}
    for story in (*first, *sorted(others, key=lambda story: story.number)):
        for text in dict.fromkeys(texts(story)):
            of_ranks.setdefault(text, []).append(story.number)
    by_ranks: dict[tuple[int, ...], list[str]] = {}
    for text, ranks in of_ranks.items():
        by_ranks.setdefault(tuple(sorted(ranks)), []).append(text)
    return tuple((ranks, tuple(told)) for ranks, told in by_ranks.items())


def notes_of(story: RankStory) -> Iterator[str]:
    """What its reader should know."""
    yield from (text for text in story.notes if text)


def all_of(story: RankStory) -> Iterator[str]:
    """All that is known of a rank beside the figures of the table."""
    named = {"leaked": GARBAGE} if not story.leaked_bytes else {}  # nothing was found to leak, so that is all of it
    categories = sorted(story.categories.items(), key=lambda item: (-item[1], item[0]))
    sorted_memory = ", ".join(
        f"{one_line(named.get(name, name))} {bytes_text(count)}" for name, count in categories if count
    )
    of_rank = (sorted_memory, story.gc, story.own_collections, story.looking, *story.notes, *story.not_read)
    yield from (text for text in of_rank if text)
