"""The header of a run's folder, and what is known about the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakscope.errors import Unreadable
from leakscope.files import read_json
from leakscope.originals import Path

FORMAT = 1
"""Number of the folder's format; a newer one is refused."""
MOST_RANKS = 1 << 20
"""More than any job has; chosen."""


def read_header(folder: Path) -> dict[str, Any]:
    """What `run.json` says; raises Unreadable where the folder is no run, or one of a newer format."""
    try:
        data = read_json(folder / "run.json")
    except Unreadable as error:
        raise Unreadable(f"{folder} is not a leakscope run: it has no readable run.json ({error})") from None
    if not isinstance(data, dict) or type(data.get("format")) is not int:
        raise Unreadable(f"{folder} is not a leakscope run: run.json names no format")
    if data["format"] > FORMAT:
        raise Unreadable(
            f"{folder} was recorded by a newer leakscope (format {str(data['format'])[:20]}, this one reads up to "
            f"{FORMAT}); upgrade leakscope"
        )
    return data


NAME = "about.json"


def is_told(header: Mapping[str, Any]) -> bool:
    """Whether `run.json` has it: a launcher that was killed has not come to that."""
    return "sources" in header  # the first versions knew no heap reader


def with_what_ranks_know(folder: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """What `run.json` says, with device, torch, heap reader and source files as the ranks have told them.

    What is damaged counts as not written.
    """
    data = dict(header)
    sources: dict[str, Any] = {}
    readers: set[str] = set()
    for path in sorted(folder.glob(f"rank_*/{NAME}")):
        try:
            about = read_json(path)
            told = {name: str(about[name]) for name in ("device", "torch", "heap_reader")}
            sources.update(about["sources"].items())
        except (Unreadable, AttributeError, KeyError, TypeError):
            continue
        readers.add(told.pop("heap_reader"))
        data = told | data
    return {**data, "heap_reader": " and ".join(sorted(readers)), "sources": sources}
