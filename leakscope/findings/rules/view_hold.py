"""A small view, detached slice or numpy array that keeps a large storage."""

from __future__ import annotations

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import RuleName
from leakscope.graph.model import ReferenceKind
from leakscope.units import bytes_text

NAME = RuleName.VIEW_HOLD
_LARGER = 2


def _sizes(found: Candidate) -> tuple[int, int]:
    """(bytes that what is held spans, bytes its storage owns)."""
    arrays = [o.size for o in found.before_tensor if o.type.endswith(("ndarray", "memoryview")) and o.size >= 0]
    return min([*arrays, found.objects[found.tensor_at].size]), found.objects[-1].bytes


def applies(found: Candidate) -> bool:
    tensor, storage = _sizes(found)
    only_memory = all(r.kind == ReferenceKind.MEMORY for r in found.references[found.tensor_at :])
    return found.group.freed == 0 and only_memory and 0 <= tensor * _LARGER <= storage


def title(found: Candidate, cut: str) -> str:
    tensor, storage = _sizes(found)
    held = next(
        (o for o in found.before_tensor if o.type.endswith(("ndarray", "memoryview"))), found.objects[found.tensor_at]
    )
    return f"{held.label} in {cut} needs {bytes_text(tensor)} and keeps a storage of {bytes_text(storage)}"


def advice(found: Candidate, cut: str) -> str:
    base = any(r.name == "._base" for r in found.references)
    if base:
        return f"Drop the view in {cut}, or keep a .detach().clone() of it: a view holds its base through ._base even when its own .data is replaced."
    return f"Clone what you keep in {cut} (.detach().clone()): a slice shares the whole storage it was cut from."
