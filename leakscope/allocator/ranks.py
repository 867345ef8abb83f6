"""Which rank wrote this file? A snapshot does not say, so its name has to."""

from __future__ import annotations

import re
from pathlib import Path

_RANK = re.compile(r"(?:^|[^a-z])rank[_\-=. ]?0*(\d{1,6})", re.IGNORECASE)
_SHORT = re.compile(r"(?:^|[_\-.])r0*(\d{1,6})(?=[_\-.]|$)", re.IGNORECASE)


def rank_in(path: Path) -> int | None:
    """The rank in the file's name, or in the nearest folder's that has one (`rank_0003/cuda.pickle`); None without
    one.
    """
    for part in (path.name, *(parent.name for parent in path.parents)):
        if found := _RANK.search(part):
            return int(found[1])
    found = _SHORT.search(path.name)
    return int(found[1]) if found else None
