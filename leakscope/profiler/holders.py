"""`holders`: what holds tensor memory now, the reference paths to one tensor, and their drawing."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from leakscope.errors import LeakscopeError
from leakscope.findings.holders import MOST_LINES, MOST_WAYS, alive_now, ways_to
from leakscope.findings.live_objects import Alive, HeldNow, Way, Ways
from leakscope.originals import Path
from leakscope.profiler.result import look_now, why_no_look
from leakscope.report import drawing
from leakscope.report.holders import alive_as_html, alive_as_text, as_json, ways_as_html, ways_as_text
from leakscope.run.rows import Occasion

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class Holders:
    """Who holds tensor memory, biggest first. Prints as a table, and shows as one in a notebook."""

    alive: Alive
    """The facts: each line's bytes, and what lets go of them."""

    @property
    def bytes(self) -> int:
        """Of all tensor memory that is alive; the lines and `alive.smaller_bytes` add up to it."""
        return self.alive.bytes

    @property
    def lines(self) -> tuple[HeldNow, ...]:
        """A line for each of the largest holders."""
        return self.alive.lines

    def __str__(self) -> str:
        return alive_as_text(self.alive)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return alive_as_html(self.alive)

    def to_json(self) -> str:
        """All of it, for programs."""
        return as_json(self.alive)


@dataclass(frozen=True, repr=False)
class WaysToTensor:
    """Every way that leads to one tensor. Prints as a list, and shows as a picture in a notebook."""

    found: Ways
    """The facts."""

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways that are listed; `found.more` are not."""
        return self.found.ways

    @property
    def dot(self) -> str:
        """The picture in graphviz's language."""
        return drawing.dot_source(drawing.of_ways(self.found))

    def __str__(self) -> str:
        return ways_as_text(self.found)

    __repr__ = __str__

    def _repr_svg_(self) -> str | None:
        return drawing.svg(self.dot)

    def _repr_html_(self) -> str:
        return ways_as_html(self.found, self._repr_svg_() or "")

    def draw(self, path: str | Path) -> Path:
        """Write it to a file in the format of its suffix: `.svg`, `.png`, `.pdf`, or `.dot`, which needs no `dot`.

        Raises:
            LeakscopeError: Graphviz's `dot` is not installed or fails.

        """
        return drawing.write(self.dot, path)

    def to_json(self) -> str:
        """All of it, for programs."""
        return as_json(self.found)


@overload
def holders(tensor: None = None, *, most: int | None = None) -> Holders: ...
@overload
def holders(tensor: torch.Tensor, *, most: int | None = None) -> WaysToTensor: ...
def holders(tensor: torch.Tensor | None = None, *, most: int | None = None) -> Holders | WaysToTensor:
    """Who holds tensor memory now, biggest first; or every way that leads to one tensor.

    Nothing is collected or changed. What would be freed is measured: the bytes that are gone once the references told
    are, with a full collection after it where that is said. In a notebook it also tells what to type to let go.

    Args:
        tensor: the tensor whose holders are asked for; the call itself does not count as one.
        most: holders (20) or ways (12) told one by one; the rest is counted.

    Raises:
        TypeError: `tensor` is no tensor; `leakscope.draw` shows what refers to any object.
        ValueError: `most` is not positive, or the tensor has no memory that can be found.
        LeakscopeError: this torch lacks what a look needs.

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
        raise ValueError(f"most={most} tells nothing; give 1 or more")
    if ("torch" in sys.modules) and (why := why_no_look()):
        raise LeakscopeError(why)
    if tensor is None:
        if "torch" not in sys.modules:
            return Holders(Alive(0, 0, "cpu", (), 0, 0, (), error="", hides=False))
        look = look_now(0, Occasion.STEP)
        counted = None if look.counted_on == "cpu" else look.counted_bytes
        told = MOST_LINES if most is None else most
        return Holders(alive_now(look.heap, told, device=look.counted_on, counted_bytes=counted, hides=look.hides))
    import torch

    if not issubclass(type(tensor), torch.Tensor):
        raise TypeError(f"{type(tensor).__name__} is no tensor: leakscope.draw(obj) shows what refers to any object")
    return WaysToTensor(_ways(tensor, MOST_WAYS if most is None else most))


def _ways(tensor: Any, most: int) -> Ways:
    from leakscope.heap.snapshot import inspect

    with inspect(0, Occasion.STEP) as live:
        graph = live.look.heap
        index = next((k for k, obj in enumerate(live.objects) if obj is tensor), None)
        del tensor
    if index is None:
        raise ValueError("this tensor has no memory of its own that a look finds, as one on the meta device has none")
    return ways_to(graph, index, most)


@dataclass(frozen=True, repr=False)
class Picture:
    """A drawing of references. A notebook shows it; printed, it is the text that Graphviz draws."""

    dot: str
    """In Graphviz's language."""

    def __str__(self) -> str:
        return self.dot

    def __repr__(self) -> str:
        is_drawn = drawing.svg("graph {}") is not None
        return f"{self.__class__.__name__} of {self.objects} objects" if is_drawn else f"{drawing.NO_DOT}\n{self.dot}"

    def _repr_svg_(self) -> str | None:
        return drawing.svg(self.dot)

    @property
    def objects(self) -> int:
        """Number of objects in it."""
        return len(set(re.findall(r"^\s*(o\d+)\s*\[", self.dot, re.MULTILINE)))

    def draw(self, path: str | Path) -> Path:
        """Write it to a file in the format of its suffix: `.svg`, `.png`, `.pdf`, or `.dot`, which needs no `dot`.

        Raises:
            LeakscopeError: Graphviz's `dot` is not installed or fails.

        """
        return drawing.write(self.dot, path)


def draw(obj: object, path: str | Path | None = None, *, max_depth: int = 3, too_many: int = 10) -> Picture:
    """Draw the referrers of an object with objgraph, and references that gc does not see in another colour.

    Those are saved tensors, hooks and `grad_fn` of autograd's C++ graph, buffers of communication, and the variables of
    running functions. For a tensor the drawing also has the other holders of its memory. Unlike objgraph's own it
    collects nothing and calls no `repr`.

    Args:
        obj: any object; the call itself does not count as a referrer.
        path: a file to write, whose ending says how: `.svg`, `.png`, `.pdf`; `.dot` needs no graphviz.
        max_depth: references up from the object.
        too_many: referrers drawn of one object; the rest is counted.

    Raises:
        ValueError: a depth or a number that is not positive.
        LeakscopeError: this torch lacks what a look needs; `path` cannot be drawn.

    >>> import torch, leakscope
    >>> kept = {"x": torch.ones(3)}
    >>> "['x']" in str(leakscope.draw(kept["x"]))
    True

    """
    if max_depth < 1 or too_many < 1:
        raise ValueError(f"max_depth={max_depth} and too_many={too_many} must be 1 or more")
    if why := why_no_look():
        raise LeakscopeError(why)
    from leakscope.recorder.draw import referrers_as_dot

    picture = Picture(referrers_as_dot(obj, max_depth, too_many))
    if path is not None:
        picture.draw(path)
    return picture
