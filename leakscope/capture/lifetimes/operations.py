"""What is this operation called, and which line of the user's asked for it?"""

from __future__ import annotations

from types import FrameType
from typing import Any, NamedTuple

from leakscope.capture.lifetimes.dispatch_mode import name_of
from leakscope.capture.source.user_source import is_users

_SUM = "aten::add"
"""How autograd adds up the gradients of one tensor (torch/csrc/autograd/input_buffer.cpp)."""


class Operator(NamedTuple):
    """What is asked of an operator each time that it runs."""

    name: str
    """`aten::add`."""
    may_resize: bool
    """It may change the size of a storage that was there."""
    adds: bool
    """Autograd adds gradients up by it."""
    sends: bool
    """It is a comm operation."""


class Operations:
    """Knows each operator and each file that it was asked for once."""

    def __init__(self) -> None:
        self._operators: dict[int, Operator] = {}
        self._users: dict[str, bool] = {}

    def operator(self, called: Any) -> Operator:
        """What is known of an operator of torch's."""
        known = self._operators.get(id(called))
        if known is None:
            name = name_of(called)
            may_resize = "resize" in name or str(called.name()).endswith("out")
            known = Operator(name, may_resize, adds=name == _SUM, sends=name.startswith("c10d::"))
            self._operators[id(called)] = known
        return known

    def users_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the user's at or below this one."""
        users = self._users
        while frame is not None:
            filename = frame.f_code.co_filename
            try:
                if users[filename]:
                    return frame
            except KeyError:
                if users.setdefault(filename, is_users(filename)):
                    return frame
            frame = frame.f_back
        return None
