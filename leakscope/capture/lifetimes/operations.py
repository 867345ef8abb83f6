"""What is this operation called, and which line of the user's asked for it?"""

from __future__ import annotations

from types import FrameType
from typing import Any

from leakscope.capture.lifetimes.dispatch_mode import name_of
from leakscope.capture.source.user_source import is_users


class Operations:
    """Knows each operator and each file that it was asked for once."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._resizing: set[str] = set()
        self._users: dict[str, bool] = {}

    def name(self, operator: Any) -> str:
        """`aten::add`."""
        name = self._names.get(id(operator))
        if name is None:
            name = self._names[id(operator)] = name_of(operator)
            if "resize" in name or str(operator.name()).endswith("out"):
                self._resizing.add(name)
        return name

    def may_resize(self, name: str) -> bool:
        """Whether operations of this name may change the size of a storage that was there."""
        return name in self._resizing

    def users_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the user's at or below this one."""
        users = self._users
        while frame is not None:
            filename = frame.f_code.co_filename
            known = users.get(filename)
            if known is None:
                known = users[filename] = is_users(filename)
            if known:
                return frame
            frame = frame.f_back
        return None
