"""Sentences about memory at the step's peak that nothing uses again, and about how long memory lay unused."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.findings.memory.rise import RiseFacts
from leakscope.findings.model import Finding
from leakscope.findings.naming.place import place_of
from leakscope.findings.peak.drag import IdleAtPeak, LagUseDrag
from leakscope.findings.peak.idle import Releaser
from leakscope.findings.peak.late_release import LateReleaseFacts
from leakscope.findings.peak.library_drag import OthersFacts
from leakscope.findings.peak.untouched import UntouchedFacts
from leakscope.report.wording.memory import held_then_text
from leakscope.report.wording.numbers import plural
from leakscope.units import bytes_text

_OTHERS: Mapping[Releaser, tuple[str, str]] = {
    Releaser.GRADIENT: (
        "gradients of the last step are kept until zero_grad: {size} at the step's peak",
        "Call optimizer.zero_grad() right after optimizer.step(), before the next forward, and the peak falls by "
        "{fall}.",
    ),
    Releaser.COMM: (
        "sends and receives that are not yet over, or whose Work is kept, hold {size} through the step's peak",
        "Wait for an operation as early as its buffer is not needed and drop its Work then, and the peak falls by "
        "{fall}.",
    ),
    Releaser.AUTOGRAD: (
        "autograd keeps {size} through the step's peak for a backward that does not use it",
        "Compute what needs no gradient under torch.no_grad(), or detach it, so that its graph is not kept until "
        "backward, and the peak falls by {fall}.",
    ),
}
"""Who could let go to title and advice."""
_COULD_LET_GO: Mapping[Releaser, str] = {
    Releaser.USER: "your code could let go of",
    Releaser.LIBRARY: "only a library could let go of",
    Releaser.GRADIENT: "are gradients kept until zero_grad",
    Releaser.COMM: "are held by sends and receives that are not over",
    Releaser.AUTOGRAD: "autograd keeps for a backward that does not use them",
}
"""Who could let go of what is idle at the peak, after its size."""
_UNSEEN_SHARE = 0.01
"""Share of the peak from which what nobody saw being made is told; chosen."""


def late_release_title(finding: Finding, facts: LateReleaseFacts) -> str:
    """`out in main()` at train.py:31: how much it keeps, since which line, and by how much the peak could fall."""
    assert finding.cut is not None
    where = f" at {finding.cut.where}" if finding.cut.where else ""
    them = "it" if facts.holders == 1 else "them"
    by_name = f" (del {', '.join(facts.variables)})" if facts.variables and not facts.arguments else ""
    return (
        f"`{finding.cut.written}`{where}: {bytes_text(facts.bytes)} at the step's peak, {_last_use(facts)}; "
        f"let go of {them}{by_name} and the peak falls by {bytes_text(facts.fall_bytes)}"
    )


def _last_use(facts: LateReleaseFacts) -> str:
    if facts.last_use_at:
        return f"last used at {line_of(facts.last_use_at)}"
    return f"not used since {line_of(facts.made_at)} made it" if facts.made_at else "not used in the step at all"


def late_release_advice(finding: Finding, facts: LateReleaseFacts) -> str:
    """When to let go of it, and what stands in the way."""
    assert finding.cut is not None
    text = (
        f"Let go of {finding.cut.written} after the last use, or move that part into a function of its own; the peak "
        f"is at {facts.peak_at}."
    )
    return text + _of_arguments(facts) + (_SAVED if facts.is_saved else "")


_SAVED = (
    " A grad node that has already run still keeps it as a saved tensor: drop retain_graph=True, or the last reference "
    "to the graph."
)


def _of_arguments(facts: LateReleaseFacts) -> str:
    if not facts.arguments:
        return ""
    return (
        f" {_is_argument(facts)} of a running call: what a caller hands over stays alive until the call returns, "
        "unless it is passed in a list that the callee empties (a boxed call) and no caller keeps a name for it."
    )


def boxed_text(facts: LateReleaseFacts) -> str:
    """What to do about arguments of a running call, in one sentence; "" where there are none."""
    if not facts.arguments:
        return ""
    return f" {_is_argument(facts)} of a running call: hand it over in a list that the callee empties."


def _is_argument(facts: LateReleaseFacts) -> str:
    return f"{', '.join(facts.arguments)} {'is an argument' if len(facts.arguments) == 1 else 'are arguments'}"


def line_of(place: str) -> str:
    """`train.py:41` of `train.py:41 forward (aten::addmm)`; all of it where it begins with no line."""
    told = place_of(place)
    return place if told is None else told.at


def untouched_title(finding: Finding, facts: UntouchedFacts) -> str:
    """`ckpt in main()` at train.py:12: how much it keeps, since when, and by how much the peak could fall."""
    assert finding.cut is not None
    where = f" at {finding.cut.where}" if finding.cut.where else ""
    them = "it" if facts.holders == 1 else "them"
    by_name = f" (del {', '.join(facts.variables)})" if facts.variables else ""
    return (
        f"`{finding.cut.written}`{where}: {bytes_text(facts.bytes)} idle since before step {facts.first_step}, "
        f"{_held_for_nothing(facts)}; no operation of steps {facts.first_step} and {facts.last_step} touched it; "
        f"let go of {them}{by_name} and {_gain(facts)}"
    )


def _held_for_nothing(facts: UntouchedFacts) -> str:
    if not facts.functions:
        return "which no code reads again"
    have = "has" if len(facts.functions) == 1 else "have"
    return f"in variables of {' and '.join(facts.functions)}, which {have} ended"


def _gain(facts: UntouchedFacts) -> str:
    on_device = facts.bytes - facts.host_bytes
    parts = [f"the peak falls by {bytes_text(on_device)}"] if on_device else []
    parts += [f"{bytes_text(facts.host_bytes)} of host memory are free"] if facts.host_bytes else []
    return " and ".join(parts)


def untouched_advice(_finding: Finding, facts: UntouchedFacts) -> str:
    """How to let go of it."""
    if facts.functions:
        return (
            "A stored exception or traceback keeps every variable of the calls it came through. Keep its text "
            "(traceback.format_exception) instead, or clear it: `error.__traceback__ = None`."
        )
    return (
        "Delete the variable after its last use, or move that part into a function of its own. Where native code was "
        "given its address, it has to stay."
    )


def others_title(_finding: Finding, facts: OthersFacts) -> str:
    """Who keeps how much through the peak."""
    return _OTHERS[facts.by][0].format(size=bytes_text(facts.bytes))


def others_advice(_finding: Finding, facts: OthersFacts) -> str:
    """What makes them let go."""
    return _OTHERS[facts.by][1].format(fall=bytes_text(facts.fall_bytes))


def lag_use_drag_text(facts: LagUseDrag) -> str:
    """How much of the time that the storages of a step were alive they were of use."""
    lag, use, drag = facts.lag_byte_seconds, facts.use_byte_seconds, facts.drag_byte_seconds
    whole = lag + use + drag
    return (
        f"the {facts.storages} storages that the step before step {facts.step} made and let go: of the time that their "
        f"bytes were alive, {lag / whole:.0%} was before the first use, {use / whole:.0%} between uses, "
        f"{drag / whole:.0%} after the last."
    )


def idle_text(facts: IdleAtPeak) -> str:
    """How high the peak was, and who could let go of what was idle then."""
    at = f" at {facts.peak_at}" if facts.peak_at else ""
    on = "" if facts.device == "cpu" else f" on {facts.device}"
    text = f"the peak of step {facts.step}{on} was {bytes_text(facts.peak_bytes)}{at}"
    idle = f"{bytes_text(facts.idle_bytes)} of it were not used again"
    named = [f"{bytes_text(facts.by[who])} {words}" for who, words in _COULD_LET_GO.items() if facts.by.get(who)]
    beside = (
        f" Beside it {bytes_text(facts.unseen_bytes)} were alive that other threads or native code had made unseen."
        if facts.unseen_bytes > _UNSEEN_SHARE * facts.peak_bytes
        else ""
    )
    return f"{text}; {idle}{': ' if named else ''}{', '.join(named)}.{beside}"


def rise_text(facts: RiseFacts) -> str:
    """How high tensor memory rose in a test; then, a line each, who made and who held what was alive at the peak."""
    lines = [f"tensor memory rose by {bytes_text(facts.bytes)}, {bytes_text(facts.allowed_bytes)} allowed"]
    if facts.made and facts.made[0].where:
        lines[0] += f": {facts.made[0].where} made {bytes_text(facts.made[0].bytes)} of it"
    lines += ["", f"alive at the peak, after {facts.at}, by the line that made it:"]
    for made in facts.made:
        where = made.where or "made where nobody saw it: in another thread, by numpy or from a file"
        lines.append(f"  {bytes_text(made.bytes)} in {plural(made.storages, 'storage')}: {where}")
    if facts.held_bytes:
        risen, (operation, returned) = bytes_text(facts.held_bytes), facts.returned
        when = "then" if risen == bytes_text(facts.bytes) else f"when it had risen by {risen}"
        lines += ["", f"who held it {when}:", *(f"  {held_then_text(held)}" for held in facts.held)]
        if returned:
            lines.append(f"  {bytes_text(returned)}: nobody yet, {operation} was about to return it")
    if any(device != "cpu" for device, _ in facts.devices):
        on = ", ".join(f"{bytes_text(size)} on {device}" for device, size in facts.devices)
        lines.append(f"  of that {on}")
    return "\n".join(lines) + "\n"
