"""Which line of the user's issued this operation, and where was that function called from?"""

from __future__ import annotations

from types import CodeType, FrameType

from leakscope.capture.source.user_source import at, is_users

_DEEPEST = 60
"""Frames climbed for a line of the user's, chosen: an operation is asked for thousands of times a step."""
_MAX_CODES = 4096
"""Code objects kept, chosen."""
_CODES: dict[int, tuple[CodeType, dict[int, str] | None]] = {}
"""Address of a code object, which is kept here so that it stays its own, to (it, places by instruction); None for a
library's. Finding the line of an instruction costs more than all the rest."""


def users_lines(frame: FrameType | None) -> tuple[str, str]:
    """`train.py:41 forward` for the innermost frame of the user's and the one that called it; "" for what is none."""
    innermost = ""
    for _ in range(_DEEPEST):
        if frame is None:
            break
        code = frame.f_code
        known = _CODES.get(id(code))
        if known is None:
            known = _meet(code)
        places = known[1]
        if places is not None:
            instruction = frame.f_lasti
            place = places.get(instruction)
            if place is None:
                place = places[instruction] = f"{at(code.co_filename, frame.f_lineno)} {code.co_name}"
            if innermost:
                return innermost, place
            innermost = place
        frame = frame.f_back
    return innermost, ""


def _meet(code: CodeType) -> tuple[CodeType, dict[int, str] | None]:
    if len(_CODES) > _MAX_CODES:
        _CODES.clear()
    known = _CODES[id(code)] = code, {} if is_users(code.co_filename) else None
    return known
