"""Which stack is this? Each list of frames in a file becomes one numbered tuple, however many events share it."""

from __future__ import annotations

import re
from typing import Any

from leakscope.allocator.sites import is_ours
from leakscope.allocator.snapshot import NO_FRAMES, NOT_RECORDED, Frame, Stack
from leakscope.errors import Unreadable

_TRACEBACK_LINE = re.compile(r'File "([^"\n]{1,4096})", line (\d{1,9}), in ([^\n]{1,512})')


class StackTable:
    """Numbers stacks and frames by the identity of the objects the pickle shares.

    leakscope's own frames, which stand on the stacks of a run that it started and of a step that it watched, are left
    out.
    """

    def __init__(self) -> None:
        self._frames: dict[int, Frame] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._same: dict[Stack, int] = {(): NO_FRAMES}
        self._stacks: list[Stack] = [(), ()]

    def number(self, frames: Any, forward: Any = None) -> int:
        """The number of a list of frame dictionaries; of None `NOT_RECORDED`, of an empty list `NO_FRAMES`.

        `forward` is torch's text of where the forward of this autograd node ran; its frames follow the others.
        """
        if frames is None:
            return NOT_RECORDED
        if type(frames) is not list:
            raise Unreadable(f"a stack is of type {type(frames).__name__}, not a list of frames")
        if not frames and not forward:
            return NO_FRAMES
        key = (id(frames), id(forward) if forward else 0)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._same_frames(tuple(map(id, frames)), frames, forward)
        return number

    def number_of_new(self, frames: list[Any]) -> int:
        """The number of a list that nothing else shares, so that its identity says nothing."""
        return self._same_frames(tuple(map(id, frames)), frames, None)

    def _same_frames(self, identities: tuple[int, ...], frames: list[Any], forward: Any) -> int:
        """Torch 2.11 writes a new list for nearly every event but shares the frames in them."""
        number = None if forward else self._by_frames.get(identities)
        if number is None:
            whole = tuple(self._frame(frame) for frame in frames) + _forward_frames(forward)
            stack = tuple(frame for frame in whole if not is_ours(frame.filename))
            number = self._same.setdefault(stack, len(self._stacks))
            if number == len(self._stacks):
                self._stacks.append(stack)
            if not forward:
                self._by_frames[identities] = number
        return number

    def stacks(self) -> tuple[Stack, ...]:
        """All stacks, by their numbers."""
        return tuple(self._stacks)

    def _frame(self, frame: Any) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            if type(frame) is not dict:
                raise Unreadable(f"a stack holds something of type {type(frame).__name__} where a frame should stand")
            name, filename, line = frame.get("name", ""), frame.get("filename", ""), frame.get("line", 0)
            if not (type(name) is str and type(filename) is str and type(line) is int):
                raise Unreadable("a frame's name or file is not text, or its line is no number")
            known = self._frames[id(frame)] = Frame(name, filename, line)
        return known


def _forward_frames(forward: Any) -> Stack:
    """Torch 2.15 gives the forward's traceback as pieces of text, outermost first."""
    if type(forward) is not list:
        return ()
    text = "".join(piece for piece in forward if type(piece) is str)
    lines = [
        Frame(f"backward of {name}", filename, int(line)) for filename, line, name in _TRACEBACK_LINE.findall(text)
    ]
    return tuple(reversed(lines))
