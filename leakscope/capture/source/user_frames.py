"""Which line of the user's did this? The innermost frame outside torch, the standard library and leakscope."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType

from leakscope.capture.heap.raw_types import is_of_leakscope
from leakscope.capture.source.user_source import at, is_users
from leakscope.originals import _thread


def running_frames() -> list[FrameType]:
    """Every frame that runs now, in all threads, innermost first."""
    frames = []
    own = sys._getframe()
    frame: FrameType | None
    for innermost in sys._current_frames().values():
        frame = innermost
        while frame is not None:
            if frame is not own:
                frames.append(frame)
            frame = frame.f_back
    del own, frame, innermost  # a frame that holds itself would outlive this call
    return frames


def is_alone() -> bool:
    """Whether no thread but this one and those of leakscope's runs Python."""
    mine = _thread.get_ident()
    return all(
        ident == mine or is_of_leakscope(_outermost(frame).f_globals.get("__name__"))
        for ident, frame in sys._current_frames().items()
    )


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def waiting(home: int) -> FrameType | None:
    """Where that thread stands now: the caller of `backward`, while a thread of autograd's works for it."""
    return sys._current_frames().get(home)


def users_line(frame: FrameType | None) -> str:
    """`train.py:41 forward` for the innermost frame of the user's at or below `frame`; "" where there is none."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{at(frame.f_code.co_filename, frame.f_lineno)} {frame.f_code.co_name}"


def raised_at(error: BaseException | None) -> str:
    """`train.py:41 forward`: the innermost line of the user's in an error's traceback; "" where there is none."""
    place = ""
    trace: TracebackType | None = None if error is None else error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            place = f"{at(code.co_filename, trace.tb_lineno)} {code.co_name}"
        trace = trace.tb_next
    return place


def arguments_of_running_calls() -> list[tuple[str, str]]:
    """(function, argument) of the user's running functions, by qualified name."""
    arguments = []
    for frame in running_frames():
        code = frame.f_code
        if is_users(code.co_filename):
            count = code.co_argcount + code.co_kwonlyargcount
            arguments += [(code.co_qualname, name) for name in code.co_varnames[:count]]
    return list(dict.fromkeys(arguments))
