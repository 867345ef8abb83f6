"""Where would the user begin to name what holds a tensor, and which running functions are there for the look only?"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from leakscope.capture.heap.raw_types import is_of_leakscope
from leakscope.capture.source.user_source import is_users

if TYPE_CHECKING:
    from leakscope.capture.heap.native.references import NativeReferences


GivenRoot = tuple[str, weakref.ref[object]]
"""The name that the user gave an object, as `trainer.model`, and the object for as long as it lives."""


@dataclass(frozen=True)
class Beginnings:
    """What traces begin with, or had better not, by index in the sweep."""

    given: Mapping[int, str]
    """What the user gave a name, to that name."""
    callbacks: frozenset[int]
    """The functions of the user's that a library has called, and that called us."""


def given_places(native: NativeReferences, given: Sequence[GivenRoot]) -> dict[int, str]:
    """Index of each that still lives, with its name; of two names for one object the shorter."""
    places: dict[int, str] = {}
    for name, of in sorted(given, key=lambda root: -len(root[0])):
        index = native.find(id(of()))  # nothing is kept: id(None) is that of no object gc tracks
        if index >= 0:
            places[index] = name
    return places


def callback_frames(native: NativeReferences) -> frozenset[int]:
    """Index of the frame that called leakscope, and of the user's above it, where a library called the first of them.

    None where the script's own code calls, as in a loop that is its own.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and _is_between(frame):
        frame = frame.f_back
    places = []
    while frame is not None and is_users(frame.f_code.co_filename) and frame.f_code.co_name != "<module>":
        places.append(native.find(id(frame)))
        frame = frame.f_back
    by_library = frame is not None and frame.f_code.co_name != "<module>" and not _has_no_file(frame)
    return frozenset(places) if by_library else frozenset()


def _is_between(frame: FrameType) -> bool:
    """Whether a frame is leakscope's, or of what its `with` blocks go through."""
    name = frame.f_globals.get("__name__")
    return is_of_leakscope(name) or name == "contextlib"


def _has_no_file(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<")
