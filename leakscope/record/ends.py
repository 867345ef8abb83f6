"""How did a rank end, on disk? In `ended.json`, where a rank that hung has raised an error that says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakscope.errors import Unreadable
from leakscope.record.kinds import EndKind
from leakscope.record.model import Ended
from leakscope.record.rows.row import from_json, to_json

NAME = "ended.json"
_HUNG = "hung: "
"""Begins the error of a rank that `--hang-timeout` has ended, in the form in which it is written."""


def as_written(ended: Ended) -> Ended:
    """The same end in the words of the file, which are older than `EndKind.HUNG`."""
    if ended.how != EndKind.HUNG:
        return ended
    return replace(ended, how=EndKind.RAISED, error=f"{_HUNG}{ended.error}")


def ended_to_json(ended: Ended) -> dict[str, Any]:
    """What `ended.json` has."""
    return to_json(as_written(ended))


def ended_from_json(data: Any) -> Ended:
    """Inverse of `ended_to_json`; raises ValueError on anything else."""
    ended = from_json(Ended, data)
    if not ended.error.startswith(_HUNG):
        return ended
    return replace(ended, how=EndKind.HUNG, error=ended.error.removeprefix(_HUNG))


def ended_file(rank: Path) -> Path:
    """Where a rank's folder says how it ended."""
    return rank / NAME


def ranks_in(folder: Path) -> list[int]:
    """Numbers of the ranks that have a folder, rising."""
    return sorted(int(path.name[5:]) for path in folder.iterdir() if re.fullmatch(r"rank_\d{4,}", path.name))


def lost() -> Ended:
    """The end of a rank that has no folder."""
    return Ended(EndKind.LOST, 1, 0)


def read_end(rank: Path, steps: int) -> Ended:
    """How the rank with this folder ended, which has written down so many steps.

    Raises Unreadable where its file cannot be read, ValueError where that says something else.
    """
    path = ended_file(rank)
    if not path.exists():
        return Ended(EndKind.LOST, 1, steps, error="the rank left no word of how it ended")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise Unreadable(f"{path} cannot be read") from None
    return ended_from_json(data)


def read_ends(folder: Path, expected: int) -> Iterator[tuple[int, Ended, int]]:
    """Each rank's number, how it ended, and how many steps it has written down; nothing else is read.

    Raises Unreadable as `read_run` does.
    """
    there = ranks_in(folder)
    for number in sorted({*there, *range(expected)}):
        if number not in there:
            yield number, lost(), 0
            continue
        path = folder / f"rank_{number:04d}"
        try:
            steps = _whole_lines(path / "steps.jsonl")
            yield number, read_end(path, steps), steps
        except ValueError as error:
            raise Unreadable(f"{folder} is a damaged leakscope run: {error}") from None


def _whole_lines(path: Path) -> int:
    """Lines of a file, but for a last one that was cut off; 0 where there is no such file."""
    if not path.exists():
        return 0
    lines = path.read_bytes().splitlines()
    try:
        json.loads(lines[-1] if lines else b"")
    except ValueError:
        return max(len(lines) - 1, 0)
    return len(lines)
