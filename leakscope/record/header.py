"""Is a folder a run, and one that this version reads?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leakscope.errors import Unreadable

FORMAT = 1
"""Number of the folder's format; a newer one is refused."""


def read_header(folder: Path) -> dict[str, Any]:
    """What `run.json` says; raises Unreadable where the folder is no run, or one of a newer format."""
    try:
        data = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise Unreadable(f"{folder} is not a leakscope run: it has no readable run.json") from None
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise Unreadable(f"{folder} is not a leakscope run: run.json names no format")
    if data["format"] > FORMAT:
        raise Unreadable(
            f"{folder} was recorded by a newer leakscope (format {data['format']}, this one reads up to {FORMAT}); "
            "upgrade leakscope"
        )
    return data
