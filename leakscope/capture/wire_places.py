"""Which line of the user's issued this operation, and where was that function called from?"""

from __future__ import annotations

from types import FrameType

from leakscope.capture.source import at, is_users

_DEEPEST = 60
_MOST = 8192
_USERS: dict[str, bool] = {}
"""File to whether it is the user's; a plain dict is twice as fast as a cached function here."""
_PLACES: dict[tuple[str, int, int, str], str] = {}
"""(file, first line of the function, instruction, function) to `train.py:41 forward`; the line itself costs more to ask."""


def users_lines(frame: FrameType | None) -> tuple[str, str]:
    """`train.py:41 forward` for the innermost frame of the user's and the one that called it; "" for what is not there."""
    found = ""
    for _ in range(_DEEPEST):
        if frame is None:
            break
        code = frame.f_code
        filename = code.co_filename
        users = _USERS.get(filename)
        if users is None:
            users = _USERS[filename] = is_users(filename)
        if users:
            key = (filename, code.co_firstlineno, frame.f_lasti, code.co_name)
            place = _PLACES.get(key)
            if place is None:
                if len(_PLACES) > _MOST:
                    _PLACES.clear()
                place = _PLACES[key] = f"{at(filename, frame.f_lineno)} {code.co_name}"
            if found:
                return found, place
            found = place
        frame = frame.f_back
    return found, ""
