"""Sentences about two runs: what is new, what is gone, and what neither can tell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from leakscope.findings.counters import counted_steps
from leakscope.findings.model import Finding
from leakscope.findings.naming import place_of
from leakscope.findings.suppressions import Change, Compared, Comparison, Judged, rank_rate, script_of
from leakscope.report.messages.held import line_to_edit, seen_text
from leakscope.report.messages.sections import steps_of
from leakscope.report.messages.verdict import why_text
from leakscope.units import bytes_text, listed_numbers, plural

HEADINGS = {
    Change.NEW: "New",
    Change.WORSE: "Worse",
    Change.PERSISTING: "Persisting",
    Change.BETTER: "Better",
    Change.NOT_SEEN: "Not seen: it may be there all the same",
    Change.SUPPRESSED: "Suppressed in the new run",
    Change.FIXED: "Fixed",
}
"""What stands above the leaks of each kind."""


@dataclass(frozen=True)
class Peak:
    """The most memory that a run had."""

    bytes: int
    rank: int
    is_allocators: bool
    """The allocator's own peak; else the most that was counted at the end of a step."""


def headline(comparison: Comparison) -> str:
    """`1 leak is new, 1 worse, 2 fixed`, or which run could not be judged."""
    lost = [name for name, side in (("BASE", comparison.base), ("NEW", comparison.new)) if not side.could_be_judged]
    if lost:
        said = {"BASE": "new or worse", "NEW": "fixed or better"}
        unsaid = " or ".join(said[name] for name in lost)
        return f"{' and '.join(lost)} could not be judged, so nothing is said to be {unsaid}"
    counted = [f"{len(of)} {change.replace('_', ' ')}" for change in Change if (of := comparison.of(change))]
    if comparison.exit_status:
        return f"leaks: {', '.join(counted)}"
    return f"no leak is new or worse{': ' if counted else ''}{', '.join(counted)}"


def unrelated_text(comparison: Comparison) -> str:
    """That the runs seem to be unrelated; "" where they are not."""
    if comparison.are_related:
        return ""
    scripts = " and ".join(script_of(side.run) for side in (comparison.base, comparison.new))
    return f"The runs seem to be unrelated: they ran {scripts}, and have no finding in common."


def side_text(side: Judged) -> str:
    """`before: LEAKS: 1 leak: 2.00 MiB held, growing by 256.00 KiB a step (train.py, 2 ranks, 12 steps)`."""
    run = side.run
    about = ", ".join(
        (script_of(run), plural(max(len(run.ranks), run.expected_ranks), "rank"), plural(steps_of(run), "step"))
    )
    return f"{run_name(side)}: {side.findings.verdict.upper()}: {why_text(side.findings)} ({about})"


def run_name(side: Judged) -> str:
    """Its folder, as it was given; else the script's name."""
    return side.run.folder or script_of(side.run)


def peak_of(side: Judged) -> Peak | None:
    """Of the rank that had most; None where nothing was counted."""
    own = [(s.peak_bytes, number) for number, s in side.findings.ranks.items() if s.peak_bytes is not None]
    counted = [
        (step.counted_bytes, rank.number)
        for rank in side.run.ranks
        for step in counted_steps(rank)
        if step.counted_bytes is not None
    ]
    if not own and not counted:
        return None
    size, rank = max(own or counted, key=lambda peak: (peak[0], -peak[1]))
    return Peak(size, rank, bool(own))


def peaks_text(comparison: Comparison) -> str:
    """`2.10 GiB on rank 0 -> 1.90 GiB on rank 1`; "" where nothing was counted."""
    peaks = [peak_of(side) for side in (comparison.base, comparison.new)]
    if not any(peaks):
        return ""
    told = " -> ".join(
        "not known" if peak is None else f"{bytes_text(peak.bytes)} on rank {peak.rank}" for peak in peaks
    )
    known = [peak.is_allocators for peak in peaks if peak is not None]
    return told if all(known) else f"{told}, the most that was counted at the end of a step"


def rate_text(leak: Compared) -> str:
    """`128.00 KiB -> 256.00 KiB a step`: of the runs that have it; by rank where the ranks are not as many."""
    both = [finding for finding in (leak.base, leak.new) if finding is not None]
    if not any(finding.bytes_per_step for finding in both):
        return " -> ".join(f"{bytes_text(finding.retained_bytes)} held" for finding in both)
    alike = len({len(finding.ranks) for finding in both}) == 1
    rates = [finding.bytes_per_step if alike else rank_rate(finding) for finding in both]
    told = " -> ".join(dict.fromkeys(map(bytes_text, rates)))
    made = " made each step and freed late" if leak.finding.freed_late else " a step"
    as_before = ", as before" if len(both) > 1 and "->" not in told else ""
    return f"{told}{made}{as_before}{'' if alike else ' on each of its ranks'}"


def line_of(finding: Finding) -> str:
    """The line to edit, else where it was made."""
    found = (place_of(place) for place in (line_to_edit(finding), *finding.made_at))
    return next((place.at for place in found if place is not None), "")


def unseen_text(leak: Compared) -> str:
    """Why the other run could not have shown it; "" for all other leaks."""
    if leak.change != Change.NOT_SEEN:
        return ""
    other = "NEW" if leak.new is None else "BASE"
    if leak.unseen is None:
        return f"{other} could not be judged"
    if leak.unseen.ranks == leak.finding.ranks:
        return f"{'that rank' if len(leak.unseen.ranks) == 1 else 'those ranks'} could not be judged in {other}"
    if leak.unseen.ranks:
        ranks = "rank" if len(leak.unseen.ranks) == 1 else "ranks"
        return f"{ranks} {listed_numbers(leak.unseen.ranks)} could not be judged in {other}"
    begun = leak.finding.first_step
    return (
        f"{other} was looked at up to step {leak.unseen.until} only, and in BASE it was first seen after step {begun}"
    )


def where_text(leak: Compared) -> str:
    """`train.py:31; rank 0, 1; steps 3 to 12`."""
    line = line_of(leak.finding)
    return "; ".join(
        part for part in (f"at {line}" if line else "", seen_text(leak.finding), unseen_text(leak)) if part
    )


def page_title(comparison: Comparison) -> str:
    """`leakscope: before against after`, by the names of the folders."""
    names = (PurePath(run_name(side)).name for side in (comparison.new, comparison.base))
    return f"leakscope: {' against '.join(names)}"
