"""A small view, detached slice or numpy array that keeps a large storage."""

from __future__ import annotations

from leakscope.findings.candidate import Candidate
from leakscope.units import bytes_text

NAME = "view-hold"
CURE = ""
_LARGER = 2


def _sizes(found: Candidate) -> tuple[int, int]:
    """(bytes the held tensor spans, bytes its storage owns)."""
    return found.objects[found.tensor_at].size, found.objects[-1].bytes


def applies(found: Candidate) -> bool:
    tensor, storage = _sizes(found)
    return found.group.freed == 0 and 0 <= tensor * _LARGER <= storage


def title(found: Candidate, cut: str) -> str:
    tensor, storage = _sizes(found)
    return f"{found.objects[found.tensor_at].label} in {cut} needs {bytes_text(tensor)} and keeps a storage of {bytes_text(storage)}"


def advice(found: Candidate, cut: str) -> str:
    base = any(r.name == "._base" for r in found.references)
    if base:
        return f"Drop the view in {cut}, or keep a .detach().clone() of it: a view holds its base through ._base even when its own .data is replaced."
    return f"Clone what you keep in {cut} (.detach().clone()): a slice shares the whole storage it was cut from."
