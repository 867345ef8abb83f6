"""What has torch.compile compiled, and why again? Dynamo counts it; it is read where the script has imported dynamo."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from leakscope.capture.source.user_source import at
from leakscope.record.rows.counts import Compiled, Recompiled

_UTILS = "torch._dynamo.utils"
_LIMITS = ("recompile limit", "recompile_limit", "cache_size_limit", "cache size limit")
"""What dynamo's counter of what it does not compile says of a function that came to its limit."""
_MOST = 5
"""Functions that are told; chosen."""
_MOST_READ = 512
"""Reasons that are read of a function; chosen: its limit is 8 compilations, 36 reasons."""
_LONGEST = 200
"""Characters of a reason; chosen."""


def compiled_code() -> Compiled | None:
    """None where dynamo is not there, or keeps other books. Takes microseconds; nothing of dynamo's is kept."""
    utils = sys.modules.get(_UTILS)
    counters, failures = getattr(utils, "counters", None), getattr(utils, "guard_failures", None)
    if not isinstance(counters, Mapping):
        return None
    frames, unimplemented = counters.get("frames"), counters.get("unimplemented")
    done = frames.get("ok", 0) if isinstance(frames, Mapping) else 0
    words = " ".join(map(str, list(unimplemented))) if isinstance(unimplemented, Mapping) else ""
    again = _again(failures) if isinstance(failures, Mapping) else ()
    return Compiled(int(done), again, any(limit in words for limit in _LIMITS))


def _again(failures: Mapping[Any, Any]) -> tuple[Recompiled, ...]:
    found = [
        Recompiled(code.co_name, at(code.co_filename, code.co_firstlineno), _times(why), _reason(why[-1]))
        for code, why in list(failures.items())
        if isinstance(code, CodeType) and isinstance(why, list) and why
    ]
    return tuple(sorted(found, key=lambda one: (-one.times, one.at))[:_MOST])


def _times(why: Sequence[object]) -> int:
    """Each time all that is compiled of a function has failed its guards, and all are told: `0/0: ...`, `0/1: ...`."""
    return len({str(one).partition(":")[0] for one in why[-_MOST_READ:]})


def _reason(told: object) -> str:
    """`n == 0.0` of `0/0: n == 0.0      # def forward(...)` and lines below."""
    line = str(told).partition("\n")[0]
    number, colon, rest = line.partition(": ")
    text = rest if colon and "/" in number else line
    return text.partition("  # ")[0].strip()[:_LONGEST]
