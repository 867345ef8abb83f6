"""Words that say why the verdict is what it is, and why something was not judged."""

from __future__ import annotations

from collections.abc import Iterable

from leakscope.findings.ledger import NO_GROWTH
from leakscope.findings.model import Findings, Unjudged
from leakscope.findings.thresholds import COUNTED, SHARE_OF_MEMORY
from leakscope.findings.why import Reason, UnjudgedReason, Why, WhyUnjudged
from leakscope.report.wording.ended import cut_short_text
from leakscope.report.wording.growth import emptied_text, would_show
from leakscope.report.wording.numbers import plural
from leakscope.report.wording.verdict.ledger import lines_text, rose_text
from leakscope.report.wording.verdict.no_step import NO_STEP_REASONS, no_step_text
from leakscope.units import bytes_text

_NOT_NAMED = (*NO_STEP_REASONS, Reason.TOO_FEW_STEPS)
"""Where garbage was seen, and too few looks to tell what keeps it."""

_MORE_AT_END = 1.2
"""Times what the last look saw from which on the figure at the end of the run is told as well: less is within what one
step more or less makes of it.
"""


def why_text(findings: Findings) -> str:
    """`2 distinct leaks: 3.00 MiB held, growing by 256.00 KiB a step`; a caller's own words as they are."""
    held = "added" if any(finding.before_bytes for finding in findings.findings) else "held"
    text = _why(findings.why, held) if isinstance(findings.why, Why) else findings.why
    over = findings.avoidable_over
    return text if over is None else f"{text}; {bytes_text(over)} avoidable, more than --fail-on-avoidable allows"


def _why(why: Why, held: str) -> str:
    if why.reason == Reason.LEAKS:
        return _leaks(why, held)
    if why.ended is not None:
        who = "it" if why.is_only_rank else f"rank {why.rank}"
        looks = f", {plural(why.count, 'look')}" if why.count else ""
        return f"{who} {cut_short_text(why.ended)}{looks}; {_so_far(why)}"
    if why.reason in NO_STEP_REASONS:
        return no_step_text(why) + _garbage(why)
    notes = f"; {plural(why.count, 'note')} below" if why.count else ""
    rest = f"; {_so_far(why)}" if why.grown is not None and why.grown.bytes > 0 else ""
    rest += f"; {plural(why.notes, 'note')} below" if why.notes else ""
    on = "" if why.is_only_rank else f" on rank {why.rank}"
    return {
        Reason.RECORDING_ENDED: f"{why.detail}{on}; {_so_far(why)}",
        Reason.LEFT_BEHIND: f"{plural(why.count, 'tensor leak')}, {bytes_text(why.bytes)} left behind",
        Reason.NOTHING_RECORDED: "nothing was recorded",
        Reason.SUPPRESSED: f"{_known(why)}{rest}",
        Reason.CLEAN_BLOCK: f"the block itself left no tensor memory behind, libraries left {bytes_text(why.bytes)}"
        if why.bytes
        else "the block left no tensor memory behind",
        Reason.WITHIN_ALLOWANCE: f"the block left at most {bytes_text(why.bytes)} behind, within its allowance",
        Reason.DAMAGED: f"{_damaged(why)}, so a leak may have been missed; {_so_far(why)}",
        Reason.TOO_FEW_STEPS: f"too few steps{on} to judge, {plural(why.count, 'step')} seen: "
        f"{_unjudged(why.unjudged)}; {_so_far(why)}; run at least {why.steps} steps",
        Reason.HIDDEN: f"{_so_far(why)}, and this torch does not show all that C++ holds, so it may be a leak",
        Reason.NO_LOOKS: f"no look was taken, and the notes say why; {_so_far(why)}",
        Reason.TOO_FEW_LOOKS: f"too few looks saw {why.detail} grow to tell a leak from a start that came to rest: run "
        f"more steps; {_so_far(why)}",
        Reason.UNBALANCED: f"{_so_far(why)}; {_to_the_end(why)}, and the looks do not tell what keeps it: run more "
        "steps",
        Reason.NEW_SHAPES: f"{_so_far(why)}; {_new_shapes(why)}, so it may be the kernels that oneDNN and ideep keep "
        "for each of them: run with fixed shapes, or with ONEDNN_PRIMITIVE_CACHE_CAPACITY=1 and LRU_CACHE_CAPACITY=1, "
        "to tell",
        Reason.NOTHING_GREW: f"{_hardly(why)}{notes}",
        Reason.LITTLE_GREW: f"{_little(why)}{notes}",
        Reason.FILLING: f"{_filling(why)}{notes}",
        Reason.BALANCED: f"{_so_far(why)}{notes}",
    }[why.reason]


def _new_shapes(why: Why) -> str:
    return f"the model was given {why.count:,} different shapes" if why.count else "shapes were new at each look"


def _little(why: Why) -> str:
    if not why.horizon:
        return "nothing grew enough to be a leak"
    return f"what grew reaches less than {SHARE_OF_MEMORY:.0%} of memory in {why.horizon:,} steps"


def _filling(why: Why) -> str:
    """`history grows by 64.00 KiB a step and is filling, cleared at train.py:31 above 64 items: ...`."""
    if why.emptied is None:
        return _so_far(why)
    until = emptied_text(why.emptied)
    grows = f"{why.detail} grows by {bytes_text(round(why.bytes_per_step))} a step and is filling, {until}"
    shown = would_show(why.emptied).rstrip(".")
    return f"{grows}: {shown[0].lower()}{shown[1:]}"


def _damaged(why: Why) -> str:
    of = "" if why.is_only_rank else f" of rank {why.rank}"
    return f"{why.detail}{of} {'are' if ',' in why.detail else 'is'} damaged and left out, in whole or in part"


def _leaks(why: Why, held: str) -> str:
    many = f"{why.count} distinct leaks" if why.count > 1 else "1 leak"
    speed = f", growing by {bytes_text(why.bytes_per_step)} a step" if why.bytes_per_step else ""
    if 0 < why.bytes_per_step < COUNTED:  # so small that its size says nothing by itself
        speed += f", {bytes_text(why.bytes_per_step * why.horizon)} after {why.horizon:,} steps"
    late = f", {bytes_text(why.freed_late)} of garbage made every step, freed late" if why.freed_late else ""
    size = f"{bytes_text(why.bytes)} {held}"
    if why.bytes_at_end >= _MORE_AT_END * why.bytes:
        size += f" at the last look, {bytes_text(why.bytes_at_end)} at the end of the run (extrapolated)"
    full = f", memory full by step {why.full_at_step:,} (extrapolated)" if why.full_at_step else ""
    return f"{many}: {size}{speed}{full}{late}"


def _known(why: Why) -> str:
    """`no new leak: 1 known leak (2.00 MiB) is suppressed by base/findings.json`."""
    are = "is" if why.count == 1 else "are"
    by = f" by {why.detail}" if why.detail else ""
    return f"no new leak: {plural(why.count, 'known leak')} ({bytes_text(why.bytes)}) {are} suppressed{by}"


def _so_far(why: Why) -> str:
    """What was counted: `counted memory rose 4.00 MiB over ...: optimizer state ...`, and the garbage that was seen."""
    if why.grown is None:
        return f"what was counted meanwhile is not known{_garbage(why)}"
    lines = lines_text(why.grown.lines)
    return f"{rose_text(why.grown)}{f': {lines}' if lines else ''}{_garbage(why)}"


def _hardly(why: Why) -> str:
    """`memory rose by 560 B a step, too little to be a leak`: what the table of the ranks shows as well."""
    rate = 0 if why.grown is None else round(why.grown.per_step)
    if why.grown is None or rate <= 0:
        return "nothing grew over the looks taken"
    most = " at most" if why.grown.among > 1 else ""
    if rate >= NO_GROWTH:  # the median step rises, and all steps together do not
        how = "no more" if why.grown.bytes <= 0 else f"{bytes_text(why.grown.bytes)} more"
        over = f"steps {why.grown.from_step} to {why.grown.to_step}"
        return f"memory comes and goes: it rises by {bytes_text(rate)} at most steps{most}, and has {how} after {over}"
    return f"memory rose by {bytes_text(rate)} a step{most}, too little to be a leak"


def _to_the_end(why: Why) -> str:
    rate = 0.0 if why.grown is None else why.grown.per_step
    return f"the counters of all steps still rise at the end, by {bytes_text(rate)} a step"


def _garbage(why: Why) -> str:
    if not why.garbage:
        return ""
    named = ", and more looks would tell what keeps it" if why.reason in _NOT_NAMED else ""
    return f"; {bytes_text(why.garbage)} of garbage waited for gc at the last look{named}"


def unjudged_text(unjudged: Unjudged) -> str:
    """`only 2 looks were taken after warm-up, and it takes 3 to tell growth`; what capture recorded as it is."""
    return _unjudged(unjudged.why)


def unjudged_together(unjudged: Iterable[Unjudged]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """(rule, ranks, why): each reason once for all ranks of which a rule gives it."""
    together: dict[tuple[str, str], list[int]] = {}
    for item in unjudged:
        together.setdefault((item.rule, unjudged_text(item)), []).append(item.rank)
    return tuple((rule, tuple(sorted(set(ranks))), why) for (rule, why), ranks in together.items())


def _unjudged(why: WhyUnjudged | str) -> str:
    if not isinstance(why, WhyUnjudged):
        return why
    taken = "no look was" if not why.looks else "only 1 look was" if why.looks == 1 else f"only {why.looks} looks were"
    looks = f"{taken} taken after warm-up, and it takes {why.needed} to tell growth"
    return {
        UnjudgedReason.TOO_FEW_LOOKS: looks,
        UnjudgedReason.NO_STEP: f"no step was seen; {looks}",
        UnjudgedReason.RAISED: f"it raised {why.error}",
        UnjudgedReason.NOT_LOADED: f"it could not be loaded: {why.error}",
        UnjudgedReason.NO_SOURCE: f"reading the source for the lines to edit raised {why.error}",
    }[why.reason]
