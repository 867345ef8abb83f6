"""Tracebacks, stored exceptions, suspended generators, threads and futures that keep locals."""

from __future__ import annotations

from leakscope.findings.candidate import Candidate

NAME = "frame-hold"
CURE = ""
_KINDS = ("frame", "traceback", "exception", "generator", "thread", "future")


def applies(found: Candidate) -> bool:
    return found.group.freed == 0 and found.through(*_KINDS) is not None


def title(found: Candidate, cut: str) -> str:
    holder = found.through(*_KINDS)
    frame = next((o for o in reversed(found.before_tensor) if o.kind in ("frame", "generator")), holder)
    local = next((r.name for r in found.references if r.kind == "local" and frame and r.holder == frame.index), "")
    assert holder is not None and frame is not None
    inside = f" ({local} in {frame.name})" if local else ""
    return f"{holder.label} keeps the locals of a function that has ended or waits{inside}; held by {cut}"


def advice(found: Candidate, cut: str) -> str:
    holder = found.through(*_KINDS)
    assert holder is not None
    if holder.kind in ("exception", "traceback", "frame"):
        return f"Keep str(error) or traceback.format_exc() in {cut}, not the exception: its traceback holds every frame it went through and all their locals. Or clear it with error.with_traceback(None)."
    if holder.kind == "generator":
        return f"Run the generator to its end or close() it, and drop it from {cut}: suspended, it holds all its locals."
    if holder.kind == "future":
        return f"Drop finished futures from {cut}: each keeps its result."
    return f"Drop the finished thread from {cut}: it keeps its attributes and arguments."
