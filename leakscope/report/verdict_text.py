"""Sentences of the verdict: headline, why, next step; and the findings of each section."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from leakscope.findings.comm import deadlock_cycle, ended_from_outside, first_to_blame, first_to_fail
from leakscope.findings.counters import counted_rate
from leakscope.findings.facts import NOT_JUDGED, FollowsInput, HeldByCall, Origin, Plateaued, Severity
from leakscope.findings.model import (
    NO_GROWTH,
    Finding,
    Findings,
    Reason,
    Unjudged,
    UnjudgedReason,
    Why,
    WhyUnjudged,
)
from leakscope.findings.oom import largest_holder, ranks_out_of_memory
from leakscope.findings.source.index import is_cell
from leakscope.findings.thresholds import MIN_COUNTER_GROWTH, SHARE_OF_MEMORY
from leakscope.report.excerpt import recorded_line
from leakscope.report.finding_text import also_text, cut_name, line_to_edit, would_be_freed, would_show
from leakscope.report.fix_text import apply_text
from leakscope.report.growth_text import lines_text, projected_text, rose_text
from leakscope.report.rank_text import (
    cut_short_text,
    deadlock_text,
    error_text,
    failure_text,
    is_hung,
    processes_text,
    was_text,
)
from leakscope.report.rendering import cleaned, one_line
from leakscope.run.model import RUNS, Rank, Run
from leakscope.run.rows import EndKind, MadeBy
from leakscope.run.suppression import Suppression
from leakscope.units import bytes_text, listed_numbers, plural
from leakscope.verdict import Returned, Verdict


def avoidable(findings: Findings) -> tuple[Finding, ...]:
    """Memory kept longer than needed, largest first."""
    found = [f for f in findings.findings if f.severity == Severity.AVOIDABLE]
    return tuple(sorted(found, key=lambda f: -f.retained_bytes))


def notes(findings: Findings) -> tuple[Finding, ...]:
    """Findings of the application that do not affect the verdict."""
    return tuple(f for f in findings.findings if f.origin != Origin.LIBRARY and f.severity == Severity.NOTE)


def library(findings: Findings) -> tuple[Finding, ...]:
    """Memory that libraries hold without leaking it."""
    return tuple(f for f in findings.findings if f.origin == Origin.LIBRARY and f.severity == Severity.NOTE)


def is_fault(unjudged: Unjudged) -> bool:
    """Whether a rule failed, which is reported with any verdict."""
    faults = (UnjudgedReason.RAISED, UnjudgedReason.NOT_LOADED, UnjudgedReason.NO_SOURCE)
    return isinstance(unjudged.why, WhyUnjudged) and unjudged.why.reason in faults


def is_reportable(unjudged: Unjudged) -> bool:
    """Whether a rule could not judge for another reason than a short run, which "why" already states."""
    short = (UnjudgedReason.TOO_FEW_SNAPSHOTS, UnjudgedReason.NO_STEP)
    return not (isinstance(unjudged.why, WhyUnjudged) and unjudged.why.reason in short)


def steps_of(run: Run) -> int:
    """Steps of the rank with the most."""
    return max((max(rank.ended.steps, len(rank.steps)) for rank in run.ranks), default=0)


def of_block(run: Run) -> bool:
    """Whether the run is one block of code without steps."""
    return run.made_by == MadeBy.BLOCK


def rerun_text(run: Run) -> str:
    """What to do after a fix: `rerun the same command`."""
    return "rerun the same command" if run.made_by == MadeBy.COMMAND else "rerun"


def running_text(run: Run) -> str:
    """`still running after 40 steps` for a run read before its end; else ""."""
    on = any(rank.ended.how == EndKind.RUNNING for rank in run.ranks)
    return f"still running after {plural(steps_of(run), 'step')}" if on else ""


def exit_text(run: Run, findings: Findings) -> str:
    """` (exit status 23)`, or ` (still running after 40 steps)`; "" if no command exits with it.

    For an inconclusive run it names the option that makes it a failure.
    """
    if running := running_text(run):
        return f" ({running})"
    if run.made_by != MadeBy.COMMAND or findings.returned == Returned.NOT:
        return ""
    passed = findings.verdict == Verdict.INCONCLUSIVE and not findings.exit_status
    choice = f", {NOT_JUDGED} with --fail-on-inconclusive" if passed and findings.returned == Returned.OWN else ""
    return f" (exit status {findings.exit_status}{choice})"


NO_STEP_REASONS = (Reason.NO_STEP, Reason.FUNCTION_SILENT, Reason.FUNCTION_MISSING, Reason.SPAWNED)


def no_step_text(why: Why) -> str:
    """Why no step was detected."""
    if why.reason == Reason.SPAWNED:
        return (
            f"no step detected in the script's own process; it started {processes_text(why.processes)}, which "
            "leakscope does not record yet"
        )
    return {
        Reason.NO_STEP: "no step detected: no optimizer step, backward pass or module call marks one",
        Reason.FUNCTION_SILENT: f"no step detected: {why.detail}() never returned",
        Reason.FUNCTION_MISSING: f"no step detected: the script neither defines nor imports a function {why.detail}"
        + (f"; did you mean {' or '.join(why.near)}?" if why.near else ""),
    }[why.reason]


def no_step_next(why: Why | str) -> str:
    """How to mark steps, as a sentence."""
    reason = why.reason if isinstance(why, Why) and why.reason in NO_STEP_REASONS else Reason.NO_STEP
    return {
        Reason.NO_STEP: "Name the function that runs one step with --step-function NAME, or mark steps with "
        "leakscope.Profiler. Memory alive at the end is listed below.",
        Reason.FUNCTION_SILENT: "Pass a function that is called once per step to --step-function.",
        Reason.FUNCTION_MISSING: "Write the name as in the script, for example train_step or Trainer.training_step, or "
        "include the module it is imported from.",
        Reason.SPAWNED: "Let leakscope start the processes: remove the start from the script and pass --ranks N.",
    }[reason]


_SUPPRESSIONS_SHOWN = 5
"""Suppressions that one sentence lists; heuristic: more make it unreadable."""


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
    """One sentence each about expired and unused suppressions."""
    if findings.expired:
        last = ", ".join(f"{_named(one)}, last day {one.until}" for one in findings.expired[:_SUPPRESSIONS_SHOWN])
        yield f"Expired suppressions: {last}{_more(findings.expired)}"
    if findings.unused:
        listed = ", ".join(map(_named, findings.unused[:_SUPPRESSIONS_SHOWN]))
        yield f"Unused suppressions: {listed}{_more(findings.unused)}"


def _named(one: Suppression) -> str:
    return f"`{one.pattern}` ({_place(one)})" if one.source else f"`{one.pattern}`"


def _place(one: Suppression) -> str:
    return f"{one.source}:{one.line}" if one.line else one.source


def _more(many: Sequence[Suppression]) -> str:
    return f" and {len(many) - _SUPPRESSIONS_SHOWN} more" if len(many) > _SUPPRESSIONS_SHOWN else ""


def headline(run: Run, findings: Findings) -> str:
    """`2 distinct leaks`, `Out of memory on rank 1`, `Failed: inconclusive`, `No leaks so far`."""
    return f"{_headline(run, findings)}{' so far' if running_text(run) else ''}"


def _headline(run: Run, findings: Findings) -> str:
    full = sorted(rank.number for rank in ranks_out_of_memory(run))
    if full:
        return f"Out of memory on {'ranks' if len(full) > 1 else 'rank'} {listed_numbers(tuple(full))}"
    if found := findings.leaks:
        return plural(len(found), "distinct leak")
    if findings.verdict == Verdict.LEAKS:
        return "Leaks"
    if findings.verdict == Verdict.CLEAN:
        over = findings.avoidable_over
        but = "" if over is None else f", but {bytes_text(over)} avoidable, above the limit"
        grows = growing_text(run, findings)
        though = f", but {grows}" if grows else ""
        known = any(finding.is_leak for finding in findings.suppressed)
        return f"{'No new leaks' if known else 'No leaks'}{but}{though}"
    ended = "Hung" if any(is_hung(rank) for rank in run.ranks) else failure_text(run)[0]
    return f"{ended}: inconclusive" if ended else "Inconclusive"


def growing_text(run: Run, findings: Findings) -> str:
    """`kept grows by 24 B per step, 2.29 MiB after 100,000 steps`: growth in a clean run; "" if nothing grows."""
    if findings.verdict != Verdict.CLEAN:
        return ""
    seen = [f for f in (*notes(findings), *library(findings)) if f.bytes_per_step > 0]
    growing = [f for f in seen if not f.settled]
    filling = [f for f in seen if f.settled and not isinstance(f.settled_by, Plateaued | FollowsInput | HeldByCall)]
    shown = growing or filling
    if not shown:
        return ""
    most = max(shown, key=lambda finding: finding.bytes_per_step)
    name = one_line(cleaned(cut_name(most.cut) if most.cut is not None else most.subject)) or "memory"
    others = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
    if not growing:
        return f"{name}{others} {'fills' if len(shown) == 1 else 'fill'} a bounded container"
    rate = sum(finding.bytes_per_step for finding in growing)
    verb = "grows" if len(growing) == 1 else "grow"
    return f"{name}{others} {verb} by {bytes_text(rate)} per step, {projected_text(run, rate)}"


_NOT_NAMED = (*NO_STEP_REASONS, Reason.TOO_FEW_STEPS)
"""Reasons with too few snapshots to name what references the garbage."""

_MORE_AT_END = 1.2
"""Ratio to the last snapshot from which the figure at the end of the run is reported too: below it, the difference is
within one step of growth.
"""


def why_text(findings: Findings) -> str:
    """`2 distinct leaks: 3.00 MiB retained, growing by 256.00 KiB per step`; a caller's own text is unchanged."""
    held = "added" if any(finding.before_bytes for finding in findings.findings) else "retained"
    text = _why(findings.why, held) if isinstance(findings.why, Why) else findings.why
    over = findings.avoidable_over
    return text if over is None else f"{text}; {bytes_text(over)} avoidable, above the --fail-on-avoidable limit"


def _why(why: Why, held: str) -> str:
    if why.reason == Reason.LEAKS:
        return _leaks(why, held)
    if why.ended is not None:
        who = "it" if why.is_only_rank else f"rank {why.rank}"
        taken = f", {plural(why.count, 'snapshot')}" if why.count else ""
        return f"{who} {cut_short_text(why.ended)}{taken}; {_so_far(why)}"
    if why.reason in NO_STEP_REASONS:
        return no_step_text(why) + _garbage(why)
    notes = f"; {plural(why.count, 'note')}" if why.count else ""
    rest = f"; {_so_far(why)}" if why.grown is not None and why.grown.bytes > 0 else ""
    rest += f"; {plural(why.notes, 'note')}" if why.notes else ""
    on = "" if why.is_only_rank else f" on rank {why.rank}"
    return {
        Reason.RECORDING_ENDED: f"{why.detail}{on}; {_so_far(why)}",
        Reason.LEFT_BEHIND: f"{plural(why.count, 'tensor leak')}, {bytes_text(why.bytes)} retained",
        Reason.NOTHING_RECORDED: "nothing was recorded",
        Reason.SUPPRESSED: f"{_known(why)}{rest}",
        Reason.CLEAN_BLOCK: f"the block retained no tensor memory, libraries retained {bytes_text(why.bytes)}"
        if why.bytes
        else "the block retained no tensor memory",
        Reason.WITHIN_ALLOWANCE: f"the block retained at most {bytes_text(why.bytes)}, within its allowance",
        Reason.DAMAGED: f"{_damaged(why)}, so a leak can be missed; {_so_far(why)}",
        Reason.TOO_FEW_STEPS: f"too few steps{on} ({plural(why.count, 'step')}): {unjudged_text(why.unjudged)}; "
        f"{_so_far(why)}; run at least {why.steps} steps",
        Reason.HIDDEN: f"{_so_far(why)}; this torch version does not expose all C++ references, so it can be a leak",
        Reason.NO_SNAPSHOTS: f"no heap snapshot was taken (see the notes); {_so_far(why)}",
        Reason.TOO_FEW_SNAPSHOTS: f"too few snapshots to tell growth of {why.detail} from warm-up: run more steps; "
        f"{_so_far(why)}",
        Reason.UNBALANCED: f"{_so_far(why)}; {_to_the_end(why)}, and the snapshots do not show what holds it: "
        "run more steps",
        Reason.NEW_SHAPES: f"{_so_far(why)}; {_new_shapes(why)}, so it can be the kernels that oneDNN and ideep "
        "cache per shape: run with fixed shapes, or with ONEDNN_PRIMITIVE_CACHE_CAPACITY=1 and LRU_CACHE_CAPACITY=1, "
        "to find out",
        Reason.NOTHING_GREW: f"{_hardly(why)}{notes}",
        Reason.LITTLE_GREW: f"{_little(why)}{notes}",
        Reason.FILLING: f"{_filling(why)}{notes}",
        Reason.BALANCED: f"{_so_far(why)}{notes}",
    }[why.reason]


def _new_shapes(why: Why) -> str:
    return f"the model received {why.count:,} different shapes" if why.count else "each snapshot had new shapes"


def _little(why: Why) -> str:
    if not why.horizon:
        return "no growth above the leak threshold"
    return f"projected growth is below {SHARE_OF_MEMORY:.0%} of memory in {why.horizon:,} steps"


def _filling(why: Why) -> str:
    """`history grows by 64.00 KiB per step until it is cleared at train.py:31 above 64 items: ...`."""
    if why.emptied is None:
        return _so_far(why)
    until = why.emptied.text
    grows = f"{why.detail} grows by {bytes_text(round(why.bytes_per_step))} per step until it is {until}"
    shown = would_show(why.emptied).rstrip(".")
    return f"{grows}: {shown[0].lower()}{shown[1:]}"


def _damaged(why: Why) -> str:
    of = "" if why.is_only_rank else f" of rank {why.rank}"
    return f"{why.detail}{of} {'are' if ',' in why.detail else 'is'} damaged and (partly) ignored"


def _leaks(why: Why, held: str) -> str:
    many = f"{why.count} distinct leaks" if why.count > 1 else "1 leak"
    speed = f", growing by {bytes_text(why.bytes_per_step)} per step" if why.bytes_per_step else ""
    if 0 < why.bytes_per_step < MIN_COUNTER_GROWTH:  # so small that its size says nothing by itself
        speed += f", {bytes_text(why.bytes_per_step * why.horizon)} after {why.horizon:,} steps"
    late = f", {bytes_text(why.freed_late)} of garbage per step, freed late" if why.freed_late else ""
    size = f"{bytes_text(why.bytes)} {held}"
    if why.bytes_at_end >= _MORE_AT_END * why.bytes:
        size += f" at the last snapshot, {bytes_text(why.bytes_at_end)} at the end of the run (extrapolated)"
    full = f", memory full by step {why.full_at_step:,} (extrapolated)" if why.full_at_step else ""
    return f"{many}: {size}{speed}{full}{late}"


def _known(why: Why) -> str:
    """`no new leaks: 1 known leak (2.00 MiB) suppressed by base/findings.json`."""
    by = f" by {why.detail}" if why.detail else ""
    return f"no new leaks: {plural(why.count, 'known leak')} ({bytes_text(why.bytes)}) suppressed{by}"


def _so_far(why: Why) -> str:
    """`allocated memory rose 4.00 MiB over ...: optimizer state ...`, and the garbage."""
    if why.grown is None:
        return f"the growth of allocated memory is unknown{_garbage(why)}"
    lines = lines_text(why.grown.lines)
    return f"{rose_text(why.grown)}{f': {lines}' if lines else ''}{_garbage(why)}"


def _hardly(why: Why) -> str:
    """`memory grew by 560 B per step, below the leak threshold`, as in the table of the ranks."""
    rate = 0 if why.grown is None else round(why.grown.per_step)
    if why.grown is None or rate <= 0:
        return "no growth between heap snapshots"
    most = " at most" if why.grown.among > 1 else ""
    if rate >= NO_GROWTH:  # the median step rises, and all steps together do not
        total = "0 B" if why.grown.bytes <= 0 else bytes_text(why.grown.bytes)
        over = f"steps {why.grown.from_step} to {why.grown.to_step}"
        return f"memory fluctuates: +{bytes_text(rate)} in most steps{most}, but +{total} over {over}"
    return f"memory grew by {bytes_text(rate)} per step{most}, below the leak threshold"


def _to_the_end(why: Why) -> str:
    rate = 0.0 if why.grown is None else why.grown.per_step
    return f"the per-step counters still rise at the end, by {bytes_text(rate)} per step"


def _garbage(why: Why) -> str:
    if not why.garbage:
        return ""
    named = " (more snapshots would show what holds it)" if why.reason in _NOT_NAMED else ""
    return f"; {bytes_text(why.garbage)} of garbage awaiting gc at the last snapshot{named}"


def unjudged_together(unjudged: Iterable[Unjudged]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """(rule, ranks, why): each reason of a rule once, with all its ranks."""
    together: dict[tuple[str, str], list[int]] = {}
    for item in unjudged:
        together.setdefault((item.rule, unjudged_text(item.why)), []).append(item.rank)
    return tuple((rule, tuple(sorted(set(ranks))), why) for (rule, why), ranks in together.items())


def unjudged_text(why: WhyUnjudged | str) -> str:
    """`only 2 snapshots after warm-up, 3 needed to detect growth`; a recorded reason is unchanged."""
    if not isinstance(why, WhyUnjudged):
        return why
    taken = f"only {plural(why.snapshots, 'snapshot')}" if why.snapshots else "no snapshot"
    taken += f" after warm-up, {why.needed} needed to detect growth"
    return {
        UnjudgedReason.TOO_FEW_SNAPSHOTS: taken,
        UnjudgedReason.NO_STEP: f"no step detected; {taken}",
        UnjudgedReason.RAISED: f"it raised {why.error}",
        UnjudgedReason.NOT_LOADED: f"it could not be loaded: {why.error}",
        UnjudgedReason.NO_SOURCE: f"reading the source raised {why.error}",
    }[why.reason]


_BORNE_OUT = 0.5
"""Share of the growth between snapshots that the per-step counters must confirm; heuristic: half tolerates noise."""
_LOGS_SHOWN = 4
"""Logs of deadlocked ranks that a sentence lists; heuristic: more make it unreadable."""
UNMARKED = "Mark each step of the loop with profiler.step() or profiler.wrap(train_step)."
"""Next step if a Profiler has seen no step."""


def next_text(run: Run, findings: Findings) -> str:
    """The next step for the reader, and the command that fixes leaks or applies the fix."""
    return " ".join(filter(None, (_next_step(run, findings), _fix_hint(run, findings))))


def _fix_hint(run: Run, findings: Findings) -> str:
    """How to fix leaks of the user's own source, or to apply what was proved to fix them; else ""."""
    if run.fix is not None:
        return f"`{apply_text(run)}` applies the verified fix." if run.fix.patch and findings.leaks else ""
    if not run.can_repeat or running_text(run) or not any(_is_of_own_source(run, leak) for leak in findings.leaks):
        return ""
    name = "" if Path(run.folder).parent.name == RUNS else f" {shlex.quote(run.folder)}"
    return f"`leakscope fix{name}` writes a patch and proves it by a run."


def _is_of_own_source(run: Run, finding: Finding) -> bool:
    """Whether the reference to cut is in a file that can be edited."""
    references = () if finding.cut is None else finding.cut.references
    places = (place for reference in references for place in (reference.where, *reference.added_at))
    lines = (recorded_line(run, place) for place in places)
    return any(line is not None and not is_cell(line.name) for line in lines)


def _next_step(run: Run, findings: Findings) -> str:
    found = findings.leaks
    culprit = first_to_fail(run)
    first = "" if culprit is None else _check_first(run, culprit)
    if culprit is not None and culprit.number in {rank.number for rank in ranks_out_of_memory(run)}:
        return first + _after_out_of_memory(run, culprit, found)
    if found:
        return first + _cut_first(run, found)
    if first:
        return first + "The results below were recorded before that."
    if culprit is not None and not ended_from_outside(culprit):
        return f"Fix the failure of the script first, then {rerun_text(run)}."
    reason = findings.why.reason if isinstance(findings.why, Why) else None
    if of_block(run):
        return _no_leaks(findings) if findings.verdict == Verdict.CLEAN else ""
    if steps_of(run) == 0 and reason != Reason.RECORDING_ENDED:
        return no_step_next(findings.why) if run.made_by == MadeBy.COMMAND else UNMARKED
    if findings.verdict == Verdict.INCONCLUSIVE:
        return _to_judge(run, findings)
    growing = [f for f in notes(findings) if f.bytes_per_step > 0 and not f.settled]
    return _of_growing(run, growing) if growing else _no_leaks(findings)


def _no_leaks(findings: Findings) -> str:
    known = [f for f in findings.suppressed if f.severity == Severity.LEAK]
    if known:
        rate = sum(f.bytes_per_step for f in known if not f.freed_late)
        grows = f"; they still grow by {bytes_text(rate)} per step" if rate else ""
        return f"No new leaks. Known leaks are listed below{grows}."
    if could_go := avoidable(findings):
        return f"No leaks. {_largest_avoidable(could_go)}"
    extra = notes(findings) or library(findings)
    return "No leaks found." + (" See the notes below." if extra else "")


def _largest_avoidable(found: Sequence[Finding]) -> str:
    """`8.00 MiB of avoidable memory, mostly held by batch in main() at train.py:33`."""
    largest = found[0]
    holder = cut_name(largest.cut) if largest.cut is not None else largest.subject
    most = "" if len(found) == 1 else "mostly "
    held = f", {most}held by `{one_line(cleaned(holder))}`{_at(largest)}" if holder else ""
    return f"{bytes_text(sum(f.retained_bytes for f in found))} of avoidable memory{held}."


def _of_growing(run: Run, growing: Sequence[Finding]) -> str:
    """What to check about growing notes, and whether the per-step counters confirm the growth."""
    per_step = bytes_text(sum(finding.bytes_per_step for finding in growing))
    if (rate := _contradicting_rate(run, growing)) is not None:
        return (
            f"No leak confirmed: the snapshots show growth of {per_step} per step, the per-step counters only "
            f"{bytes_text(max(rate, 0))} per step. Run longer to decide."
        )
    small = not any(_is_large(f) for f in growing)
    more = f", {projected_text(run, sum(f.bytes_per_step for f in growing))}" if small else ""
    most = max(growing, key=lambda finding: finding.bytes_per_step)
    name = one_line(cleaned(cut_name(most.cut) if most.cut is not None else most.subject))
    if not name:
        return f"Check the notes below: they grow by {per_step} per step{more}."
    others = f"; all notes below grow by {per_step} per step" if len(growing) > 1 else ""
    grows = f"it grows by {bytes_text(most.bytes_per_step)} per step{more}"
    return f"Check `{name}`{_at(most)}: {grows}{others}."


def _to_judge(run: Run, findings: Findings) -> str:
    """What to run to reach a verdict."""
    why = findings.why if isinstance(findings.why, Why) else None
    known = "" if why is None else _to_judge_by(why, run)
    if known:
        return known
    listed = any(is_reportable(item) for item in findings.unjudged)
    fix = ", or fix what prevented the rules from judging (listed below)" if listed else ""
    return f"Run at least {_longer(run)} steps{fix}."


def _longer(run: Run) -> int:
    return max(10, 2 * steps_of(run))


def _to_judge_by(why: Why, run: Run) -> str:
    """What to do about a reason that has a specific answer; else ""."""
    if why.reason == Reason.TOO_FEW_STEPS and not why.is_only_rank:
        return f"Run rank {why.rank} for at least {why.steps} steps."
    more = f"Run at least {_longer(run)} steps: more snapshots show what holds the memory, or that it levels off."
    until = f", or for {why.steps:,} steps, which fill those caches" if why.steps else ""
    return {
        Reason.RECORDING_ENDED: f"Fix what ended the recording, then {rerun_text(run)}. If your code did not cause it, "
        "report it as a bug of leakscope. The script was not affected.",
        Reason.FILLING: "" if why.emptied is None else would_show(why.emptied),
        Reason.NEW_SHAPES: "Run with fixed shapes, or with ONEDNN_PRIMITIVE_CACHE_CAPACITY=1 and "
        f"LRU_CACHE_CAPACITY=1{until}, and check whether memory still grows.",
        Reason.DAMAGED: "Record the run again in a folder that nothing else writes to.",
        Reason.HIDDEN: "Use a torch version that leakscope supports fully; the notes list what this one lacks.",
        Reason.NO_SNAPSHOTS: "Fix what prevented heap snapshots (see the notes). "
        "Only the per-step counters are available.",
        Reason.UNBALANCED: more,
        Reason.TOO_FEW_SNAPSHOTS: more,
    }.get(why.reason, "")


def _after_out_of_memory(run: Run, rank: Rank, found: tuple[Finding, ...]) -> str:
    """What to cut on the rank whose allocation failed; without a referrer, its own leaks first."""
    own = tuple(f for f in found if rank.number in f.ranks and f.cut is not None)
    holder = largest_holder(rank)
    if holder is None:
        found = (*own, *(f for f in found if f not in own)) if own else found
        return _cut_first(run, found) if found else "The results below were recorded before that."
    name, where = one_line(cleaned(holder.name)), f" at {cleaned(holder.where)}" if holder.where else ""
    parts = f"{bytes_text(holder.bytes)} of {bytes_text(holder.alive_bytes)}"
    text = f"`{name}`{where} held most memory on rank {rank.number} when its allocation failed: {parts}."
    if any(f.cut is not None and cut_name(f.cut) == name for f in own):
        return f"{text} Cut it, then {rerun_text(run)}."
    return f"{text} Drop what it does not need, then {rerun_text(run)}."


def _check_first(run: Run, culprit: Rank) -> str:
    blamed = ended_from_outside(culprit) and culprit.number == first_to_blame(run)
    cycle = deadlock_cycle(run) if blamed else ()
    if culprit.number in cycle:
        logs = [rank.ended.log for rank in run.ranks if rank.number in cycle and rank.ended.log]
        more = f" and {len(logs) - _LOGS_SHOWN} more" if len(logs) > _LOGS_SHOWN else ""
        where = f" (logs: {', '.join(logs[:_LOGS_SHOWN])}{more})" if logs else ""
        return (
            f"Look at ranks {listed_numbers(cycle)} first: they wait for each other, "
            f"{deadlock_text(run, cycle)}{where}. "
        )
    if not blamed and not is_hung(culprit):
        return ""  # the report opens with it
    error = error_text(culprit)
    error = f"{': ' if is_hung(culprit) else ', '}{error}" if error else ""
    log = f" (log: {culprit.ended.log})" if culprit.ended.log else ""
    if len(run.ranks) == 1:
        return f"Check first why it {was_text(culprit)}{error}{log}. "
    return (
        f"Look at rank {culprit.number} first: {'the others waited for it; ' if blamed else ''}it "
        f"{was_text(culprit)}{error}{log}. "
    )


def _contradicting_rate(run: Run, growing: Sequence[Finding]) -> float | None:
    """Bytes per step of the per-step counters if they contradict the growth between snapshots; else None."""
    if any(finding.host_bytes for finding in growing):
        return None  # the counters are those of the accelerator
    ranks = [rank for rank in run.ranks if any(rank.number in finding.ranks for finding in growing)]
    of_ranks = [counted_rate(rank, run.warmup_of(rank)) for rank in ranks]
    rates = [rate for rate in of_ranks if rate is not None]
    per_step = sum(finding.bytes_per_step for finding in growing)
    return sum(rates) if len(rates) == len(of_ranks) and sum(rates) < _BORNE_OUT * per_step else None


def _is_large(finding: Finding) -> bool:
    """Whether it is a note for a reason other than its size."""
    seen = max((finding.last_step or 0) - (finding.first_step or 0), 1)
    least = finding.least_per_step
    return finding.bytes_per_step >= least and finding.retained_bytes >= least * seen


def _cut_first(run: Run, found: tuple[Finding, ...]) -> str:
    if found[0].cut is None and not found[0].facts.without_a_cut(found[0]):
        return f"{first_cut(found)}, and {rerun_text(run)}."
    return f"{first_cut(found)}. Then {rerun_text(run)}."


def first_cut(found: tuple[Finding, ...]) -> str:
    """What to cut first, as a sentence without its full stop."""
    finding, fixed = found[0], _fixed_together(found)
    if instead := finding.facts.without_a_cut(finding):
        return f"{instead} ({bytes_text(finding.retained_bytes)} awaiting gc){_others(found[1:])}"
    if finding.cut is None:
        return f"Read the first leak below{_others(found[1:])}"
    frees = _freed_by_all(fixed) if len(fixed) > 1 else would_be_freed(finding)
    others = _others([other for other in found if other not in fixed], line_to_edit(finding))
    return f"Cut `{cut_name(finding.cut)}`{_at(finding)}{also_text(finding.cut)}: {frees}{others}"


def cut_in_short(found: tuple[Finding, ...]) -> str:
    """``cut `losses in main()` at train.py:31, frees 36.00 MiB``; without a known cut, the number of leaks."""
    finding, fixed = found[0], _fixed_together(found)
    if finding.cut is None or finding.facts.without_a_cut(finding):
        return plural(len(found), "distinct leak")
    size = _freed_together(fixed)
    frees = "" if size is None else f", frees {bytes_text(size)}"
    others = _others([other for other in found if other not in fixed], line_to_edit(finding))
    return f"cut `{cut_name(finding.cut)}`{_at(finding)}{also_text(finding.cut)}{frees}{others}"


def _at(finding: Finding) -> str:
    where = line_to_edit(finding)
    return f" at {where}" if where else ""


def _others(others: Sequence[Finding], line: str = "") -> str:
    """`, then the other 2 leaks (added at the same line)`."""
    if not others:
        return ""
    text = ", then the other leak" if len(others) == 1 else f", then the other {len(others)} leaks"
    added = sum(any(line in reference.added_at for reference in o.cut.references) for o in others if o.cut is not None)
    if not line or not added:
        return text
    return f"{text} ({'added' if added == len(others) else added} at the same line)"


def _fixed_together(found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The first leak, and the leaks whose cuts are part of its own."""
    return (found[0], *(other for other in found[1:] if _is_part_of(found[0], other)))


def _is_part_of(finding: Finding, other: Finding) -> bool:
    """Whether the cut of a finding contains all references of the cut of another, in every heap graph."""
    return bool(other.cut_in) and other.cut_in <= finding.cut_in


def _freed_together(findings: tuple[Finding, ...]) -> int | None:
    """Bytes that their cuts free together, as no two findings share a storage; None if one is unknown."""
    sizes = [finding.cut.reported_bytes for finding in findings if finding.cut is not None]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _freed_by_all(findings: tuple[Finding, ...]) -> str:
    """`frees 54.00 MiB on 2 ranks, fixes both leaks`."""
    which = "both leaks" if len(findings) == 2 else f"{len(findings)} leaks"  # noqa: PLR2004
    size = _freed_together(findings)
    if size is None:
        return f"{would_be_freed(findings[0])}, fixes {which}"
    ranks = {rank for finding in findings for rank in finding.ranks}
    when = " at the next gc" if any(f.cut is not None and f.cut.after_gc for f in findings) else ""
    together = f" on {len(ranks)} ranks" if len(ranks) > 1 else ""
    return f"frees {bytes_text(size)}{when}{together}, fixes {which}"
