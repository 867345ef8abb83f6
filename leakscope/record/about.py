"""What do the ranks know of the run? Each writes it down at its end; the launcher puts it into `run.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakscope.errors import Unreadable
from leakscope.files import read_json
from leakscope.originals import Path

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
