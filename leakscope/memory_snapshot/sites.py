"""Allocation sites: the first frame of the user's code in a stack, or the best name there is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from leakscope.memory_snapshot.model import NO_FRAMES, NOT_RECORDED, Frame, Stack

_TORCH = re.compile(
    r"(^|/)(site|dist)-packages/torch(_npu|vision|audio)?/|(^|/)torch/(nn|_dynamo|_inductor|autograd|utils|optim|cuda)/"
)
_PACKAGE = re.compile(r"(^|/)(site|dist)-packages/", re.IGNORECASE)
_GENERATED = re.compile(r"(^|/)torchinductor_[^/]*/|(^|/)tmp\w*/\w\w/\w{40,}\.py$")
"""What torch.compile writes (torch/_inductor/codecache.py: `<cache>/<two letters>/<hash>.py`): nobody's line."""
_STANDARD_LIBRARY = re.compile(
    r"(^|/)lib/python3\.\d+/(?!(site|dist)-packages/)|(^|/)Python3\d+/Lib/(?!site-packages/)|^<frozen ", re.IGNORECASE
)
_OPTIMIZER = re.compile(r"(^|/)optim(s|izers?)?(/|\w*\.py$)|(^|/)\w*optim(izer)?\.py$", re.IGNORECASE)
_OF_OPTIMIZER = frozenset({"__init__", "step", "_init_group", "add_param_group"})
_COMMUNICATION = re.compile(
    r"(^|/)torch/distributed/(distributed_c10d|_functional_collectives)|^c10d::|ProcessGroup|nccl"
)
_OURS = re.compile(r"(^|/)leakscope/((comm|dataloader|heap|process|recorder)/(\w+/)*\w+|bootstrap)\.py$")
_GRAD_NODE = re.compile(r"(?<!\w)(\w{1,80}?Backward\d*|AccumulateGrad)(?:::apply|::accumulateGrad|\()")
_OPERATOR = re.compile(
    r"\bat::(?:native::|_ops::|redispatch::)?(?!\w*empty|wrapper|detail|Tensor)([a-z_]\w+)(?=\(|::call|::redispatch)"
)
_PLUMBING = re.compile(
    r"unwind|CapturedTraceback|gather_with_cpp|CachingAllocator|PyEval|_PyObject|_PyFunction|PyObject_|wrapper_|"
    r"empty_generic|empty_cuda|empty_strided_cuda|c10::|^_?start$|^main$|__libc|clone|^$|\?\?"
)


_FILES = 4096
"""Files whose kind is remembered, chosen: a snapshot asks for each of them in thousands of stacks."""


class SiteKind(StrEnum):
    """Whose line a site is."""

    USER = "user"
    """The user's own Python."""
    PACKAGE = "package"
    """Python of an installed package; no line of the user's stands on the stack."""
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
    through: str = ""
    """The line of the installed package that the user's line called, `einops/_backends.py:291 einsum`; or empty."""


@dataclass(frozen=True)
class SiteBytes:
    """Bytes and number of allocations made at one site."""

    site: Site
    bytes: int
    count: int
    callers: tuple[str, ...] = ()
    """The user's frames that called it, the nearest first, of the stack that made the most there; see `--frames`."""


class StackPart(StrEnum):
    """Which part of a training step made an allocation, as its stack tells."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    RECOMPUTED = "recomputed"
    """A checkpoint's forward, run again in the backward (torch/utils/checkpoint.py)."""
    COMMUNICATION = "communication"
    OTHER = "other"


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
    """The site of one stack: innermost user frame, else innermost frame of an installed package, else the grad node,
    the innermost frame of torch, or the operator in C++.
    """
    inner: dict[SiteKind, Frame] = {}
    for frame in stack:
        kind = python_kind(frame.filename)
        inner.setdefault(kind, frame)
        if kind == SiteKind.USER:
            package = inner.get(SiteKind.PACKAGE)
            return _python_site(frame, kind, "" if package is None else _short(package, within_package=True))
    if SiteKind.PACKAGE in inner:
        return _python_site(inner[SiteKind.PACKAGE], SiteKind.PACKAGE)
    library = inner.get(SiteKind.LIBRARY)
    native = _native_name(stack)
    if native.startswith("autograd ") or library is None:
        return Site(native, kind=SiteKind.NATIVE) if native else Site("a stack without a known frame")
    return _python_site(library, SiteKind.LIBRARY)


def part_of(stack: Stack, number: int = NOT_RECORDED) -> StackPart:
    """The part of a training step that a stack (`number` in `Snapshot.stacks`) belongs to.

    Backward runs on autograd's own threads, so a stack that was recorded and has no Python frame is the backward's.
    """
    paths = [frame.filename.replace("\\", "/") for frame in stack]
    if any("torch/utils/checkpoint.py" in path for path in paths):
        return StackPart.RECOMPUTED
    if number == NO_FRAMES or any(_GRAD_NODE.search(frame.name) for frame in stack):
        return StackPart.BACKWARD
    if any(_COMMUNICATION.search(text) for text in (*paths, *(frame.name for frame in stack))):
        return StackPart.COMMUNICATION
    if any(_OPTIMIZER.search(path) and frame.name in _OF_OPTIMIZER for path, frame in zip(paths, stack, strict=True)):
        return StackPart.OPTIMIZER
    python = {python_kind(path) for path in paths}
    return StackPart.FORWARD if python & {SiteKind.USER, SiteKind.PACKAGE, SiteKind.LIBRARY} else StackPart.OTHER


def callers_of(stack: Stack, most: int) -> tuple[str, ...]:
    """The user's own frames that led to the site of `stack`, from the nearest on, `most` at the most."""
    own = [frame for frame in stack if python_kind(frame.filename) == SiteKind.USER]
    return tuple(_short(frame) for frame in own[1 : most + 1])


@lru_cache(_FILES)
def is_ours(filename: str) -> bool:
    """Whether a file is leakscope's own: it stands on the stacks of what it watched, and has made none of it."""
    return _OURS.search(filename.replace("\\", "/")) is not None


@lru_cache(_FILES)
def python_kind(filename: str) -> SiteKind:
    """Whose line a Python file is; UNKNOWN for what is none."""
    path = filename.replace("\\", "/")
    if not (path.endswith(".py") or path.startswith(("<ipython-input", "<stdin>", "/tmp/ipykernel_"))):
        return SiteKind.UNKNOWN
    if is_ours(path):
        return SiteKind.UNKNOWN
    if _TORCH.search(path) or _STANDARD_LIBRARY.search(path) or _GENERATED.search(path):
        return SiteKind.LIBRARY
    return SiteKind.PACKAGE if _PACKAGE.search(path) else SiteKind.USER


def _python_site(frame: Frame, kind: SiteKind, through: str = "") -> Site:
    return Site(_short(frame, within_package=kind != SiteKind.USER), frame.filename, frame.line, kind, through)


def _short(frame: Frame, within_package: bool = False) -> str:
    """`train.py:41 step`, with the folder before it where that is a package's."""
    parts = frame.filename.replace("\\", "/").rsplit("/", 2)
    name = "/".join(parts[-2:]) if within_package else parts[-1]
    return f"{name}:{frame.line} {frame.name}"


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
