"""How do all formats say the same thing in the same words?"""

from __future__ import annotations

import signal

from leakscope.findings.comm.matching import circle_told, first_to_blame, first_to_fail, gave_up, waiting_circle
from leakscope.findings.grouping.growth import LEAST_TOTAL_FACTOR
from leakscope.findings.memory.oom import largest_holder, ranks_out_of_memory
from leakscope.findings.model import (
    Cut,
    Finding,
    Findings,
    FreedBy,
    Hop,
    HopStatus,
    Origin,
    RuleName,
    Severity,
    Verdict,
)
from leakscope.record.kinds import EndKind, Occasion
from leakscope.record.model import HUNG, Rank, Run
from leakscope.report.cleaning import cleaned, one_line
from leakscope.report.marks import closes_cycle
from leakscope.units import bytes_text


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `3 storages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed_numbers(numbers: tuple[int, ...]) -> str:
    """`0, 1, 2, 7` as `0-2, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs)


def leaks(findings: Findings) -> tuple[Finding, ...]:
    return tuple(f for f in findings.findings if f.origin != Origin.LIBRARY and f.severity == Severity.LEAK)


def notes(findings: Findings) -> tuple[Finding, ...]:
    return tuple(f for f in findings.findings if f.origin != Origin.LIBRARY and f.severity != Severity.LEAK)


def library(findings: Findings) -> tuple[Finding, ...]:
    return tuple(f for f in findings.findings if f.origin == Origin.LIBRARY)


def steps_of(run: Run) -> int:
    """Steps of the rank that took most."""
    return max((max(rank.ended.steps, len(rank.steps)) for rank in run.ranks), default=0)


def of_block(run: Run) -> bool:
    """Whether it was one block of code, without steps."""
    return any(look.occasion == Occasion.BLOCK for rank in run.ranks for look in rank.looks)


def held_text(finding: Finding, when: str = "") -> str:
    """`960.00 KiB held in 5 storages at the last look, growing 192.00 KiB a step`; of an accelerator's run, what the host holds."""
    if holds_nothing(finding):
        return f"no memory held, {plural(finding.count, 'time')} seen" if finding.count else "no memory held"
    storages = f" in {plural(finding.count, 'storage')}" if finding.count else ""
    growth = f", growing {bytes_text(finding.bytes_per_step)} a step" if finding.bytes_per_step else ""
    part = "" if finding.host_bytes >= finding.retained_bytes else f"{bytes_text(finding.host_bytes)} of it "
    host = f", {part}in host memory" if finding.host_bytes else ""
    return f"{bytes_text(finding.retained_bytes)} held{storages} {when or _when(finding)}{host}{growth}"


def _when(finding: Finding) -> str:
    """Which look the bytes are of: the last one, unless the program's gc had just been there."""
    if finding.rule == RuleName.LATE_RELEASE:
        return "at the step's peak"
    last: dict[int, int] = {}
    most: dict[int, int] = {}
    for seen in sorted(finding.sightings, key=lambda s: s.step):
        last[seen.rank] = seen.bytes
        most[seen.rank] = max(most.get(seen.rank, 0), seen.bytes)
    if not sum(last.values()) < finding.retained_bytes <= sum(most.values()):
        return "at the last look"
    if finding.retained_bytes < sum(most.values()):
        return "at each rank's last look or the one that found most"
    return "at the look that found most" if len(most) == 1 else "at each rank's look that found most"


def holds_nothing(finding: Finding) -> bool:
    """Whether it is about what happened and keeps no memory: who would free what is no question then."""
    return not finding.retained_bytes and not finding.trace and finding.cut is None


def seen_text(finding: Finding) -> str:
    """`rank 0, 1; steps 3 to 12`."""
    if not finding.sightings:
        return "at no judged look"
    many = "ranks" if len(finding.ranks) > 1 else "rank"
    first, last = finding.first_step, finding.last_step
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{many} {listed_numbers(finding.ranks)}; {steps}"


def freed_text(finding: Finding) -> str:
    """Who gives the memory back, as a sentence without its full stop."""
    if finding.freed_by == FreedBy.GC:
        if finding.collections:
            return f"gc, late: it takes {plural(finding.collections, 'full collection')}"
        return "gc, late"
    if finding.freed_by == FreedBy.NEVER:
        return "never: it holds itself through C++ references that gc cannot see"
    if not finding.trace and finding.rule == RuleName.LATE_RELEASE:
        return "the program, once all that hold it have let go"
    if not finding.trace or finding.rule == RuleName.NATIVE_HOLD:
        return "whoever holds it in native code: gc cannot help"
    return "the program, once it lets go: gc cannot help, a live root holds it"


def proved_text(finding: Finding) -> str:
    """`proved in a forked process: 786432 bytes went free`, or why nobody tried; "" where nothing is known."""
    cut = finding.cut
    if cut is None:
        return ""
    if cut.proved_bytes is not None:
        return f"proved: {bytes_text(cut.proved_bytes)} went free when a forked copy of the process made the cut"
    return f"not proved: {cut.unproved}" if cut.unproved else ""


def status_text(status: int) -> str:
    """`status 3`, or the signal for 128+n and -n: `SIGKILL`."""
    number = -status if status < 0 else status - 128
    if number > 0:
        try:
            return signal.Signals(number).name
        except ValueError:
            pass
    return f"status {status}"


def ended_text(rank: Rank) -> str:
    """`killed by SIGKILL after 5 steps`."""
    ended = rank.ended
    after = "before its first step" if ended.steps == 0 else f"after {plural(ended.steps, 'step')}"
    if _hung(rank):
        return f"hung {after}"
    words = {
        "finished": "finished",
        "stopped": "stopped by leakscope",
        "raised": "raised",
        "exited": f"exited with {status_text(ended.status)}",
        "killed": f"killed by {status_text(ended.status)}",
        "lost": "lost without a word",
    }
    if ended.how == EndKind.FINISHED and ended.steps == 0:
        return "finished, no step seen"
    return f"{words.get(ended.how, ended.how)} {after}"


def _hung(rank: Rank) -> bool:
    return rank.ended.error.startswith(HUNG)


def hung_text(run: Run) -> str:
    """`ranks 0, 2 hung after 7 steps: nothing happened on the wire for 8 s`; "" where no rank did."""
    hung: dict[str, list[Rank]] = {}
    for rank in run.ranks:
        if _hung(rank):
            hung.setdefault(ended_text(rank), []).append(rank)
    told = []
    for ended, ranks in hung.items():
        why = ranks[0].ended.error.removeprefix(HUNG).partition(";")[0]
        told.append(
            f"rank{'s' if len(ranks) > 1 else ''} {listed_numbers(tuple(rank.number for rank in ranks))} {ended}: {why}"
        )
    return "; ".join(told)


def error_text(ended: str, error: str) -> str:
    """An error without what `ended` (an `ended_text`) says already; "" where that is all of it."""
    return "" if ended.startswith(error) else error.removeprefix(HUNG if ended.startswith("hung ") else "")


def ended_badly(rank: Rank) -> bool:
    return rank.ended.how in (EndKind.RAISED, EndKind.KILLED, EndKind.LOST) or (
        rank.ended.how == EndKind.EXITED and rank.ended.status != 0
    )


def was_text(rank: Rank) -> str:
    """`ended_text` as it follows `it`: `was killed by SIGKILL after 5 steps`."""
    return f"{'was ' if rank.ended.how in ('killed', 'lost', 'stopped') else ''}{ended_text(rank)}"


def cycle_text(finding: Finding) -> str:
    """`function extract, closure extract -> cell, contents -> function extract`; "" where there is no cycle, or the
    trace has gone round it already.
    """
    if not finding.cycle or any(closes_cycle(finding, index) for index in range(len(finding.trace))):
        return ""
    hops = " -> ".join(f"{one_line(holder)}, {one_line(reference)}" for holder, reference, _ in finding.cycle)
    return f"{hops} -> {one_line(finding.cycle[-1][2])}"


def next_text(run: Run, findings: Findings) -> str:
    """What the reader should do now."""
    told = leaks(findings)
    culprit = first_to_fail(run)
    first = "" if culprit is None else _look_first(run, culprit)
    if culprit is not None and culprit.number in {rank.number for rank in ranks_out_of_memory(run)}:
        return first + _after_out_of_memory(culprit, told)
    if told:
        return first + _cut_first(told)
    if first:
        return first + "What is told below was recorded before that."
    if steps_of(run) == 0:
        return (
            "No step was seen, so nothing could be judged. leakscope counts a step each time an optimizer steps; "
            "where there is none, mark the steps with leakscope.Profiler."
        )
    if findings.verdict == Verdict.INCONCLUSIVE:
        longer = max(10, 2 * steps_of(run))
        return f"Run it for longer (at least {longer} steps), or mend what kept the rules from judging, listed below."
    growing = [f for f in notes(findings) if f.bytes_per_step > 0 and not f.settled]
    if growing:
        small = not any(_is_large(f, run.min_bytes) for f in growing)
        so_far = " in all so far" if any(f.bytes_per_step >= run.min_bytes for f in growing) else ""
        more = f", too little{so_far} for a verdict (--min-bytes), as long as the run goes on" if small else ""
        return f"Look at what is listed below: it grows by {bytes_text(sum(f.bytes_per_step for f in growing))} a step{more}."
    extra = notes(findings) or library(findings)
    return "Nothing to mend." + (" What is listed below is worth a glance." if extra else "")


def _after_out_of_memory(rank: Rank, told: tuple[Finding, ...]) -> str:
    """What to let go of on the rank whose allocation failed; else its own leaks before those of other ranks."""
    own = tuple(f for f in told if rank.number in f.ranks and f.cut is not None)
    holder = largest_holder(rank)
    if holder is None:
        told = (*own, *(f for f in told if f not in own)) if own else told
        return _cut_first(told) if told else "What is told below was recorded before that."
    name, where = one_line(cleaned(holder.name)), f" at {cleaned(holder.where)}" if holder.where else ""
    parts = f"{bytes_text(holder.bytes)} of {bytes_text(holder.alive_bytes)}"
    said = f"`{name}`{where} was the largest holder on rank {rank.number} when its allocation failed: {parts}."
    if any(f.cut is not None and cut_name(f.cut) == name for f in own):
        return f"{said} Cut it, then run the same command again."
    return f"{said} Let go of what it need not keep, then run the same command again."


def _look_first(run: Run, culprit: Rank) -> str:
    blamed = gave_up(culprit) and culprit.number == first_to_blame(run)
    circle = waiting_circle(run) if blamed else ()
    if culprit.number in circle:
        logs = ", ".join(rank.ended.log for rank in run.ranks if rank.number in circle and rank.ended.log)
        told = f" (their logs: {logs})" if logs else ""
        return f"Look at ranks {listed_numbers(circle)} first: they wait for each other, {circle_told(run, circle)}{told}. "
    error = error_text(ended_text(culprit), culprit.ended.error)
    error = f"{': ' if _hung(culprit) else ', '}{error}" if error else ""
    log = f" (its log: {culprit.ended.log})" if culprit.ended.log else ""
    return f"Look at rank {culprit.number} first: {'the others waited for it; ' if blamed else ''}it {was_text(culprit)}{error}{log}. "


def _is_large(finding: Finding, min_bytes: int) -> bool:
    """Whether it is a note for another reason than its size."""
    return finding.bytes_per_step >= min_bytes and finding.retained_bytes >= min_bytes * LEAST_TOTAL_FACTOR


def status_word(finding: Finding, hop: Hop) -> str:
    """What an object of the trace is: a note blames nobody, and what lies idle at the peak is not lost."""
    if hop.status != HopStatus.LEAKED:
        return hop.status
    if finding.rule == RuleName.LATE_RELEASE:
        return "idle"
    return "held" if finding.severity == Severity.NOTE and finding.freed_by == FreedBy.PROGRAM else "leaked"


def cut_name(cut: Cut) -> str:
    """The reference to cut, as the user would write it where that is known."""
    return one_line(cut.written or cut.reference)


def also_text(cut: Cut) -> str:
    """` together with log.last in main()`: what else must be cut; "" where one cut is enough."""
    return f" together with {' and '.join(f'`{one_line(reference)}`' for reference in cut.also)}" if cut.also else ""


def would_be_freed(finding: Finding) -> str:
    """`72.00 MiB would be freed on 2 ranks together`: by the cut on all ranks that have the finding; "" without a cut."""
    if finding.cut is None:
        return ""
    together = f" on {len(finding.ranks)} ranks together" if len(finding.ranks) > 1 else ""
    return f"{bytes_text(finding.cut.frees_bytes)} would be freed{together}"


def _cut_first(told: tuple[Finding, ...]) -> str:
    if told[0].cut is None:
        return f"{first_cut(told)}, and run the same command again."
    return f"{first_cut(told)}. Then run the same command again."


def first_cut(told: tuple[Finding, ...]) -> str:
    """What to cut first, as a sentence without its full stop."""
    finding = told[0]
    others = ("", ", then the other leak", f", then the other {len(told) - 1} leaks")[min(len(told), 3) - 1]
    if finding.cut is None:
        return f"Read the first leak below{others}"
    where = f" at {finding.cut.where}" if finding.cut.where else ""
    return f"Cut `{cut_name(finding.cut)}`{where}{also_text(finding.cut)}: {would_be_freed(finding)}{others}"
