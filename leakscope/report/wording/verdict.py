"""Words that say why the verdict is what it is, and why something was not judged."""

from __future__ import annotations

from leakscope.findings.model import Findings, Unjudged
from leakscope.findings.why import Reason, UnjudgedReason, Why, WhyUnjudged
from leakscope.report.wording.numbers import plural
from leakscope.units import bytes_text


def why_text(findings: Findings) -> str:
    """`2 distinct leaks: 3.00 MiB held, growing by 256.00 KiB a step`; a caller's own words as they are."""
    text = _why(findings.why) if isinstance(findings.why, Why) else findings.why
    over = findings.avoidable_over
    return text if over is None else f"{text}; {bytes_text(over)} avoidable, more than --fail-on-avoidable allows"


def _why(why: Why) -> str:
    if why.reason == Reason.LEAKS:
        many = f"{why.count} distinct leaks" if why.count > 1 else "1 leak"
        speed = f", growing by {bytes_text(why.bytes_per_step)} a step" if why.bytes_per_step else ""
        return f"{many}: {bytes_text(why.bytes)} held{speed}"
    after = f"after {plural(why.steps, 'step')}; nothing grew until then"
    notes = f"; {plural(why.count, 'note')} below" if why.count else ""
    return {
        Reason.LEFT_BEHIND: f"{plural(why.count, 'tensor leak')}, {bytes_text(why.bytes)} left behind",
        Reason.NOTHING_RECORDED: "nothing was recorded",
        Reason.CLEAN_BLOCK: "the block left no tensor memory behind",
        Reason.NO_STEP: "no step was seen: no torch optimizer stepped; mark steps with leakscope.Profiler, or see what "
        "was alive at the end",
        Reason.KILLED: f"rank {why.rank} was killed {after}",
        Reason.HUNG: f"rank {why.rank} hung {after}",
        Reason.TOO_FEW_STEPS: f"too few steps to judge: {_unjudged(why.unjudged)}; run at least {why.steps} steps",
        Reason.TOO_FEW_LOOKS: f"too few looks saw {why.detail} grow to tell a leak from a start that came to rest: run "
        "more steps",
        Reason.NOTHING_GREW: f"nothing grew over the looks taken{notes}",
        Reason.LITTLE_GREW: f"nothing grew enough to be a leak{notes}",
    }[why.reason]


def unjudged_text(unjudged: Unjudged) -> str:
    """`only 2 looks after warm-up, growth needs 3`; what capture recorded as it is."""
    return _unjudged(unjudged.why)


def _unjudged(why: WhyUnjudged | str) -> str:
    if not isinstance(why, WhyUnjudged):
        return why
    looks = f"only {plural(why.looks, 'look')} after warm-up, growth needs {why.needed}"
    return {
        UnjudgedReason.TOO_FEW_LOOKS: looks,
        UnjudgedReason.NO_STEP: f"no step was seen; {looks}",
        UnjudgedReason.RAISED: f"it raised {why.error}",
        UnjudgedReason.NOT_LOADED: f"it could not be loaded: {why.error}",
    }[why.reason]
