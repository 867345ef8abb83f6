"""Sentences of the verdict: headline, why, next step, growth breakdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from leakscope.findings.comm import deadlock_cycle, ended_from_outside, first_to_blame, first_to_fail
from leakscope.findings.counters import counted_rate
from leakscope.findings.facts import CameToRest, FollowsInput, HeldByCall, Severity
from leakscope.findings.model import (
    NO_GROWTH,
    Finding,
    Findings,
    Grown,
    Line,
    LineKind,
    Reason,
    RestedKind,
    Unjudged,
    UnjudgedReason,
    Why,
    WhyUnjudged,
    by_kind,
    grown_of,
    merged_lines,
)
from leakscope.findings.oom import largest_holder, ranks_out_of_memory
from leakscope.findings.thresholds import COUNTED, SHARE_OF_MEMORY
from leakscope.report.escape import cleaned, one_line
from leakscope.report.messages.comm import deadlock_text
from leakscope.report.messages.ended import cut_short_text, error_text, failure_text, is_hung, processes_text, was_text
from leakscope.report.messages.growth import would_show
from leakscope.report.messages.held import also_text, cut_name, line_to_edit, would_be_freed
from leakscope.report.messages.sections import (
    again_text,
    avoidable,
    is_worth_telling,
    leaks,
    library,
    notes,
    of_block,
    so_far_text,
    steps_of,
)
from leakscope.run.model import Rank, Run
from leakscope.run.rows import MadeBy
from leakscope.run.suppression import Suppression
from leakscope.units import bytes_text, listed_numbers, one_of_each, plural
from leakscope.verdict import Verdict

KINDS: dict[LineKind, str] = {
    LineKind.LEAKS: "leak",
    LineKind.LIBRARY: "closed or held by a library",
    LineKind.BOUND: "filling a declared bound",
    LineKind.GARBAGE: "waiting for gc",
    LineKind.SLOW: "grows, not judged a leak",
    LineKind.RESTED: "came to rest, or comes and goes",
    LineKind.FOLLOWS: "follows the size of the input",
    LineKind.APART: "suppressed or known before",
    LineKind.OBJECTS: "Python objects that are no tensors",
    LineKind.GRAD_NODES: "grad nodes of graphs",
    LineKind.BLOCKS: "device blocks that are no tensor",
    LineKind.UNATTRIBUTED: "unattributed",
}
"""What each line of the ledger is."""
NO_HOLDER = (LineKind.UNATTRIBUTED, LineKind.GRAD_NODES, LineKind.BLOCKS)
"""Lines that are a leak where nothing else is known of one."""
FREED = "from before, freed since"
"""What is unattributed where it is less than nothing: what was there at the first judged snapshot, as the records of a
watched step or what imports leave, and is gone.
"""
_SAID = 4
"""Lines that one sentence lists; chosen."""
_SHARE = 0.01
"""Share of all that moved below which a line is not listed in a sentence; chosen."""


def line_text(line: Line) -> str:
    """`leak: losses in main()`, `optimizer state that came to rest`."""
    if line.kind == LineKind.RESTED and line.rested not in (None, RestedKind.OTHER):
        return f"{line.rested} that came to rest"
    if line.kind == LineKind.UNATTRIBUTED and line.bytes < 0:
        return FREED
    if line.kind in NO_HOLDER and line.fingerprint and not line.holder:
        return f"{KINDS[line.kind]}: a leak whose holder is not known"
    return f"{KINDS[line.kind]}: {line.holder}" if line.holder else KINDS[line.kind]


def rose_text(grown: Grown, rate: bool = True) -> str:
    """`counted memory rose 4.61 MiB over 6 looks, steps 3 to 14 (429.10 KiB a step)`; the rate is the counters'."""
    what = "counted memory" if grown.is_counted else "the memory of tensors"
    what += f" of rank {grown.rank}" if grown.among > 1 else ""
    over = f"over {plural(grown.looks, 'look')}, steps" if grown.looks else "over steps"
    over = f"{over} {grown.from_step} to {grown.to_step}"
    if grown.to_end:
        over = f"from step {grown.from_step} to the end of the script's main code"
    if grown.bytes == 0:
        return f"{what} is what it was {over}"
    if grown.until is not None:
        return f"{what} rose {bytes_text(grown.bytes)} by step {grown.until} and no more {over}"
    how = "rose" if grown.bytes > 0 else "fell"
    speed = f" ({bytes_text(abs(grown.per_step))} a step)" if rate and grown.per_step * grown.bytes > 0 else ""
    return f"{what} {how} {bytes_text(abs(grown.bytes))} {over}{speed}"


def projected_text(run: Run, per_step: float) -> str:
    """`238.42 MiB after 100,000 steps`: what growth of plain data is weighed by."""
    return f"{bytes_text(per_step * run.horizon)} after {run.horizon:,} steps"


def lines_text(lines: Iterable[Line]) -> str:
    """`optimizer state that came to rest 1.10 MiB, unattributed 96.00 KiB`: the largest lines of a growth."""
    told = sorted(lines, key=lambda line: -abs(line.bytes))
    moved = sum(abs(line.bytes) for line in told)
    return ", ".join(_moved_text(line) for line in told[:_SAID] if abs(line.bytes) >= _SHARE * moved)


def _moved_text(line: Line) -> str:
    """`optimizer state that came to rest 1.10 MiB`; of what shrank, that it was freed."""
    words = line_text(line)
    return f"{words} {bytes_text(line.bytes)}" if line.bytes >= 0 else _kind_text(line.bytes, words)


def kinds_text(lines: Iterable[Line]) -> str:
    """`27.00 MiB leaked, 614.11 KiB grad nodes of graphs`: the kinds that moved, but for the small ones."""
    words = {**KINDS, LineKind.LEAKS: "leaked"}
    sizes = by_kind(lines)
    moved = max(sum(map(abs, sizes.values())), 1 / _SHARE)
    largest = sorted(sizes.items(), key=lambda item: -abs(item[1]))
    return ", ".join(_kind_text(size, words[kind]) for kind, size in largest if abs(size) >= _SHARE * moved)


def _kind_text(size: int, words: str) -> str:
    """What has become less was there before the first judged look, as what a script's imports leave is, and is told so:
    it is no growth of a negative size.
    """
    if size >= 0:
        return f"{bytes_text(size)} {words}"
    freed = f"{bytes_text(-size)} from before was freed"
    return freed if words in (KINDS[LineKind.UNATTRIBUTED], FREED) else f"{freed} ({words})"


def ledger_table(
    findings: Findings, groups: Sequence[Sequence[int]] = ()
) -> tuple[tuple[Grown, int, tuple[tuple[int, float, str], ...]], ...]:
    """(what grew, of how many more ranks, its lines) for each rank whose memory grew, alike for text and page; of each
    line (bytes, bytes a step, what it is), the largest first.

    `groups`: ranks that did the same; of each the one that grew most is told.
    """
    found = (grown_of(number, findings.ledgers[number]) for number in findings.ledgers)
    grown = {each.rank: each for each in found if each is not None and each.bytes >= NO_GROWTH * each.steps}
    by_growth = [sorted(group, key=lambda rank: (-grown[rank].bytes if rank in grown else 0, rank)) for group in groups]
    told = one_of_each(grown, by_growth)
    return tuple(
        (
            grown[rank],
            more,
            tuple((line.bytes, line.bytes / grown[rank].steps, line_text(line)) for line in _worth_a_line(grown[rank])),
        )
        for rank, more in told.items()
    )


def _worth_a_line(grown: Grown) -> tuple[Line, ...]:
    """All lines, those too small to be told as one each of their kind, so that they add up."""
    least = max(_SHARE * sum(abs(line.bytes) for line in grown.lines), 1)
    large = [line for line in grown.lines if abs(line.bytes) >= least]
    small = [Line(line.kind, line.bytes) for line in grown.lines if abs(line.bytes) < least]
    return (*large, *merged_lines(small))


NO_STEP_REASONS = (Reason.NO_STEP, Reason.FUNCTION_SILENT, Reason.FUNCTION_MISSING, Reason.SPAWNED)


def no_step_text(why: Why) -> str:
    """Why there was none."""
    if why.reason == Reason.SPAWNED:
        return (
            f"no step was seen in the script's own process, which started {processes_text(why.processes)}; they are "
            "not seen yet"
        )
    return {
        Reason.NO_STEP: "no step was seen: no torch optimizer stepped, and no backward pass or call of a module "
        "could be taken for a step",
        Reason.FUNCTION_SILENT: f"no step was seen: {why.detail}() never returned",
        Reason.FUNCTION_MISSING: f"no step was seen: the script has no function {why.detail}, nor does it import one"
        + (f"; did you mean {' or '.join(why.near)}?" if why.near else ""),
    }[why.reason]


def no_step_next(why: Why | str) -> str:
    """What to do about it, as a sentence."""
    reason = why.reason if isinstance(why, Why) and why.reason in NO_STEP_REASONS else Reason.NO_STEP
    return {
        Reason.NO_STEP: "Name the function that makes one step with --step-function NAME, or mark the steps with "
        "leakscope.Profiler; what was alive at the end is listed below.",
        Reason.FUNCTION_SILENT: "Name a function that is called once a step with --step-function.",
        Reason.FUNCTION_MISSING: "Write the name as in the script, like train_step or Trainer.training_step, or with "
        "the module it is imported from.",
        Reason.SPAWNED: "Let leakscope start the processes: take the start out of the script and give --ranks N.",
    }[reason]


_NAMED = 5
"""Suppressions that one sentence names; chosen."""


def suppressed_by_text(finding: Finding) -> str:
    """`suppressed by known.txt:3 until 2027-01-31: the cache, issue 12`; "" where nothing suppresses it."""
    one = finding.suppressed_by
    if one is None:
        return ""
    until = f" until {one.until}" if one.until else ""
    by = f" by {_place(one)}" if one.source else ""
    reason = f": {one.reason}" if one.reason else ""
    return f"suppressed{by}{until}{reason}"


def suppression_notes(findings: Findings) -> Iterator[str]:
    """What has expired, and what names nothing that was found: a sentence each."""
    if findings.expired:
        last = ", ".join(f"{_named(one)}, last day {one.until}" for one in findings.expired[:_NAMED])
        yield f"No longer suppressed: {last}{_more(findings.expired)}"
    if findings.unused:
        yield f"Suppressed, but not found: {', '.join(map(_named, findings.unused[:_NAMED]))}{_more(findings.unused)}"


def _named(one: Suppression) -> str:
    return f"`{one.pattern}` ({_place(one)})" if one.source else f"`{one.pattern}`"


def _place(one: Suppression) -> str:
    return f"{one.source}:{one.line}" if one.line else one.source


def _more(many: Sequence[Suppression]) -> str:
    return f" and {len(many) - _NAMED} more" if len(many) > _NAMED else ""


def headline(run: Run, findings: Findings) -> str:
    """`2 distinct leaks`, `Out of memory on rank 1`, `Failed: cannot tell whether it leaks`, `No leak so far`."""
    return f"{_headline(run, findings)}{' so far' if so_far_text(run) else ''}"


def _headline(run: Run, findings: Findings) -> str:
    full = sorted(rank.number for rank in ranks_out_of_memory(run))
    if full:
        return f"Out of memory on {'ranks' if len(full) > 1 else 'rank'} {listed_numbers(tuple(full))}"
    if told := leaks(findings):
        return plural(len(told), "distinct leak")
    if findings.verdict == Verdict.LEAKS:
        return "Leaks"
    if findings.verdict == Verdict.CLEAN:
        over = findings.avoidable_over
        but = "" if over is None else f", but {bytes_text(over)} avoidable: more than allowed"
        grows = growing_text(run, findings)
        though = f", though {grows}" if grows else ""
        return f"{'No new leak' if leaks_known(findings) else 'No leak'}{but}{though}"
    ended = "Hung" if any(is_hung(rank) for rank in run.ranks) else failure_text(run)[0]
    return f"{ended}: cannot tell whether it leaks" if ended else "Cannot tell whether it leaks"


def growing_text(run: Run, findings: Findings) -> str:
    """`kept grows by 24 B a step, 2.29 MiB after 100,000 steps`: what grows or fills in a run that is clean; "" where
    nothing does.
    """
    if findings.verdict != Verdict.CLEAN:
        return ""
    seen = [f for f in (*notes(findings), *library(findings)) if f.bytes_per_step > 0]
    growing = [f for f in seen if not f.settled]
    filling = [f for f in seen if f.settled and not isinstance(f.settled_by, CameToRest | FollowsInput | HeldByCall)]
    told = growing or filling
    if not told:
        return ""
    most = max(told, key=lambda finding: finding.bytes_per_step)
    name = one_line(cleaned(cut_name(most.cut) if most.cut is not None else most.subject)) or "memory"
    others = f" and {len(told) - 1} more" if len(told) > 1 else ""
    if not growing:
        return f"{name}{others} {'is' if len(told) == 1 else 'are'} filling up to a bound"
    rate = sum(finding.bytes_per_step for finding in growing)
    verb = "grows" if len(growing) == 1 else "grow"
    return f"{name}{others} {verb} by {bytes_text(rate)} a step, {projected_text(run, rate)}"


def leaks_known(findings: Findings) -> bool:
    """Whether it leaks in a way that is known."""
    return any(finding.is_leak for finding in findings.suppressed)


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
    until = why.emptied.text
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


_BORNE_OUT = 0.5
"""Share of a growth over the looks that the counters of all steps show where it went on; chosen."""
_LOGS_TOLD = 4
"""Logs of ranks that wait for each other that a sentence names; chosen."""
UNMARKED = "Mark each step of the loop, with profiler.step() or profiler.wrap(train_step)."
"""What to do where a Profiler has seen no step."""


def next_text(run: Run, findings: Findings) -> str:
    """What the reader should do now."""
    told = leaks(findings)
    culprit = first_to_fail(run)
    first = "" if culprit is None else _look_first(run, culprit)
    if culprit is not None and culprit.number in {rank.number for rank in ranks_out_of_memory(run)}:
        return first + _after_out_of_memory(run, culprit, told)
    if told:
        return first + _cut_first(run, told)
    if first:
        return first + "What is told below was recorded before that."
    if culprit is not None and not ended_from_outside(culprit):
        return f"Mend what ended the script first, then {again_text(run)}."
    reason = findings.why.reason if isinstance(findings.why, Why) else None
    if of_block(run):
        return _nothing_to_mend(findings) if findings.verdict == Verdict.CLEAN else ""
    if steps_of(run) == 0 and reason != Reason.RECORDING_ENDED:
        return no_step_next(findings.why) if run.made_by == MadeBy.COMMAND else UNMARKED
    if findings.verdict == Verdict.INCONCLUSIVE:
        return _to_judge(run, findings)
    growing = [f for f in notes(findings) if f.bytes_per_step > 0 and not f.settled]
    return _of_growing(run, growing) if growing else _nothing_to_mend(findings)


def _nothing_to_mend(findings: Findings) -> str:
    known = [f for f in findings.suppressed if f.severity == Severity.LEAK]
    if known:
        rate = sum(f.bytes_per_step for f in known if not f.freed_late)
        grows = f", and still grows by {bytes_text(rate)} a step" if rate else ""
        return f"Nothing new to mend. What is known is listed below{grows}."
    if could_go := avoidable(findings):
        return f"No leak to mend, but {_could_go(could_go)}"
    extra = notes(findings) or library(findings)
    return "Nothing to mend." + (" What is listed below is worth a glance." if extra else "")


def _could_go(found: Sequence[Finding]) -> str:
    """As in: 8.00 MiB could be let go of, listed below: most of it is held by batch in main() at train.py:33."""
    largest = found[0]
    holder = cut_name(largest.cut) if largest.cut is not None else largest.subject
    most = "it is" if len(found) == 1 else "most of it is"
    held = f": {most} held by `{one_line(cleaned(holder))}`{_at(largest)}" if holder else ""
    return f"{bytes_text(sum(f.retained_bytes for f in found))} could be let go of, listed below{held}."


def _of_growing(run: Run, growing: Sequence[Finding]) -> str:
    """Whether notes that grew are worth a look, by the counters of all steps too."""
    per_step = bytes_text(sum(finding.bytes_per_step for finding in growing))
    if (rate := _counters_say(run, growing)) is not None:
        return (
            f"Nothing to mend, as far as this run tells: what is listed below grew by {per_step} a step over the looks "
            f"only; the counters of all steps rose by {bytes_text(max(rate, 0))} a step."
        )
    small = not any(_is_large(f) for f in growing)
    more = f", {projected_text(run, sum(f.bytes_per_step for f in growing))}" if small else ""
    most = max(growing, key=lambda finding: finding.bytes_per_step)
    name = one_line(cleaned(cut_name(most.cut) if most.cut is not None else most.subject))
    if not name:
        return f"Look at what is listed below: it grows by {per_step} a step{more}."
    others = f"; all that is listed below grows by {per_step} a step" if len(growing) > 1 else ""
    keeps = f"it keeps {bytes_text(most.bytes_per_step)} more each step{more}"
    return f"Look at `{name}`{_at(most)}: {keeps}{_would_end(most)}{others}."


def _would_end(finding: Finding) -> str:
    """``; `total += loss.item()` there would end it``: an edit of one line."""
    edit = finding.suggestion.after if finding.suggestion is not None and not finding.suggestion.also else ""
    return f"; `{one_line(cleaned(edit))}` there would end it" if edit and "\n" not in edit else ""


def _to_judge(run: Run, findings: Findings) -> str:
    """What would tell a leak from what is none."""
    why = findings.why if isinstance(findings.why, Why) else None
    known = "" if why is None else _to_judge_by(why, run)
    if known:
        return known
    listed = any(is_worth_telling(item) for item in findings.unjudged)
    mend = ", or mend what kept the rules from judging, listed below" if listed else ""
    return f"Run it for longer (at least {_longer(run)} steps){mend}."


def _longer(run: Run) -> int:
    return max(10, 2 * steps_of(run))


def _to_judge_by(why: Why, run: Run) -> str:
    """The same where the reason says it; "" where it does not."""
    if why.reason == Reason.TOO_FEW_STEPS and not why.is_only_rank:
        return f"Let rank {why.rank} run at least {why.steps} steps."
    more = f"Run at least {_longer(run)} steps: more looks tell what keeps it, or that it comes to rest."
    until = f", or for {why.steps:,} steps, when those caches are full" if why.steps else ""
    return {
        Reason.RECORDING_ENDED: f"Mend what ended the recording, then {again_text(run)}; if it was nothing of yours, "
        "it is a fault of leakscope's to be reported. The script was not touched by it.",
        Reason.FILLING: "" if why.emptied is None else would_show(why.emptied),
        Reason.NEW_SHAPES: "Run it with fixed shapes, or with ONEDNN_PRIMITIVE_CACHE_CAPACITY=1 and "
        f"LRU_CACHE_CAPACITY=1{until}: does it still grow?",
        Reason.DAMAGED: "Record it again, in a folder that nothing else writes to.",
        Reason.HIDDEN: "Run it with a torch that leakscope knows better; the notes say what this one lacks.",
        Reason.NO_LOOKS: "Mend what kept leakscope from looking, in the notes below; the counters of the steps are all "
        "there is.",
        Reason.UNBALANCED: more,
        Reason.TOO_FEW_LOOKS: more,
    }.get(why.reason, "")


def _after_out_of_memory(run: Run, rank: Rank, told: tuple[Finding, ...]) -> str:
    """What to let go of on the rank whose allocation failed; else its own leaks before those of other ranks."""
    own = tuple(f for f in told if rank.number in f.ranks and f.cut is not None)
    holder = largest_holder(rank)
    if holder is None:
        told = (*own, *(f for f in told if f not in own)) if own else told
        return _cut_first(run, told) if told else "What is told below was recorded before that."
    name, where = one_line(cleaned(holder.name)), f" at {cleaned(holder.where)}" if holder.where else ""
    parts = f"{bytes_text(holder.bytes)} of {bytes_text(holder.alive_bytes)}"
    said = f"`{name}`{where} was the largest holder on rank {rank.number} when its allocation failed: {parts}."
    if any(f.cut is not None and cut_name(f.cut) == name for f in own):
        return f"{said} Cut it, then {again_text(run)}."
    return f"{said} Let go of what it need not keep, then {again_text(run)}."


def _look_first(run: Run, culprit: Rank) -> str:
    blamed = ended_from_outside(culprit) and culprit.number == first_to_blame(run)
    cycle = deadlock_cycle(run) if blamed else ()
    if culprit.number in cycle:
        logs = [rank.ended.log for rank in run.ranks if rank.number in cycle and rank.ended.log]
        more = f" and {len(logs) - _LOGS_TOLD} more" if len(logs) > _LOGS_TOLD else ""
        told = f" (their logs: {', '.join(logs[:_LOGS_TOLD])}{more})" if logs else ""
        return (
            f"Look at ranks {listed_numbers(cycle)} first: they wait for each other, "
            f"{deadlock_text(run, cycle)}{told}. "
        )
    if not blamed and not is_hung(culprit):
        return ""  # the report opens with it
    error = error_text(culprit)
    error = f"{': ' if is_hung(culprit) else ', '}{error}" if error else ""
    log = f" (its log: {culprit.ended.log})" if culprit.ended.log else ""
    if len(run.ranks) == 1:
        return f"See first why it {was_text(culprit)}{error}{log}. "
    return (
        f"Look at rank {culprit.number} first: {'the others waited for it; ' if blamed else ''}it "
        f"{was_text(culprit)}{error}{log}. "
    )


def _counters_say(run: Run, growing: Sequence[Finding]) -> float | None:
    """Bytes a step by the counters of all steps, where they do not bear out what the looks saw grow; None where they
    do, or tell nothing of it.
    """
    if any(finding.host_bytes for finding in growing):
        return None  # the counters are the accelerator's
    ranks = [rank for rank in run.ranks if any(rank.number in finding.ranks for finding in growing)]
    of_ranks = [counted_rate(rank, run.warmup_of(rank)) for rank in ranks]
    rates = [rate for rate in of_ranks if rate is not None]
    told = sum(finding.bytes_per_step for finding in growing)
    return sum(rates) if len(rates) == len(of_ranks) and sum(rates) < _BORNE_OUT * told else None


def _is_large(finding: Finding) -> bool:
    """Whether it is a note for another reason than its size."""
    seen = max((finding.last_step or 0) - (finding.first_step or 0), 1)
    least = finding.least_per_step
    return finding.bytes_per_step >= least and finding.retained_bytes >= least * seen


def _cut_first(run: Run, told: tuple[Finding, ...]) -> str:
    if told[0].cut is None and not told[0].facts.without_a_cut(told[0]):
        return f"{first_cut(told)}, and {again_text(run)}."
    return f"{first_cut(told)}. Then {again_text(run)}."


def first_cut(told: tuple[Finding, ...]) -> str:
    """What to cut first, as a sentence without its full stop."""
    finding, mended = told[0], _mended(told)
    if instead := finding.facts.without_a_cut(finding):
        return f"{instead} ({bytes_text(finding.retained_bytes)} wait for gc){_others(told[1:])}"
    if finding.cut is None:
        return f"Read the first leak below{_others(told[1:])}"
    frees = _freed_by_all(mended) if len(mended) > 1 else would_be_freed(finding)
    others = _others([other for other in told if other not in mended], line_to_edit(finding))
    return f"Cut `{cut_name(finding.cut)}`{_at(finding)}{also_text(finding.cut)}: {frees}{others}"


def cut_in_short(told: tuple[Finding, ...]) -> str:
    """``cut `losses in main()` at train.py:31, would free 36.00 MiB``; without a known cut how many leaks there are."""
    finding, mended = told[0], _mended(told)
    if finding.cut is None or finding.facts.without_a_cut(finding):
        return plural(len(told), "distinct leak")
    size = _frees(mended)
    frees = "" if size is None else f", would free {bytes_text(size)}"
    others = _others([other for other in told if other not in mended], line_to_edit(finding))
    return f"cut `{cut_name(finding.cut)}`{_at(finding)}{also_text(finding.cut)}{frees}{others}"


def _at(finding: Finding) -> str:
    where = line_to_edit(finding)
    return f" at {where}" if where else ""


def _others(others: Sequence[Finding], line: str = "") -> str:
    """`, then the other 2 leaks, which the same line adds to`."""
    if not others:
        return ""
    told = ", then the other leak" if len(others) == 1 else f", then the other {len(others)} leaks"
    added = sum(any(line in reference.added_at for reference in o.cut.references) for o in others if o.cut is not None)
    if not line or not added:
        return told
    return f"{told}, which the same line adds to" if added == len(others) else f"{told} ({added} at the same line)"


def _mended(told: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The first leak, and those whose references to cut are all among its own."""
    return (told[0], *(other for other in told[1:] if _goes_along(told[0], other)))


def _goes_along(finding: Finding, other: Finding) -> bool:
    """Whether the cut of a finding has all references of another's, in every heap that these were found in."""
    return bool(other.cut_in) and other.cut_in <= finding.cut_in


def _frees(findings: tuple[Finding, ...]) -> int | None:
    """What their cuts free, each storage being in one finding alone; None where that is not known of one."""
    sizes = [finding.cut.told_bytes for finding in findings if finding.cut is not None]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _freed_by_all(findings: tuple[Finding, ...]) -> str:
    """`54.00 MiB would be freed on 2 ranks together, both leaks`."""
    which = "both leaks" if len(findings) == 2 else f"{len(findings)} leaks"  # noqa: PLR2004
    size = _frees(findings)
    if size is None:
        return f"{would_be_freed(findings[0])}, and {which} are mended"
    ranks = {rank for finding in findings for rank in finding.ranks}
    when = " when gc runs next" if any(f.cut is not None and f.cut.after_gc for f in findings) else ""
    together = f" on {len(ranks)} ranks together" if len(ranks) > 1 else ""
    return f"{bytes_text(size)} would be freed{when}{together}, {which}"
