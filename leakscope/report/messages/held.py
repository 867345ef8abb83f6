"""Sentences about what is held, since when, and who frees it."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.findings.facts import FreedBy, HopStatus, OnlyTensorsFreed, Severity
from leakscope.findings.model import Cut, CutReference, Finding, Hop, HopReason
from leakscope.findings.rules import rule_named
from leakscope.report.escape import one_line
from leakscope.report.trace_marks import closes_cycle, says_why
from leakscope.units import bytes_text, listed_numbers, plural

_REASONS: Mapping[HopReason, str] = {
    HopReason.FUNCTION_RUNS: "the function is still running",
    HopReason.MODULE: "a module's namespace lives as long as the program",
    HopReason.THREAD_RUNS: "the thread is still running",
    HopReason.NATIVE: "held by a running call or native code",
    HopReason.INTERPRETER: "held by the interpreter",
    HopReason.ABOVE_CUT: "held on the way from a root",
    HopReason.ABOVE_LIBRARY: "held on the path from a root",
    HopReason.ONLY_CUT: "only the cut reference keeps it",
    HopReason.ONLY_CUTS: "only the references to cut together keep it",
    HopReason.MORE_HOLDERS: "held by more than what is listed here",
    HopReason.CYCLE_ITSELF: "no root leads here: the cycle keeps itself",
    HopReason.HELD_BY_CYCLE: "held by the cycle",
    HopReason.STILL_NEEDED: "still needed",
    HopReason.NOT_USED_AGAIN: "not used again before it is released",
    HopReason.LEFT_OPEN: "opened and never left, which alone lets go of what it holds",
    HopReason.KEPT_BY_LIBRARY: "kept by the library",
}
"""Why an object on a trace is alive, or should not be."""


_NAMED = 3
"""Ranks that the head of a finding names in place of their number; chosen."""
_REST = 0.05
"""Share of what is held that is worth a word where a cut leaves it; chosen."""


def held_text(finding: Finding, when: str = "") -> str:
    """`960.00 KiB held in 5 storages at the last look, growing 192.00 KiB a step`; of an accelerator's run, what the
    host holds.
    """
    if holds_nothing(finding):
        return f"no memory held, {plural(finding.count, 'time')} seen" if finding.count else "no memory held"
    storages = f" in {plural(finding.count, 'storage')}" if finding.count else ""
    rate = f"{bytes_text(finding.bytes_per_step)}"
    growth = f", growing {rate} a step" if finding.bytes_per_step else ""
    if finding.freed_late:
        growth = f", {rate} made every step and freed late"
    part = "" if finding.host_bytes >= finding.retained_bytes else f"{bytes_text(finding.host_bytes)} of it "
    host = f", {part}in host memory" if finding.host_bytes else ""
    if finding.before_bytes:
        there = f"{bytes_text(finding.before_bytes)} were held before"
        return f"{bytes_text(finding.retained_bytes)} added by the calls{host}{growth} ({there})"
    return f"{bytes_text(finding.retained_bytes)} held{storages} {when or when_text(finding)}{host}{growth}"


def when_text(finding: Finding) -> str:
    """Which look the bytes are of: the last one, unless the program's gc had just been there."""
    if rule_named(finding.rule).at_peak:
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
    if not finding.trace and rule_named(finding.rule).at_peak:
        return "nobody yet: it stays until all that hold it let go of it"
    if finding.cut is not None and finding.cut.after_gc:
        return "nobody yet: it stays until the script lets go of it and gc has run"
    if not finding.trace or rule_named(finding.rule).is_native:
        return "whoever holds it in native code; whether gc can help is not known"
    return "nobody yet: it stays until the script lets go of it, gc cannot help"


def proved_text(finding: Finding) -> str:
    """`proved in a forked process: 786432 bytes went free`, or why nobody tried; "" where nothing is known."""
    cut = finding.cut
    if cut is None:
        return ""
    if cut.proved_bytes is not None:
        return f"proved: {bytes_text(cut.proved_bytes)} went free when a forked copy of the process made the cut"
    if isinstance(cut.unproved, OnlyTensorsFreed):
        freed = bytes_text(cut.unproved.bytes)
        return f"not proved: {freed} of tensors went free, and what grad nodes take is only counted"
    return f"not proved: {cut.unproved}" if cut.unproved else ""


def measured_text(finding: Finding) -> str:
    """`measured 72.00 of 72.00 MiB`: what went free of what is held where the cut was tried; else as `proved_text`."""
    cut = finding.cut
    if cut is None or cut.proved_bytes is None:
        return proved_text(finding)
    freed, held = bytes_text(cut.proved_bytes), bytes_text(max(finding.retained_bytes, cut.proved_bytes))
    number, _, unit = freed.rpartition(" ")
    return f"measured {number if held.endswith(f' {unit}') else freed} of {held}"


def cycle_text(finding: Finding) -> str:
    """`function extract, closure extract -> cell, contents -> function extract`; "" where there is no cycle, or the
    trace has gone round it already.
    """
    if not finding.cycle or any(closes_cycle(finding, index) for index in range(len(finding.trace))):
        return ""
    hops = " -> ".join(f"{one_line(r.holder)}, {one_line(r.name)}" for r in finding.cycle)
    return f"{hops} -> {one_line(finding.cycle[-1].held)}"


def status_word(finding: Finding, hop: Hop) -> str:
    """What an object of the trace is: a note blames nobody, and what lies idle at the peak is not lost."""
    if hop.status != HopStatus.LEAKED:
        return hop.status
    if rule_named(finding.rule).at_peak:
        return "idle"
    return "held" if finding.severity == Severity.NOTE and finding.freed_by == FreedBy.PROGRAM else "leaked"


def cut_name(cut: Cut) -> str:
    """The reference to cut, as the user would write it where that is known."""
    return one_line(cut.written or cut.reference)


def also_text(cut: Cut) -> str:
    """` together with log.last in main()`: what else must be cut; "" where one cut is enough."""
    return f" together with {' and '.join(f'`{one_line(reference)}`' for reference in cut.also)}" if cut.also else ""


def no_cut_text(finding: Finding) -> str:
    """Why there is no reference to cut."""
    return finding.facts.why_no_cut() or rule_named(finding.rule).why_no_cut


def figures(finding: Finding) -> tuple[tuple[str, str], ...]:
    """(`72.00 MiB`, `held at the last look, in 768 storages`), (`6.00 MiB`, `more each step`), (`frees 72.00 MiB`,
    `when cut, measured: 72.00 of 72.00 MiB`), ...: what the head of a finding says.
    """
    ranks, steps = seen_text(finding).partition("; ")[::2]
    seen: tuple[tuple[str, str], ...] = ((ranks, f"seen at {steps}"),) if finding.ranks else ()
    if len(finding.ranks) > _NAMED:
        seen = ((plural(len(finding.ranks), "rank"), f"{listed_numbers(finding.ranks)}; seen at {steps}"),)
    if holds_nothing(finding):
        return ((plural(finding.count, "time"), "seen, no memory held"), *seen)
    storages = f", in {plural(finding.count, 'storage')}" if finding.count else ""
    part = "" if finding.host_bytes >= finding.retained_bytes else f"{bytes_text(finding.host_bytes)} of it "
    host = f", {part}in host memory" if finding.host_bytes else ""
    when = "added by the calls" if finding.before_bytes else f"held {when_text(finding)}"
    held = (bytes_text(finding.retained_bytes), f"{when}{storages}{host}")
    how = "made every step, freed late" if finding.freed_late else "more each step"
    growth = ((bytes_text(finding.bytes_per_step), how),) if finding.bytes_per_step else ()
    return (held, *growth, *_frees(finding), *seen)


def _frees(finding: Finding) -> tuple[tuple[str, str], ...]:
    """What the cut frees: measured where it was tried."""
    cut = finding.cut
    if cut is None or cut.told_bytes is None:
        return ()
    freed = bytes_text(cut.told_bytes)
    if cut.proved_bytes is not None:
        of = bytes_text(max(finding.retained_bytes, cut.proved_bytes))
        number, _, unit = freed.rpartition(" ")
        measured = number if of.endswith(f" {unit}") else freed
        return ((f"frees {freed}", f"when cut, measured: {measured} of {of}"),)
    when = "when cut and gc has run" if cut.after_gc else "when cut"
    part = cut.unproved
    how = f"measured: {bytes_text(part.bytes)} of tensors" if isinstance(part, OnlyTensorsFreed) else "not measured"
    rest = rest_text(finding)
    return ((f"would free {freed}", f"{when}, {how}{f'; {rest}' if rest else ''}"),)


def line_to_edit(finding: Finding) -> str:
    """The place in the user's source to begin at: of the suggested edit, else of the function that a library closes a
    cycle over or whose results are cached, else of what adds to it, else of what holds it; "" where none is known.
    """
    if finding.suggestion is not None:
        return finding.suggestion.where
    if (line := finding.facts.line_to_edit(finding)) is not None:
        return line
    references = finding.cut.references if finding.cut is not None else ()
    if references and references[0].where and _is_of_cache(finding, references[0]):
        return references[0].where
    added = [place for reference in references for place in reference.added_at]
    return next((place for place in (*added, *(reference.where for reference in references)) if place), "")


def _is_of_cache(finding: Finding, reference: CutReference) -> bool:
    """Whether what holds by a reference is what `functools.lru_cache` puts in a function's place: its line is the
    decorator's.
    """
    place = reference.trace
    holders = finding.trace[place : place + 1] if place is not None else ()
    return any(hop.type == "functools._lru_cache_wrapper" for hop in holders)


def would_be_freed(finding: Finding) -> str:
    """`72.00 MiB would be freed on 2 ranks together`: by the cut on all ranks that have the finding; "" without a
    cut.
    """
    if finding.cut is None:
        return ""
    together = f" on {len(finding.ranks)} ranks together" if len(finding.ranks) > 1 else ""
    rest = rest_text(finding)
    return f"{cut_frees_text(finding.cut)}{together}{f' ({rest})' if rest else ''}"


def rest_text(finding: Finding) -> str:
    """`another cycle holds the other 3.01 MiB too`: garbage that the cut leaves; "" where that is little or not known.

    The graph has all instances of what is cut gone: what would then still wait for gc is kept by some other cycle.
    """
    freed = finding.cut.told_bytes if finding.cut is not None else None
    if freed is None or finding.freed_by != FreedBy.GC or len(finding.ranks) > 1:
        return ""
    rest = finding.retained_bytes - freed
    return f"another cycle holds the other {bytes_text(rest)} too" if rest >= _REST * finding.retained_bytes else ""


def cut_frees_text(cut: Cut) -> str:
    """`72.00 MiB would be freed`, and when, where that is not at once."""
    if cut.told_bytes is None:
        return "what it would free is not known, as this torch does not show all that C++ holds"
    return f"{bytes_text(cut.told_bytes)} would be freed{' when gc runs next' if cut.after_gc else ''}"


def reason_text(hop: Hop) -> str:
    """Why an object on the trace is alive, or should not be; "" where there is nothing to say."""
    return _REASONS[hop.reason] if isinstance(hop.reason, HopReason) else hop.reason


def new_reasons(finding: Finding) -> tuple[str, ...]:
    """Each hop's reason, "" where it repeats that of the hop before."""
    hops = zip(finding.trace, says_why(finding), strict=True)
    return tuple(reason_text(hop) if is_new else "" for hop, is_new in hops)
