"""How did a rank end, on disk? In `ended.json`, where a rank that hung has raised an error that says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
