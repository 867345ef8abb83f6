"""How much memory has a picture of PIL, of which Python sees nothing?"""

from __future__ import annotations

from typing import Any

from leakscope.capture.heap.raw_types import type_dict, type_name

_CORE = "ImagingCore"
"""Name of the type of Pillow's C part, which a PIL image has as `.im` (Pillow src/_imaging.c)."""
_ONE_BYTE = ("1", "L", "P")
"""Modes of which a pixel takes a byte (Pillow src/libImaging/Storage.c)."""
_TWO_BYTES = "I;16"
"""Begins the modes of which it takes two; of all others it takes four."""


def picture_bytes(obj: Any, kind: type) -> int:
    """Bytes of the pixels of a PIL image's C part; 0 for anything else."""
    if type_name(kind) != _CORE:
        return 0
    names = type_dict(kind)
    try:
        mode, (width, height) = names["mode"].__get__(obj), names["size"].__get__(obj)
    except (KeyError, TypeError, ValueError, AttributeError):  # another's type of that name
        return 0
    pixel = 1 if mode in _ONE_BYTE else 2 if str(mode).startswith(_TWO_BYTES) else 4
    return int(width) * int(height) * pixel
