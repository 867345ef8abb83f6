"""References of running frames, which CPython's own traversal does not show."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from leakscope.capture.heap.native.raw_memory import operands_of, own_memory
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.python.code_referents import FRAMES_CAN_BE_READ, frame_contents
from leakscope.capture.heap.python.columns import Growing, dicts_of
from leakscope.capture.process.pause import go_on
from leakscope.graph.model import ReferenceKind
from leakscope.originals import gc


def read_frames(native: NativeReferences, frames: list[FrameType], growing: Growing | None = None) -> dict[int, str]:
    """Add the locals and operands of running frames; returns the index of each frame, with its function's name.

    `growing` says which dicts are wanted that gc does not track.
    CPython shows nothing of a running frame (`frame_traverse` skips what the interpreter owns).
    """
    with own_memory() as words:
        operands = [operands_of(frame, words) for frame in frames]
    if not FRAMES_CAN_BE_READ:
        native.problems.append("the variables of running functions cannot be read in this build of Python")
    let_go = native.sweep.let_go
    first = len(native.new)
    running: dict[int, str] = {}
    for frame, addresses in zip(frames, operands, strict=True):
        go_on()
        index = native.index_of(frame)
        running[index] = frame.f_code.co_qualname
        for at in filter(lambda at: at >= 0, (let_go.get(at, native.find(at)) for at in addresses)):
            native.extra.add(index, at, ReferenceKind.OPERAND, "an operand", 1)
        for name, value in _variables_of(frame):
            at = native.find(id(value))
            if at < 0 and type(value) is tuple and not native.sweep.alone and gc.is_tracked(value):
                at = native.index_of(value)  # held by the frame: nobody is filling it
            if at < 0 and growing is not None and type(value) is dict and value and len(growing(dicts_of([value]))):
                at = native.index_of(value)
            if at >= 0:
                kind = ReferenceKind.ATTRIBUTE if name == _NAMESPACE else ReferenceKind.LOCAL
                native.extra.add(index, at, kind, name, 1)
            del value
    native.read_new(first)
    native.absorb_new()
    return running


_NAMESPACE = ".f_locals"


def _variables_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """What a frame holds, by name; a module's namespace apart, which has a root of its own."""
    contents = frame_contents(frame)
    for name, value in contents.variables:
        yield f"local {name}", value
    if contents.namespace is not None and contents.namespace is not frame.f_globals:
        yield _NAMESPACE, contents.namespace
