"""What does the user's own source say: which lines add to what is to be cut, and which edit would mend it?"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import ndiff
from itertools import zip_longest

from leakscope.findings.model import Finding, Suggestion
from leakscope.record.model import Run
from leakscope.report.marks import PLACES_SHOWN, source_line

ADDED_AT = "added at (found in the source):"
"""Opens the lines that put something there; nobody has seen them run."""
SUGGESTION = "suggestion (advice, not tried):"
"""Opens an edit."""


def edit_lines(suggestion: Suggestion) -> tuple[str, ...]:
    """The edit as `diff` writes it: lines that go after a `-`, lines that come after a `+`, those that stay after
    neither, and `@@` with the place before those of a further place.
    """
    first, *others = suggestion.places
    return (*_compared(first), *(line for one in others for line in (f"@@ {one.where}", *_compared(one))))


def _compared(edit: Suggestion) -> Iterator[str]:
    compared = ndiff(edit.before.splitlines(), edit.after.splitlines())
    return (line.rstrip() for line in compared if not line.startswith("?"))


def edit_text(finding: Finding) -> str:
    """The edit as a sentence without its full stop; "" where there is none."""
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
    """(place, source line) of what puts something where the cut is, one of each reference first; not the line that is
    told with the cut.
    """
    references = finding.cut.references if finding.cut is not None else ()
    rounds = zip_longest(*(reference.added_at for reference in references))
    places = dict.fromkeys(place for each in rounds for place in each if place is not None)
    told = finding.cut.where if finding.cut is not None else ""
    shown = [place for place in places if place != told][: max(PLACES_SHOWN, len(references))]
    return tuple((place, source_line(run, place)) for place in shown)
