"""Tracebacks, stored exceptions, suspended generators, threads and futures that keep locals."""

from __future__ import annotations

from itertools import pairwise

from leakscope.findings.candidate import Candidate
from leakscope.findings.growth import LEAST_LOOKS

NAME = "frame-hold"
CURE = ""
_KINDS = ("frame", "traceback", "exception", "generator", "thread", "future")


def applies(found: Candidate) -> bool:
    return found.group.freed == 0 and (found.through(*_KINDS) is not None or _piles_up(found))


def _piles_up(found: Candidate) -> bool:
    """More calls of one function run at each look: threads that wait and do not end, or a recursion that goes deeper."""
    more = len(found.roots) >= LEAST_LOOKS and all(a < b for a, b in pairwise(found.roots))
    return more and found.objects[0].root == "frame"


def _kept(found: Candidate) -> str:
    return next((r.name for r in found.references if r.kind == "local" and r.holder == found.objects[0].index), "its locals")


def title(found: Candidate, cut: str) -> str:
    if found.through(*_KINDS) is None:
        return f"{found.roots[-1]} calls of {found.objects[0].name}() run at once, more at each look, and each keeps {_kept(found)}"
    holder = found.through(*_KINDS)
    frame = next((o for o in reversed(found.before_tensor) if o.kind in ("frame", "generator")), holder)
    local = next((r.name for r in found.references if r.kind == "local" and frame and r.holder == frame.index), "")
    assert holder is not None and frame is not None
    inside = f" ({local} in {frame.name})" if local else ""
    return f"{holder.label} keeps the locals of a function that has ended or waits{inside}; held by {cut}"


def advice(found: Candidate, cut: str) -> str:
    holder = found.through(*_KINDS)
    if holder is None:
        return f"Let the threads that run {found.objects[0].name}() end, or start a fixed number of them once (concurrent.futures.ThreadPoolExecutor): a call that waits keeps its locals and its thread the arguments. Where it is a recursion, return before the next step."
    assert holder is not None
    if holder.kind in ("exception", "traceback", "frame"):
        return f"Keep str(error) or traceback.format_exc() in {cut}, not the exception: its traceback holds every frame it went through and all their locals. Or clear it with error.with_traceback(None)."
    if holder.kind == "generator":
        return f"Run the generator to its end or close() it, and drop it from {cut}: suspended, it holds all its locals."
    if holder.kind == "future":
        return f"Drop finished futures from {cut}: each keeps its result."
    return f"Drop the finished thread from {cut}: it keeps its attributes and arguments."
