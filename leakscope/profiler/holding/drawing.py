"""A picture of what refers to an object."""

from __future__ import annotations

from leakscope.errors import LeakscopeError
from leakscope.originals import Path
from leakscope.profiler.holding.pictures import Picture
from leakscope.profiler.in_memory import why_no_look


def draw(obj: object, path: str | Path | None = None, *, max_depth: int = 3, too_many: int = 10) -> Picture:
    """A picture of what refers to an object, by objgraph, with the references that gc does not see in another colour.

    Those are what autograd's C++ graph saved, its hooks and `grad_fn`, buffers of communication, and the variables of
    running functions. Of a tensor the picture also has what else holds its memory. Unlike objgraph's own it collects
    nothing and calls no `repr`.

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
