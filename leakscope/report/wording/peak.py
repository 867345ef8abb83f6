"""Sentences about memory at the step's peak that nothing uses again."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.findings.model import Finding
from leakscope.findings.peak.idle import Releaser
from leakscope.findings.peak.late_release import LateReleaseFacts
from leakscope.findings.peak.library_drag import OthersFacts
from leakscope.units import bytes_text

_OTHERS: Mapping[Releaser, tuple[str, str]] = {
    Releaser.LIBRARY: (
        "libraries and running calls keep {size} through the step's peak that nothing uses again",
        "No variable of yours holds it alone: a running call or an object of a library does. Passing less, or calling "
        "the parts of it yourself, may help.",
    ),
    Releaser.GRADIENT: (
        "gradients of the last step are kept until zero_grad: {size} at the step's peak",
        "Call optimizer.zero_grad() right after optimizer.step(), before the next forward.",
    ),
    Releaser.COMM: (
        "sends and receives that are not yet over, or whose Work is kept, hold {size} through the step's peak",
        "Wait for an operation as early as its buffer is not needed, and drop its Work then.",
    ),
    Releaser.AUTOGRAD: (
        "autograd keeps {size} through the step's peak for a backward that does not use it",
        "Compute what needs no gradient under torch.no_grad(), or detach it, so that its graph is not kept until "
        "backward.",
    ),
}
"""Who could let go to title and advice."""


def late_release_title(finding: Finding, facts: LateReleaseFacts) -> str:
    """What keeps how much through the peak."""
    assert finding.cut is not None
    where = f", {finding.cut.where}," if finding.cut.where else ""
    keep = "keeps" if facts.holders == 1 else "keep"
    size = bytes_text(facts.bytes)
    return f"{finding.cut.written}{where} {keep} {size} through the step's peak that nothing uses again"


def late_release_advice(finding: Finding, facts: LateReleaseFacts) -> str:
    """When to let go of it, and what that gains."""
    assert finding.cut is not None
    used = f"last used at {facts.last_use_at}" if facts.last_use_at else "not used in the step at all"
    text = (
        f"Let go of {finding.cut.written} after the last use, or move that part into a function of its own. The "
        "largest "
        f"was {used}; the peak is at {facts.peak_at}. The step's peak would fall by {bytes_text(facts.fall_bytes)}."
    )
    if facts.arguments:
        is_argument = "is an argument" if len(facts.arguments) == 1 else "are arguments"
        text += (
            f" {', '.join(facts.arguments)} {is_argument} of a running call: what a caller hands over stays alive "
            "until "
            "the call returns, unless it is passed in a list that the callee empties (a boxed call) and no "
            "caller keeps "
            "a name for it."
        )
    if facts.is_saved:
        text += (
            " A grad node that has already run still keeps it as a saved tensor: drop retain_graph=True, or the last "
            "reference to the graph."
        )
    return text


def others_title(_finding: Finding, facts: OthersFacts) -> str:
    """Who keeps how much through the peak."""
    return _OTHERS[facts.by][0].format(size=bytes_text(facts.bytes))


def others_advice(_finding: Finding, facts: OthersFacts) -> str:
    """What makes them let go."""
    return _OTHERS[facts.by][1]
