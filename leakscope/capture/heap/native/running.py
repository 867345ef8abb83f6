"""What do the running frames hold? CPython tells nobody."""

from __future__ import annotations

from types import CellType, FrameType

import numpy as np

from leakscope.capture.heap.native.raw_memory import operands_of, own_memory
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.python.code_referents import frame_locals
from leakscope.capture.heap.python.columns import Growing, dicts_of
from leakscope.capture.process.pause import go_on
from leakscope.graph.held_by import occurrences
from leakscope.graph.model import ReferenceKind
from leakscope.originals import gc


def read_frames(native: NativeReferences, frames: list[FrameType], growing: Growing | None = None) -> dict[int, str]:
    """Add the locals and operands of running frames; returns the index of each frame, with its function's name.

    `growing` says which dicts are wanted that gc does not track.
    CPython shows nothing of a running frame (`frame_traverse` skips what the interpreter owns).
    """
    with own_memory() as words:
        operands = [operands_of(frame, words) for frame in frames]
    cells, let_go = _loose_cells(native), native.sweep.let_go
    first = len(native.new)
    running: dict[int, str] = {}
    for frame, addresses in zip(frames, operands, strict=True):
        go_on()
        index = native.index_of(frame)
        running[index] = frame.f_code.co_qualname
        for at in filter(lambda at: at >= 0, (let_go.get(at, native.find(at)) for at in addresses)):
            native.extra.add(index, at, ReferenceKind.OPERAND, "an operand", 1)
        closed = {*frame.f_code.co_cellvars, *frame.f_code.co_freevars}
        for name, value in frame_locals(frame).items():
            at = native.find(id(value))
            if at < 0 and type(value) is tuple and not native.sweep.alone and gc.is_tracked(value):
                at = native.index_of(value)  # held by the frame: nobody is filling it
            if at < 0 and growing is not None and type(value) is dict and value and len(growing(dicts_of([value]))):
                at = native.index_of(value)
            if at < 0:
                continue
            if name in closed:
                for cell in cells.get(id(value), ()):
                    native.extra.add(index, cell, ReferenceKind.LOCAL, f"local {name}", 1)
            else:
                native.extra.add(index, at, ReferenceKind.LOCAL, f"local {name}", 1)
            del value
    native.read_new(first)
    native.absorb_new()
    return running


def _loose_cells(native: NativeReferences) -> dict[int, list[int]]:
    """Cells with an owner that CPython does not show, by the address of what they hold."""
    sweep = native.sweep
    places = native.of_type(CellType)
    later = np.sort(np.array(native.later[1], dtype=np.int32))
    missing = sweep.counts[places] - native.held_by.times()[places] - occurrences(later, places)
    by_content: dict[int, list[int]] = {}
    for index in places[missing > 0].tolist():
        try:
            by_content.setdefault(id(native.sweep.objects[index].cell_contents), []).append(index)
        except ValueError:  # an empty cell
            continue
    return by_content
