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
"""Lies beside `run.json`, where the run was given a baseline or suppressions."""
_ALL = re.compile(r"[*\s]+")
"""A pattern that would set everything apart."""


@dataclass(frozen=True)
class Suppression:
    """One thing that is known and decides no verdict."""

    pattern: str
    """Fingerprint or name of a rule; or what holds the memory, or a place, as told: `losses in main()`,
    `train.py:31`. `*` stands for any text.
    """
    reason: str = rare("")
    """Why it may stay, in its author's words."""
    until: str = rare("")
    """The last day on which it applies, `2027-01-31`; "" where there is none."""
    source: str = rare("")
    """The file that says so; "" where a program does."""
    line: int = rare(0)
    """Its line there; 0 for a baseline."""
    is_baseline: bool = rare(False)
    """An earlier run had it."""
    was_leak: bool = rare(True)
    """Of a baseline: that run told it as a leak, not as a note; what becomes one later is new."""

    def has_expired(self, day: str) -> bool:
        """Whether the last day was before this one, both as `2027-01-31`; not where the day is not known."""
        return bool(self.until and day and self.until < day)


def suppressions_in(text: str, source: str) -> tuple[Suppression, ...]:
    """`PATTERN [until 2027-01-31] [# reason]`, one a line.

    Raises LeakscopeError with file and line where one cannot be taken.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        said, reason = (part.strip() for part in (*re.split(r"(?:^|\s)#", line, maxsplit=1), "")[:2])
        if not said:
            continue
        pattern, *until = re.split(r"(?:^|\s+)until(?:\s+|$)", said)
        if not pattern or _ALL.fullmatch(pattern):
            raise LeakscopeError(f"{source}, line {number}: name what is known, `*` alone would suppress every leak")
        if until and not (len(until) == 1 and _is_day(until[0])):
            raise LeakscopeError(f"{source}, line {number}: write the last day as in `{pattern} until 2027-01-31`")
        found.append(Suppression(pattern, reason, until[0] if until else "", source, number))
    return tuple(found)


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def known_before(data: Any, source: str) -> tuple[Suppression, ...]:
    """What an earlier run's `findings.json` tells: its findings, and those that were suppressed there.

    Raises ValueError where it is none.
    """
    try:
        told = [*data["findings"], *data.get("suppressed", ())]
        return tuple(
            Suppression(
                _text(f["fingerprint"]), source=source, is_baseline=True, was_leak=f.get("severity", "leak") == "leak"
            )
            for f in told
        )
    except (AttributeError, KeyError, TypeError):
        raise ValueError("it tells no findings") from None


def _text(value: object) -> str:
    """Text that is one; raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError
    return value


def keep_suppressions(folder: Path, suppressions: Collection[Suppression]) -> None:
    """Write them into a run's folder, in place of those of a run before. Raises OSError."""
    if suppressions:
        write_whole(folder / NAME, json_of([to_json(one) for one in suppressions]))
    else:
        (folder / NAME).unlink(missing_ok=True)


def kept_suppressions(data: Any) -> tuple[Suppression, ...]:
    """Those that were kept with a run. Raises ValueError where one of them is damaged."""
    if not isinstance(data, list):
        raise ValueError("it is no list")
    return tuple(from_json(Suppression, item) for item in data)
