"""What was alive at a moment, by line and by category."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from leakscope.memory_snapshot.model import NO_FRAMES, NOT_RECORDED, Codes, Frame, Indexes, Ints, Snapshot, Stack, Trace
from leakscope.memory_snapshot.replay import Chosen, Replay
from leakscope.memory_snapshot.sites import (
    UNTRACED,
    Site,
    SiteBytes,
    SiteKind,
    StackPart,
    callers_of,
    part_of,
    python_kind,
)


@dataclass(frozen=True, eq=False)
class StackSites:
    """The site of each stack of a snapshot."""

    of: tuple[Site, ...]
    """In the order of `stacks`."""
    stacks: tuple[Stack, ...]
    frames: int
    """The user's frames to report for each site, including the site."""

    def callers(self, stack: int) -> tuple[str, ...]:
        """The user's frames that led to a stack's place."""
        return callers_of(self.stacks[stack], self.frames - 1) if self.frames > 1 else ()


def end_stacks(snapshot: Snapshot, played: Replay, trace: Trace | None, active: Chosen) -> tuple[Indexes, Ints]:
    """Stack and requested bytes of every active block; a block without a stack takes that of its allocation event."""
    blocks = snapshot.blocks
    stacks = blocks.stack[active].copy()
    bare = np.flatnonzero(stacks <= NO_FRAMES)
    if len(bare) and trace is not None:
        live = played.live
        made = dict(zip(trace.address[played.born[live]].tolist(), played.stacks[live].tolist(), strict=True))
        stacks[bare] = [
            made.get(address, old)
            for address, old in zip(blocks.address[active[bare]].tolist(), stacks[bare].tolist(), strict=True)
        ]
    return stacks, blocks.requested[active]


def alive_at(snapshot: Snapshot, played: Replay, sites: StackSites, event: int) -> tuple[SiteBytes, ...]:
    """What was alive directly after `event`, by site: traced allocations, ghosts, and memory known only from its later
    release.
    """
    alive = played.live_at(event)
    blocks = snapshot.blocks
    stacks = np.concatenate([played.stacks[alive], blocks.stack[played.ghosts]])
    sizes = np.concatenate([played.sizes[alive], blocks.requested[played.ghosts]])
    held = by_site(sites, stacks, sizes)
    untraced = played.unknown_at(event)
    if untraced:
        more = SiteBytes(UNTRACED, untraced, int((played.unknown_frees > event).sum()))
        held = tuple(sorted((*held, more), key=_largest_first))
    return held


def by_site(sites: StackSites, stacks: Indexes, sizes: Ints) -> tuple[SiteBytes, ...]:
    """Bytes and number of allocations by site, the largest first."""
    width = len(sites.of)
    counts = np.bincount(stacks, minlength=width)
    sums = np.zeros(width, np.int64)
    np.add.at(sums, stacks, sizes)
    total: dict[Site, tuple[int, int]] = {}
    most: dict[Site, tuple[int, int]] = {}
    for stack in np.flatnonzero(counts).tolist():
        site, made = sites.of[stack], int(sums[stack])
        before = total.get(site, (0, 0))
        total[site] = (before[0] + made, before[1] + int(counts[stack]))
        most[site] = max(most.get(site, (-1, stack)), (made, stack))
    held = [SiteBytes(site, size, count, sites.callers(most[site][1])) for site, (size, count) in total.items()]
    return tuple(sorted(held, key=_largest_first))


def _largest_first(entry: SiteBytes) -> tuple[int, Site]:
    return (-entry.bytes, entry.site)


class Category(StrEnum):
    """The purpose of an allocation."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    """Gradients of weights and, temporarily, of activations."""
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activation"
    COMMUNICATION = "communication"
    WORKSPACE = "workspace"
    """Workspaces of a library such as cuBLAS, and temporaries of the optimizer."""
    UNKNOWN = "unknown"


CATEGORIES = tuple(Category)
"""The categories indexed by `Categories.traced` and `Categories.ghosts`."""
_WORKSPACE = re.compile(r"[Ww]orkspace|getCurrentCUDABlas|\brun_conv_plan\b")
"""C++ functions that allocate workspaces (ATen/cuda/CublasHandlePool.cpp, native/cudnn/Conv_v8.cpp). A library's
function alone is no indication: it also allocates the output of cudnn_batch_norm.
"""
_MADE_ONCE = frozenset(
    {
        "__init__",
        "reset_parameters",
        "load_state_dict",
        "_load_from_state_dict",
        "create_weights",
        "_parameter",
    }
)
"""Functions that create parameters."""
_MOVES = "_apply"
"""What `Module.to` and `Module.cuda` use to move parameters (torch/nn/modules/module.py)."""
_MODULE = re.compile(r"(^|/)torch/nn/modules/\w+\.py$")


@dataclass(frozen=True, eq=False)
class Categories:
    """The category of every allocation of a replay, as indexes into `CATEGORIES`."""

    traced: Codes
    """For each allocation of the trace."""
    ghosts: Codes
    """For each active block whose allocation is not in the trace."""

    def over(self, played: Replay, ghost_sizes: Ints) -> dict[Category, Ints]:
        """Bytes alive of each category after each event; their sum is `Replay.curve`."""
        curves = {}
        for code, category in enumerate(CATEGORIES):
            mine = self.traced == code
            change = np.zeros(played.events + 1, np.int64)
            np.add.at(change, played.born[mine], played.sizes[mine])
            np.subtract.at(change, played.died[mine], played.sizes[mine])
            curve = np.cumsum(change[:-1]) + int(ghost_sizes[self.ghosts == code].sum())
            if category == Category.UNKNOWN:
                lost = np.zeros(played.events, np.int64)
                np.add.at(lost, played.unknown_frees, played.unknown_sizes)
                curve += int(lost.sum()) - np.cumsum(lost)
            if curve.any():
                curves[category] = curve
        return curves

    def at_end(self, played: Replay, ghost_sizes: Ints) -> dict[Category, int]:
        """Bytes alive of each category at the end, also without events."""
        live = played.live
        codes = np.concatenate([self.traced[live], self.ghosts])
        sums = np.zeros(len(CATEGORIES), np.int64)
        np.add.at(sums, codes, np.concatenate([played.sizes[live], ghost_sizes]))
        return dict(zip(CATEGORIES, sums.tolist(), strict=True))


def categories_of(snapshot: Snapshot, played: Replay) -> Categories:
    """Judge every allocation: each stack once, and numpy for the rest."""
    stack_parts = [part_of(stack, number) for number, stack in enumerate(snapshot.stacks)]
    parts = np.array([_LETTERS[part] for part in stack_parts], np.int64)
    judged = [
        _of_stack(stack, number, part)
        for number, (stack, part) in enumerate(zip(snapshot.stacks, stack_parts, strict=True))
    ]
    own = np.array([_CODES[category] for category in judged], np.uint8)
    traced = own[played.stacks] if len(own) else np.zeros(len(played.born), np.uint8)
    part = parts[played.stacks] if len(parts) else traced.astype(np.int64)
    steps = np.isin(part, (_LETTERS[StackPart.FORWARD], _LETTERS[StackPart.BACKWARD]))
    # what the optimizer makes and drops before the next pass is not part of its state
    after = np.append(played.born[steps], played.events)
    following = after[np.searchsorted(after[:-1], played.born, "right")]
    brief = (part == _LETTERS[StackPart.OPTIMIZER]) & (played.died <= following) & (played.died < played.events)
    traced[brief] = _CODES[Category.WORKSPACE]
    # memory made by a pass outside of any module, and memory that was freed, is an activation too
    passing = (part == _LETTERS[StackPart.FORWARD]) & (traced == _CODES[Category.UNKNOWN])
    traced[passing & (played.died < played.events)] = _CODES[Category.ACTIVATION]
    held = snapshot.blocks.stack[played.ghosts]
    return Categories(traced, own[held] if len(own) else np.zeros(len(held), np.uint8))


_LETTERS: Mapping[StackPart, int] = {part: code for code, part in enumerate(StackPart)}
_CODES: Mapping[Category, int] = {category: code for code, category in enumerate(CATEGORIES)}


def _of_stack(stack: Stack, number: int, part: StackPart) -> Category:
    if number == NOT_RECORDED:
        return Category.UNKNOWN
    if any(_WORKSPACE.search(frame.name) for frame in stack if python_kind(frame.filename) == SiteKind.UNKNOWN):
        return Category.WORKSPACE
    if part == StackPart.COMMUNICATION:
        return Category.COMMUNICATION
    if part == StackPart.BACKWARD:
        return Category.GRADIENT
    if part == StackPart.OPTIMIZER:
        return Category.OPTIMIZER_STATE
    if part == StackPart.RECOMPUTED:
        return Category.ACTIVATION
    return _of_pass(stack) if part == StackPart.FORWARD else Category.UNKNOWN


def _of_pass(stack: Sequence[Frame]) -> Category:
    """A parameter if made in a module's constructor or moved, an activation if made in a forward."""
    paths = [frame.filename.replace("\\", "/") for frame in stack]
    if any(frame.name == _MOVES and _MODULE.search(path) for path, frame in zip(paths, stack, strict=True)):
        return Category.PARAMETER
    innermost = True
    for path, frame in zip(paths, stack, strict=True):
        of_module = _MODULE.search(path) is not None
        theirs = python_kind(path) in (SiteKind.USER, SiteKind.PACKAGE)
        # a function called by __init__ may make anything, including a cache of keys and values
        if frame.name in _MADE_ONCE and (of_module or theirs) and (innermost or frame.name != "__init__"):
            return Category.PARAMETER
        if of_module or frame.name == "forward":
            return Category.ACTIVATION
        innermost &= not theirs
    return Category.UNKNOWN
