"""Source excerpts of a finding: the cut, the lines that add to it, the suggested fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import ndiff
from enum import StrEnum
from itertools import groupby, zip_longest

from leakscope.findings.model import Finding, Suggestion
from leakscope.report.messages.held import line_to_edit
from leakscope.report.trace_marks import PLACES_SHOWN, closes_cycle, kept_line, source_line
from leakscope.run.model import Run

ADDED_AT = "Added at (from static analysis):"
"""Label of lines found by static analysis, which were not observed to run."""
SUGGESTION = "Suggested fix (unverified):"
"""Label of a suggested fix."""


def edit_lines(suggestion: Suggestion) -> tuple[str, ...]:
    """The edit as in `diff`: removed lines with a `-`, added ones with a `+`, and `@@` with the place before those of a
    further place.
    """
    first, *others = suggestion.places
    return (*_compared(first), *(line for one in others for line in (f"@@ {one.where}", *_compared(one))))


def _compared(edit: Suggestion) -> Iterator[str]:
    compared = ndiff(edit.before.splitlines(), edit.after.splitlines())
    return (line.rstrip() for line in compared if not line.startswith("?"))


def edit_text(finding: Finding) -> str:
    """The suggested fix as a sentence without full stop; "" if there is none."""
    edit = finding.suggestion
    if edit is None:
        return ""
    each = (
        f"at {one.where}, `{_in_a_line(one.before)}` -> {f'`{_in_a_line(one.after)}`' if one.after else 'nothing'}"
        for one in edit.places
    )
    return f"{SUGGESTION} {'; and '.join(each)}"


def _in_a_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines())


def adding_lines(run: Run, finding: Finding) -> tuple[tuple[str, str], ...]:
    """(place, source line) of what adds to the cut container, first one for each reference; without the line reported
    with the cut.
    """
    references = finding.cut.references if finding.cut is not None else ()
    rounds = zip_longest(*(reference.added_at for reference in references))
    places = dict.fromkeys(place for each in rounds for place in each if place is not None)
    told = finding.cut.where if finding.cut is not None else ""
    shown = [place for place in places if place != told][: max(PLACES_SHOWN, len(references))]
    return tuple((place, source_line(run, place)) for place in shown)


class LineMark(StrEnum):
    """The reason that a line is shown."""

    HOLDS = "holds"
    """Creates the object whose reference is to be cut."""
    ADDS = "adds"
    """Adds to the container to cut."""
    EDIT = "edit"
    """Changed by the suggested fix."""
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
    """The lines at the cut, those that add to it, and those of the suggested edit, with `around` lines of context.

    One excerpt for each file, that of the cut first; () without kept source.
    """
    begin = kept_line(run, line_to_edit(finding))
    marked: dict[str, dict[int, LineMark]] = {}
    for where, mark in _marked_places(run, finding):
        place = kept_line(run, where)
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
    if finding.suggestion is not None:
        yield from ((one.where, LineMark.EDIT) for one in finding.suggestion.places)
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
