"""Source lines of a finding, the stretches of its reference path, and where it was seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise, zip_longest
from statistics import median

from leakscope.findings.model import Finding
from leakscope.findings.naming import place_of
from leakscope.report.finding_text import closes_cycle, line_to_edit
from leakscope.run.model import Run
from leakscope.units import ranks_text

PLACES_SHOWN = 3
"""Maximum number of allocation sites shown; `findings.json` has all."""


def allocation_sites(run: Run, finding: Finding) -> tuple[tuple[str, str], ...]:
    """(place, source line) of what made most of its tensors; a line that stands below the next place too is "" here."""
    places = finding.made_at[:PLACES_SHOWN]
    lines = [source_line(run, place) for place in places]
    shown = ["" if line == after else line for line, after in pairwise([*lines, ""])]
    return tuple(zip(places, shown, strict=True))


@dataclass(frozen=True)
class RecordedLine:
    """A line of source recorded with the run."""

    name: str
    """Key of its file in `Run.sources`."""
    number: int
    text: str


def recorded_line(run: Run, where: str) -> RecordedLine | None:
    """The source line that `train.py:12 main` points at; None if the source was not recorded."""
    place = place_of(where)
    if place is None:
        return None
    name = place.file
    ends = [kept for kept in run.sources if kept.endswith("/" + name) or name.endswith("/" + kept)]
    name = name if name in run.sources or len(ends) != 1 else ends[0]
    lines = run.sources.get(name, ())
    return RecordedLine(name, place.line, lines[place.line - 1]) if place.line <= len(lines) else None


def source_line(run: Run, where: str) -> str:
    """The text of that line; "" if the source was not recorded."""
    line = recorded_line(run, where)
    return "" if line is None else line.text.strip()


def adding_lines(run: Run, finding: Finding) -> tuple[tuple[str, str], ...]:
    """(place, source line) of what adds to the cut container, first one for each reference; without the line reported
    with the cut.
    """
    references = finding.cut.references if finding.cut is not None else ()
    rounds = zip_longest(*(reference.added_at for reference in references))
    places = dict.fromkeys(place for each in rounds for place in each if place is not None)
    with_cut = finding.cut.where if finding.cut is not None else ""
    shown = [place for place in places if place != with_cut][: max(PLACES_SHOWN, len(references))]
    return tuple((place, source_line(run, place)) for place in shown)


class LineMark(StrEnum):
    """The reason that a line is shown."""

    HOLDS = "holds"
    """Creates the object whose reference is to be cut."""
    ADDS = "adds"
    """Adds to the container to cut."""
    NEAR = ""
    """Context."""


@dataclass(frozen=True)
class ExcerptLine:
    """A line of the user's source."""

    number: int
    text: str
    """Without common indentation and tabs."""
    mark: LineMark
    to_edit: bool = False
    """The line to edit first."""


@dataclass(frozen=True)
class Excerpt:
    """Lines of one file in order, not necessarily consecutive."""

    file: str
    """The file's name as in places: `train.py`."""
    lines: tuple[ExcerptLine, ...]


def excerpts(run: Run, finding: Finding, around: int = 1) -> tuple[Excerpt, ...]:
    """The lines at the cut and those that add to it, with `around` lines of context.

    One excerpt for each file, that of the cut first; () without kept source.
    """
    begin = recorded_line(run, line_to_edit(finding))
    marked: dict[str, dict[int, LineMark]] = {}
    for where, mark in _marked_places(run, finding):
        place = recorded_line(run, where)
        if place is not None:
            marked.setdefault(place.name, {}).setdefault(place.number, mark)
    first = {file: begin.number for file in marked if begin is not None and begin.name == file}
    return tuple(
        Excerpt(file, _lines(run.sources[file], of_file, around, first.get(file))) for file, of_file in marked.items()
    )


def _marked_places(run: Run, finding: Finding) -> Iterator[tuple[str, LineMark]]:
    for reference in finding.cut.references if finding.cut is not None else ():
        yield reference.where, LineMark.HOLDS
    for where, _ in adding_lines(run, finding):
        yield where, LineMark.ADDS
    if finding.cut is not None and finding.cut.is_of_library:
        yield line_to_edit(finding), LineMark.HOLDS


def _lines(
    source: tuple[str, ...], marks: dict[int, LineMark], around: int, first: int | None
) -> tuple[ExcerptLine, ...]:
    near = {at for number in marks for at in range(number - around, number + around + 1)}
    shown = sorted(at for at in near if at in marks or (0 < at <= len(source) and source[at - 1].strip()))
    texts = [" ".join(source[at - 1].expandtabs(4).rstrip().splitlines()) for at in shown]
    indent = min((len(text) - len(text.lstrip()) for text in texts if text), default=0)
    return tuple(
        ExcerptLine(at, text[indent:], marks.get(at, LineMark.NEAR), at == first)
        for at, text in zip(shown, texts, strict=True)
    )


@dataclass(frozen=True)
class Stretch:
    """Consecutive hops of a trace."""

    hops: range
    """Their positions."""
    is_folded: bool
    """Whether it is collapsed at first."""


def folded_trace(finding: Finding, least: int = 2) -> tuple[Stretch, ...]:
    """The whole trace, in which the root, each reference to cut with its referent, the closing of a cycle, and the
    memory are visible; `least` or more hops in between are folded.
    """
    last = len(finding.trace) - 1
    cuts = [reference.trace for reference in finding.cut.references] if finding.cut is not None else []
    seen = {0, last, *(at for cut in cuts if cut is not None for at in (cut, cut + 1))}
    seen |= {at for at in range(last) if closes_cycle(finding, at)}
    stretches = []
    for is_seen, hops in groupby(range(len(finding.trace)), lambda at: at in seen):
        positions = list(hops)
        stretches.append(Stretch(range(positions[0], positions[-1] + 1), not is_seen and len(positions) >= least))
    return tuple(stretches)


FEW = 8
"""Maximum number of ranks listed individually (heuristic)."""
_FAR = 2.0
"""Ratio to the median above or below which a rank is listed as an outlier (heuristic)."""


@dataclass(frozen=True)
class Seen:
    """Ranks that saw a leak in the same snapshots."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    """Bytes of each rank at each step."""

    def at_each_step(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(step, bytes of each rank, the smallest first)."""
        columns = (tuple(sorted(column)) for column in zip(*self.sizes, strict=True))
        return tuple(zip(self.steps, columns, strict=True))

    def rows(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """(label, bytes at each step): each rank, or statistics and outliers if there are many."""
        each = self.each()
        columns = [column for _, column in self.at_each_step()]
        if len(self.ranks) <= FEW:
            return each
        if len(each) == 1:
            return (("on each rank", each[0][1]), ("total", tuple(map(sum, columns))))
        in_all = (("smallest", min), ("median", median), ("largest", max), ("total", sum))
        far = tuple((f"rank {rank}", self.sizes[self.ranks.index(rank)]) for rank in self._far()[:FEW])
        return (*((name, tuple(of(column) for column in columns)) for name, of in in_all), *far)

    def each(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(ranks, bytes at each step), with equal ranks merged."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for rank, sizes in zip(self.ranks, self.sizes, strict=True):
            alike.setdefault(sizes, []).append(rank)
        return tuple((ranks_text(ranks), sizes) for sizes, ranks in alike.items())

    def _far(self) -> list[int]:
        """Ranks far from the median at the last snapshot."""
        last = [sizes[-1] for sizes in self.sizes]
        middle = median(last)
        found = zip(self.ranks, last, strict=True)
        return [rank for rank, size in found if size > _FAR * middle or size * _FAR < middle]


def seen_together(finding: Finding) -> tuple[Seen, ...]:
    """Ranks grouped by the snapshots in which they saw it, ordered by the smallest rank."""
    of_ranks: dict[int, dict[int, int]] = {}
    for sighting in finding.sightings:
        of_ranks.setdefault(sighting.rank, {})[sighting.step] = sighting.bytes
    by_steps: dict[tuple[int, ...], dict[int, tuple[int, ...]]] = {}
    for rank in sorted(of_ranks):
        seen = of_ranks[rank]
        steps = tuple(sorted(seen))
        by_steps.setdefault(steps, {})[rank] = tuple(seen[step] for step in steps)
    return tuple(Seen(tuple(sizes), steps, tuple(sizes.values())) for steps, sizes in by_steps.items())
