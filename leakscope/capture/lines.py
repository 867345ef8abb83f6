"""Which line of the user's did this? The innermost frame outside torch, the standard library and leakscope."""

from __future__ import annotations

from types import FrameType

from leakscope.capture.source import at, is_users


def users_line(frame: FrameType | None) -> str:
    """`train.py:41 forward` for the innermost frame of the user's at or below `frame`; "" where there is none."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{at(frame.f_code.co_filename, frame.f_lineno)} {frame.f_code.co_name}"
