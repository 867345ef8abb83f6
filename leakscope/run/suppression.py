"""Baselines and suppression files that are kept with a run."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from typing import Any

from leakscope.errors import LeakscopeError
from leakscope.originals import Path
from leakscope.run.descriptors import write_whole
from leakscope.run.rows import from_json, rare, to_json
from leakscope.run.secrets import json_of

NAME = "suppressions.json"
"""File beside `run.json` if the run has a baseline or suppressions."""
_ALL = re.compile(r"[*\s]+")
"""A pattern that would suppress everything."""


@dataclass(frozen=True)
class Suppression:
    """A known finding that does not affect the verdict."""

    pattern: str
    """Fingerprint or rule name; or a holder or a place as reported: `losses in main()`, `train.py:31`. `*` matches any
    text.
    """
    reason: str = rare("")
    """Why it is accepted, in its author's words."""
    until: str = rare("")
    """Last day on which it applies, `2027-01-31`; "" if unlimited."""
    source: str = rare("")
    """The file that contains it; "" if it comes from a program."""
    line: int = rare(0)
    """Its line in the file; 0 for a baseline."""
    is_baseline: bool = rare(False)
    """Whether it comes from an earlier run."""
    was_leak: bool = rare(True)
    """For a baseline, whether the earlier run reported it as a leak rather than a note; a note that becomes a leak is
    new.
    """

    def has_expired(self, day: str) -> bool:
        """Whether the last day is before this one, both as `2027-01-31`; False if the date is unknown."""
        return bool(self.until and day and self.until < day)


def suppressions_in(text: str, source: str) -> tuple[Suppression, ...]:
    """Parse `PATTERN [until 2027-01-31] [# reason]`, one per line.

    Raises LeakscopeError with file and line for an invalid one.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        entry, reason = (part.strip() for part in (*re.split(r"(?:^|\s)#", line, maxsplit=1), "")[:2])
        if not entry:
            continue
        pattern, *until = re.split(r"(?:^|\s+)until(?:\s+|$)", entry)
        if not pattern or _ALL.fullmatch(pattern):
            raise LeakscopeError(f"{source}, line {number}: pattern `{pattern}` would suppress every leak")
        if until and not (len(until) == 1 and _is_day(until[0])):
            raise LeakscopeError(f"{source}, line {number}: invalid date; write `{pattern} until 2027-01-31`")
        found.append(Suppression(pattern, reason, until[0] if until else "", source, number))
    return tuple(found)


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def known_before(data: Any, source: str) -> tuple[Suppression, ...]:
    """The findings in an earlier run's `findings.json`, including those suppressed there.

    Raises ValueError if it is not such a file.
    """
    try:
        listed = [*data["findings"], *data.get("suppressed", ())]
        return tuple(
            Suppression(
                _text(f["fingerprint"]), source=source, is_baseline=True, was_leak=f.get("severity", "leak") == "leak"
            )
            for f in listed
        )
    except (AttributeError, KeyError, TypeError):
        raise ValueError("it contains no findings") from None


def _text(value: object) -> str:
    """A text; raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError
    return value


def keep_suppressions(folder: Path, suppressions: Collection[Suppression]) -> None:
    """Write them into a run's folder, replacing those of an earlier run. Raises OSError."""
    if suppressions:
        write_whole(folder / NAME, json_of([to_json(one) for one in suppressions]))
    else:
        (folder / NAME).unlink(missing_ok=True)


def kept_suppressions(data: Any) -> tuple[Suppression, ...]:
    """Read those kept with a run. Raises ValueError if one is damaged."""
    if not isinstance(data, list):
        raise ValueError("it is not a list")
    return tuple(from_json(Suppression, item) for item in data)
