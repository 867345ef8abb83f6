"""Is a folder a run, and one that this version reads?"""

from __future__ import annotations

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
