"""Whose line allocated this? The first frame of the user's own code in a stack, or the best name there is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from leakscope.allocator.snapshot import NO_FRAMES, NOT_RECORDED, Frame, Stack

_TORCH = re.compile(
    r"(^|/)(site|dist)-packages/torch(_npu|vision|audio)?/|(^|/)torch/(nn|_dynamo|_inductor|autograd|utils|optim|cuda)/"
)
_STANDARD_LIBRARY = re.compile(
    r"(^|/)lib/python3\.\d+/(?!(site|dist)-packages/)|(^|/)Python3\d+/Lib/(?!site-packages/)|^<frozen ", re.IGNORECASE
)
_OURS = re.compile(r"(^|/)leakscope/capture/(\w+/)*\w+\.py$")
"""The watch of a step stands on the stack of what was made meanwhile, and has made none of it."""
_GRAD_NODE = re.compile(r"(?<!\w)(\w{1,80}?Backward\d*|AccumulateGrad)(?:::apply|::accumulateGrad|\()")
_OPERATOR = re.compile(
    r"\bat::(?:native::|_ops::|redispatch::)?(?!\w*empty|wrapper|detail|Tensor)([a-z_]\w+)(?=\(|::call|::redispatch)"
)
_PLUMBING = re.compile(
    r"unwind|CapturedTraceback|gather_with_cpp|CachingAllocator|PyEval|_PyObject|_PyFunction|PyObject_|wrapper_|"
    r"empty_generic|empty_cuda|empty_strided_cuda|c10::|^_?start$|^main$|__libc|clone|^$|\?\?"
)


class SiteKind(StrEnum):
    """Whose line a site is."""

    USER = "user"
    """The user's own Python."""
    LIBRARY = "library"
    """Python of torch or the standard library."""
    NATIVE = "native"
    UNKNOWN = "unknown"


@dataclass(frozen=True, order=True)
class Site:
    """Where an allocation was made, as far as its stack tells."""

    where: str
    """`train.py:41 forward`, or a native name, or why there is none."""
    filename: str = ""
    line: int = 0
    kind: SiteKind = SiteKind.UNKNOWN


UNTRACED = Site("allocated before the trace begins")
"""Memory of which the trace shows only the release."""


def sites_of(stacks: Sequence[Stack]) -> tuple[Site, ...]:
    """The site of each stack, in the same order (`Snapshot.stacks`)."""
    sites = [site_of(stack) for stack in stacks]
    if len(sites) > NO_FRAMES:
        sites[NOT_RECORDED] = Site("no stack recorded")
        sites[NO_FRAMES] = Site("a stack without Python frames (autograd or another native thread)")
    return tuple(sites)


def site_of(stack: Stack) -> Site:
    """The site of one stack: innermost user frame, else innermost Python frame, else the grad node or operator in
    C++.
    """
    library: Frame | None = None
    for frame in stack:
        kind = _python_kind(frame.filename)
        if kind == SiteKind.USER:
            return _python_site(frame, kind)
        if kind == SiteKind.LIBRARY and library is None:
            library = frame
    native = _native_name(stack)
    if native.startswith("autograd ") or library is None:
        return Site(native, kind=SiteKind.NATIVE) if native else Site("a stack without a known frame")
    return _python_site(library, SiteKind.LIBRARY)


def _python_kind(filename: str) -> SiteKind:
    path = filename.replace("\\", "/")
    if not (path.endswith(".py") or path.startswith(("<ipython-input", "<stdin>"))):
        return SiteKind.UNKNOWN
    if _OURS.search(path):
        return SiteKind.UNKNOWN
    of_library = _TORCH.search(path) or _STANDARD_LIBRARY.search(path)
    return SiteKind.LIBRARY if of_library else SiteKind.USER


def _python_site(frame: Frame, kind: SiteKind) -> Site:
    parts = frame.filename.replace("\\", "/").rsplit("/", 2)
    short = "/".join(parts[-2:]) if kind == SiteKind.LIBRARY else parts[-1]
    return Site(f"{short}:{frame.line} {frame.name}", frame.filename, frame.line, kind)


def _native_name(stack: Stack) -> str:
    """Backward allocations have no Python frames; the grad node's name is the most telling of their C++ frames."""
    operator = plain = ""
    for frame in stack:
        node = _GRAD_NODE.search(frame.name)
        if node:
            return f"autograd {node[1]}" + (f" ({operator})" if operator else "")
        if not operator and (named := _OPERATOR.search(frame.name)):
            operator = f"aten::{named[1]}"
        if not plain and not _PLUMBING.search(frame.name):
            plain = re.split(r"[<(]", frame.name.removeprefix("void "))[0][:120]
    return operator or plain
