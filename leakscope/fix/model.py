"""Candidate edits of source files, and how several combine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True, order=True)
class Change:
    """The replacement of some consecutive lines of one file; an insertion replaces none."""

    file: str
    """Name of the file, as in `Run.sources`."""
    first: int
    """Number of the first replaced line, from 1; an insertion is made before it."""
    removed: tuple[str, ...]
    """The replaced lines, without their ends."""
    added: tuple[str, ...]

    @property
    def end(self) -> int:
        """Number of the line after the last replaced one."""
        return self.first + len(self.removed)

    def conflicts(self, other: Change) -> bool:
        """Whether both change a line in common; what is inserted at the same place is combined."""
        if self == other or self.file != other.file:
            return False
        return self.first < other.end and other.first < self.end  # an insertion at the border of the other is none


@dataclass(frozen=True)
class Candidate:
    """One way to fix a leak, in one or several places."""

    title: str
    """What it does, for the table of tries: "`.detach()` at train.py:31"."""
    changes: tuple[Change, ...]

    def conflicts(self, others: Iterable[Candidate]) -> bool:
        """Whether it cannot be combined with all of the others."""
        theirs = [change for other in others for change in other.changes]
        return any(mine.conflicts(change) for mine in self.changes for change in theirs)

    @property
    def where(self) -> str:
        """Its first place: `train.py:31`."""
        return f"{self.changes[0].file}:{self.changes[0].first}"


def candidate_of(title: str, before: Mapping[str, str], after: Mapping[str, str]) -> Candidate | None:
    """The candidate that turns some files into others.

    Args:
        title: What it does.
        before: File name to text.
        after: File name to new text, for the files that change.

    Returns:
        The candidate, None if nothing changes.

    """
    changes = tuple(change for file, text in after.items() for change in _changes(file, before[file], text))
    return Candidate(title, changes) if changes else None


def _changes(file: str, before: str, after: str) -> list[Change]:
    old, new = before.split("\n"), after.split("\n")
    steps = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [Change(file, a + 1, tuple(old[a:b]), tuple(new[c:d])) for kind, a, b, c, d in steps if kind != "equal"]


def _indent(change: Change) -> int:
    """Spaces before the first inserted line: of two at one place the end of the inner block comes first."""
    first = next((line for line in change.added if line.strip()), "").expandtabs()
    return len(first) - len(first.lstrip())


def applied(candidates: Sequence[Candidate], texts: Mapping[str, str]) -> dict[str, str]:
    """The files with all candidates applied.

    Args:
        candidates: Candidates without conflicts.
        texts: File name to text.

    Returns:
        File name to new text, for the files that change.

    """
    distinct = {change for candidate in candidates for change in candidate.changes}
    order = [(change.first, bool(change.removed), -_indent(change), change) for change in distinct]
    changes = [change for *_, change in sorted(order, reverse=True)]
    lines: dict[str, list[str]] = {}
    for change in changes:  # from the last to the first, so that line numbers stay valid
        of_file = lines.setdefault(change.file, texts[change.file].split("\n"))
        of_file[change.first - 1 : change.end - 1] = change.added
    return {file: "\n".join(of_file) for file, of_file in lines.items()}
