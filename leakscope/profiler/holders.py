"""`holders`: what holds tensor memory now, the reference paths to one tensor, and their drawing."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from leakscope.errors import LeakscopeError
from leakscope.findings.holders import MAX_LINES, MAX_PATHS, live_memory, paths_to
from leakscope.findings.live_objects import HolderMemory, LiveMemory, ReferencePath, ReferencePaths
from leakscope.originals import Path
from leakscope.profiler.result import take_snapshot, why_no_snapshot
from leakscope.report import drawing
from leakscope.report.holders import alive_as_html, alive_as_text, as_json, paths_as_html, paths_as_text
from leakscope.run.rows import Occasion

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class Holders:
    """The holders of tensor memory, largest first. Prints as a table, and displays as one in a notebook.

    >>> import torch, leakscope
    >>> kept = torch.ones(1024)
    >>> alive = leakscope.holders()
    >>> alive.bytes >= 4096, alive.lines[0].bytes >= alive.lines[-1].bytes
    (True, True)
    """

    alive: LiveMemory
    """The lines with their bytes, and what frees them."""

    @property
    def bytes(self) -> int:
        """Bytes of all live tensor memory, the sum of the lines and `alive.smaller_bytes`."""
        return self.alive.bytes

    @property
    def lines(self) -> tuple[HolderMemory, ...]:
        """The largest holders."""
        return self.alive.lines

    def __str__(self) -> str:
        return alive_as_text(self.alive)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return alive_as_html(self.alive)

    def to_json(self) -> str:
        """The result as JSON."""
        return as_json(self.alive)


@dataclass(frozen=True, repr=False)
class WaysToTensor:
    """The reference paths to one tensor. Prints as a list, and displays as a drawing in a notebook.

    >>> import torch, leakscope
    >>> def train():
    ...     loss = torch.ones(3)
    ...     return leakscope.holders(loss)
    >>> [way.written for way in train().ways]
    ['train(): loss']
    """

    found: ReferencePaths
    """The paths, and how many are not listed."""

    @property
    def ways(self) -> tuple[ReferencePath, ...]:
        """The listed paths; `found.more` are not listed."""
        return self.found.ways

    @property
    def dot(self) -> str:
        """The drawing in the DOT language."""
        return drawing.dot_source(drawing.of_paths(self.found))

    def __str__(self) -> str:
        return paths_as_text(self.found)

    __repr__ = __str__

    def _repr_svg_(self) -> str | None:
        return drawing.svg(self.dot)

    def _repr_html_(self) -> str:
        return paths_as_html(self.found, self._repr_svg_() or "")

    def draw(self, path: str | Path) -> Path:
        """Write the drawing to a file.

        Args:
            path: Its suffix selects the format: `.svg`, `.png`, `.pdf`, or `.dot`, which needs no graphviz.

        Returns:
            The path.

        Raises:
            LeakscopeError: Graphviz's `dot` is not installed or cannot write this format.

        """
        return drawing.write(self.dot, path)

    def to_json(self) -> str:
        """The result as JSON."""
        return as_json(self.found)


@overload
def holders(tensor: None = None, *, most: int | None = None) -> Holders: ...
@overload
def holders(tensor: torch.Tensor, *, most: int | None = None) -> WaysToTensor: ...
def holders(tensor: torch.Tensor | None = None, *, most: int | None = None) -> Holders | WaysToTensor:
    """List the holders of tensor memory, largest first, or all reference paths to one tensor.

    Nothing is collected or changed. The bytes freed are computed for the references that are named, plus a full
    collection if the line says so. In a notebook the result also shows what to type to free the memory.

    Args:
        tensor: List the reference paths to this tensor instead. The argument itself is not listed.
        most: Number of holders (default 20) or paths (default 12) to list; the others are counted.

    Returns:
        `Holders` without `tensor`, `WaysToTensor` with it.

    Raises:
        TypeError: `tensor` is not a tensor; see `leakscope.draw` for other objects.
        ValueError: `most` is less than 1, or the tensor has no storage, as on the meta device.
        LeakscopeError: Torch lacks what a heap snapshot needs.

    >>> import torch, leakscope
    >>> def train():
    ...     losses = [torch.ones(1024) for _ in range(4)]
    ...     return leakscope.holders(), leakscope.holders(losses[1])
    >>> alive, ways = train()
    >>> [line.bytes for line in alive.lines if line.name == 'losses in train()']
    [16384]
    >>> ways.ways[0].written
    'train(): losses[1]'

    """
    if most is not None and most < 1:
        raise ValueError(f"most must be >= 1, got {most}")
    if ("torch" in sys.modules) and (why := why_no_snapshot()):
        raise LeakscopeError(why)
    if tensor is None:
        if "torch" not in sys.modules:
            return Holders(LiveMemory(0, 0, "cpu", (), 0, 0, (), error="", hides=False))
        snapshot = take_snapshot(0, Occasion.STEP)
        counted = None if snapshot.counted_on == "cpu" else snapshot.counted_bytes
        count = MAX_LINES if most is None else most
        return Holders(
            live_memory(snapshot.heap, count, device=snapshot.counted_on, counted_bytes=counted, hides=snapshot.hides)
        )
    import torch

    if not issubclass(type(tensor), torch.Tensor):
        raise TypeError(
            f"expected a tensor, got {type(tensor).__name__}; leakscope.draw(obj) shows what refers to any object"
        )
    return WaysToTensor(_paths_to(tensor, MAX_PATHS if most is None else most))


def _paths_to(tensor: Any, most: int) -> ReferencePaths:
    from leakscope.heap.snapshot import inspect

    with inspect(0, Occasion.STEP) as live:
        graph = live.snapshot.heap
        index = next((k for k, obj in enumerate(live.objects) if obj is tensor), None)
        del tensor
    if index is None:
        raise ValueError("the tensor has no storage, as on the meta device")
    return paths_to(graph, index, most)


@dataclass(frozen=True, repr=False)
class Picture:
    """A drawing of references. Displays in a notebook; prints as text in the DOT language."""

    dot: str
    """The text in the DOT language."""

    def __str__(self) -> str:
        return self.dot

    def __repr__(self) -> str:
        is_drawn = drawing.svg("graph {}") is not None
        return f"{self.__class__.__name__} of {self.objects} objects" if is_drawn else f"{drawing.NO_DOT}\n{self.dot}"

    def _repr_svg_(self) -> str | None:
        return drawing.svg(self.dot)

    @property
    def objects(self) -> int:
        """Number of drawn objects."""
        return len(set(re.findall(r"^\s*(o\d+)\s*\[", self.dot, re.MULTILINE)))

    def draw(self, path: str | Path) -> Path:
        """Write the drawing to a file.

        Args:
            path: Its suffix selects the format: `.svg`, `.png`, `.pdf`, or `.dot`, which needs no graphviz.

        Returns:
            The path.

        Raises:
            LeakscopeError: Graphviz's `dot` is not installed or cannot write this format.

        """
        return drawing.write(self.dot, path)


def draw(obj: object, path: str | Path | None = None, *, max_depth: int = 3, too_many: int = 10) -> Picture:
    """Draw what refers to an object with objgraph, including the references that gc cannot see.

    Those are drawn in another color: saved tensors, hooks and `grad_fn` of autograd's C++ graph, communication buffers,
    and variables of running functions. For a tensor the drawing includes the other holders of its storage. Unlike
    objgraph's own functions it collects nothing and calls no `repr`.

    Args:
        obj: Any object. The argument itself is not drawn as a referrer.
        path: File to write. Its suffix selects the format: `.svg`, `.png`, `.pdf`, or `.dot`, which needs no graphviz.
        max_depth: Number of references to follow from the object.
        too_many: Referrers to draw per object; the others are counted.

    Returns:
        The drawing, which a notebook displays.

    Raises:
        ValueError: `max_depth` or `too_many` is less than 1.
        LeakscopeError: Torch lacks what a heap snapshot needs, or `path` cannot be drawn.

    >>> import torch, leakscope
    >>> kept = {"x": torch.ones(3)}
    >>> "['x']" in str(leakscope.draw(kept["x"]))
    True

    """
    if max_depth < 1 or too_many < 1:
        raise ValueError(f"max_depth and too_many must be >= 1, got {max_depth} and {too_many}")
    if why := why_no_snapshot():
        raise LeakscopeError(why)
    from leakscope.recorder.draw import referrers_as_dot

    picture = Picture(referrers_as_dot(obj, max_depth, too_many))
    if path is not None:
        picture.draw(path)
    return picture
