"""What should the reader do now?"""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.findings.comm.matching import deadlock_cycle, ended_from_outside, first_to_blame, first_to_fail
from leakscope.findings.counters import counted_rate
from leakscope.findings.kinds import Severity
from leakscope.findings.memory.oom import largest_holder, ranks_out_of_memory
from leakscope.findings.model import Finding, Findings
from leakscope.findings.why import Reason, Why
from leakscope.record.kinds import MadeBy
from leakscope.record.model import Rank, Run
from leakscope.report.cleaning import cleaned, one_line
from leakscope.report.wording.comm import deadlock_text
from leakscope.report.wording.cycles import without_a_cut
from leakscope.report.wording.ended import error_text, is_hung, was_text
from leakscope.report.wording.growth import would_show
from leakscope.report.wording.held import also_text, cut_name, line_to_edit, would_be_freed
from leakscope.report.wording.numbers import listed_numbers, plural
from leakscope.report.wording.sections import (
    again_text,
    avoidable,
    is_worth_telling,
    leaks,
    library,
    notes,
    of_block,
    steps_of,
)
from leakscope.report.wording.verdict.ledger import projected_text
from leakscope.report.wording.verdict.no_step import no_step_next
from leakscope.units import bytes_text
from leakscope.verdict import Verdict

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
    if told[0].cut is None and not without_a_cut(told[0]):
        return f"{first_cut(told)}, and {again_text(run)}."
    return f"{first_cut(told)}. Then {again_text(run)}."


def first_cut(told: tuple[Finding, ...]) -> str:
    """What to cut first, as a sentence without its full stop."""
    finding, mended = told[0], _mended(told)
    if instead := without_a_cut(finding):
        return f"{instead} ({bytes_text(finding.retained_bytes)} wait for gc){_others(told[1:])}"
    if finding.cut is None:
        return f"Read the first leak below{_others(told[1:])}"
    frees = _freed_by_all(mended) if len(mended) > 1 else would_be_freed(finding)
    others = _others([other for other in told if other not in mended], line_to_edit(finding))
    return f"Cut `{cut_name(finding.cut)}`{_at(finding)}{also_text(finding.cut)}: {frees}{others}"


def cut_in_short(told: tuple[Finding, ...]) -> str:
    """``cut `losses in main()` at train.py:31, would free 36.00 MiB``; without a known cut how many leaks there are."""
    finding, mended = told[0], _mended(told)
    if finding.cut is None or without_a_cut(finding):
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
