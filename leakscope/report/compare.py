"""The comparison of two runs as text, HTML, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from leakscope.findings.comparison import Change, Compared, Judged, RunComparison, rank_rate, script_of
from leakscope.findings.counters import counted_steps
from leakscope.findings.model import Finding
from leakscope.findings.naming import place_of
from leakscope.report.finding_text import line_to_edit, seen_text, title
from leakscope.report.formats.as_markdown import code, plain, sentence
from leakscope.report.rendering import WIDTH, Line, cleaned, field_lines, html_page, json_text, text_page, wrapped
from leakscope.report.verdict_text import steps_of, why_text
from leakscope.units import bytes_text, listed_numbers, plural
from leakscope.verdict import Verdict

HEADINGS = {
    Change.NEW: "New",
    Change.WORSE: "Worse",
    Change.PERSISTING: "Persisting",
    Change.BETTER: "Better",
    Change.NOT_SEEN: "Not seen: may still be present",
    Change.SUPPRESSED: "Suppressed in the new run",
    Change.FIXED: "Fixed",
}
"""Heading of each kind of change."""


@dataclass(frozen=True)
class Peak:
    """Peak memory of a run."""

    bytes: int
    rank: int
    is_allocators: bool
    """The allocator's peak, else the highest count at the end of a step."""


def headline(comparison: RunComparison) -> str:
    """`leaks: 1 new, 1 worse, 2 fixed`, or which run is inconclusive."""
    lost = [name for name, side in (("BASE", comparison.base), ("NEW", comparison.new)) if not side.could_be_judged]
    if lost:
        claims = {"BASE": "new or worse", "NEW": "fixed or better"}
        unsaid = " or ".join(claims[name] for name in lost)
        verb = "is" if len(lost) == 1 else "are"
        return f"{' and '.join(lost)} {verb} inconclusive, so no leak can be called {unsaid}"
    counted = [f"{len(of)} {change.replace('_', ' ')}" for change in Change if (of := comparison.of(change))]
    if comparison.exit_status:
        return f"leaks: {', '.join(counted)}"
    return f"no new or worse leaks{': ' if counted else ''}{', '.join(counted)}"


def unrelated_text(comparison: RunComparison) -> str:
    """A warning that the runs appear unrelated; "" if they are related."""
    if comparison.are_related:
        return ""
    scripts = " and ".join(script_of(side.run) for side in (comparison.base, comparison.new))
    return f"The runs appear unrelated: they ran {scripts} and share no finding."


def side_text(side: Judged) -> str:
    """`before: LEAKS: 1 leak: 2.00 MiB held, growing by 256.00 KiB a step (train.py, 2 ranks, 12 steps)`."""
    run = side.run
    about = ", ".join(
        (script_of(run), plural(max(len(run.ranks), run.expected_ranks), "rank"), plural(steps_of(run), "step"))
    )
    return f"{run_name(side)}: {side.findings.verdict.upper()}: {why_text(side.findings)} ({about})"


def run_name(side: Judged) -> str:
    """The run's folder as given, else the script's name."""
    return side.run.folder or script_of(side.run)


def peak_of(side: Judged) -> Peak | None:
    """The peak of the rank with the most memory; None if nothing was counted."""
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


def peaks_text(comparison: RunComparison) -> str:
    """`2.10 GiB on rank 0 -> 1.90 GiB on rank 1`; "" if nothing was counted."""
    peaks = [peak_of(side) for side in (comparison.base, comparison.new)]
    if not any(peaks):
        return ""
    text = " -> ".join("unknown" if peak is None else f"{bytes_text(peak.bytes)} on rank {peak.rank}" for peak in peaks)
    known = [peak.is_allocators for peak in peaks if peak is not None]
    return text if all(known) else f"{text} (highest count at the end of a step)"


def rate_text(leak: Compared) -> str:
    """`128.00 KiB -> 256.00 KiB a step`, per rank if the numbers of ranks differ."""
    both = [finding for finding in (leak.base, leak.new) if finding is not None]
    if not any(finding.bytes_per_step for finding in both):
        return " -> ".join(f"{bytes_text(finding.retained_bytes)} held" for finding in both)
    alike = len({len(finding.ranks) for finding in both}) == 1
    rates = [finding.bytes_per_step if alike else rank_rate(finding) for finding in both]
    text = " -> ".join(dict.fromkeys(map(bytes_text, rates)))
    made = " allocated each step and freed late" if leak.finding.freed_late else " a step"
    as_before = ", unchanged" if len(both) > 1 and "->" not in text else ""
    return f"{text}{made}{as_before}{'' if alike else ' per rank'}"


def line_of(finding: Finding) -> str:
    """The line to edit, else the allocation site."""
    found = (place_of(place) for place in (line_to_edit(finding), *finding.made_at))
    return next((place.at for place in found if place is not None), "")


def unseen_text(leak: Compared) -> str:
    """Why the other run could not have shown a leak that it does not have; "" for other leaks."""
    if leak.change != Change.NOT_SEEN:
        return ""
    other = "NEW" if leak.new is None else "BASE"
    if leak.unseen is None:
        return f"{other} is inconclusive"
    if leak.unseen.ranks == leak.finding.ranks:
        return f"{'that rank' if len(leak.unseen.ranks) == 1 else 'those ranks'} could not be judged in {other}"
    if leak.unseen.ranks:
        ranks = "rank" if len(leak.unseen.ranks) == 1 else "ranks"
        return f"{ranks} {listed_numbers(leak.unseen.ranks)} could not be judged in {other}"
    begun = leak.finding.first_step
    return f"{other} has snapshots only up to step {leak.unseen.until}; BASE first shows it after step {begun}"


def comparison_text(comparison: RunComparison, width: int = WIDTH) -> str:
    """The comparison as text, without colour."""
    return text_page(_text_lines(cleaned(comparison)), width)


def _text_lines(comparison: RunComparison) -> Iterator[Line]:
    yield from field_lines("Compared", f"{headline(comparison)} (exit status {comparison.exit_status})", column=10)
    if text := unrelated_text(comparison):
        yield from field_lines("Note", text, column=10)
    yield from field_lines("Base", side_text(comparison.base), column=10)
    yield from field_lines("New", side_text(comparison.new), column=10)
    if peaks := peaks_text(comparison):
        yield from field_lines("Peaks", peaks, column=10)
    for change in Change:
        leaks = comparison.of(change)
        if leaks:
            heading = f"{HEADINGS[change]} ({len(leaks)})"
            yield from ("", heading, "=" * len(heading))
        for leak in leaks:
            finding = leak.finding
            yield from wrapped(f"{rate_text(leak)}: {title(finding)} [{finding.fingerprint}]", "- ", "  ")
            at = f"at {line}" if (line := line_of(finding)) else ""
            yield from wrapped("; ".join(filter(None, (at, seen_text(finding), unseen_text(leak)))), "  ", "  ")


def comparison_markdown(comparison: RunComparison) -> str:
    """The comparison as GitHub Markdown; text from the runs is escaped."""
    return "\n".join(_markdown_lines(cleaned(comparison))) + "\n"


def _markdown_lines(comparison: RunComparison) -> Iterator[str]:
    yield f"## leakscope: {plain(headline(comparison))}"
    yield ""
    yield f"- **base** {sentence(side_text(comparison.base))}"
    yield f"- **new** {sentence(side_text(comparison.new))}"
    if text := peaks_text(comparison):
        yield f"- **peaks** {plain(text)}"
    if text := unrelated_text(comparison):
        yield f"- {plain(text)}"
    if comparison.leaks:
        yield from ("", "| | a step | leak | line |", "|-|-|-|-|")
    for leak in comparison.leaks:
        unseen = unseen_text(leak)
        text = f"{title(leak.finding)} [{leak.finding.fingerprint}]{f'; {unseen}' if unseen else ''}"
        line = line_of(leak.finding)
        cells = (
            plain(HEADINGS[leak.change].partition(":")[0]),
            plain(rate_text(leak)),
            sentence(text),
            code(line) if line else "",
        )
        yield f"| {' | '.join(cells)} |"


_COLOURS = {0: Verdict.CLEAN, 2: Verdict.INCONCLUSIVE}
"""Exit status to the verdict whose colour is used; leaks otherwise."""


def comparison_html(comparison: RunComparison) -> str:
    """The comparison as an HTML page without scripts or external resources; text from the runs is escaped."""
    comparison = cleaned(comparison)
    names = (PurePath(run_name(side)).name for side in (comparison.new, comparison.base))
    return html_page(
        "comparison.html",
        {"sentence": lambda text: text[:1].upper() + text[1:]},
        comparison=comparison,
        colour=_COLOURS.get(comparison.exit_status, Verdict.LEAKS),
        kinds=[(change, HEADINGS[change], comparison.of(change)) for change in Change],
        page_title=f"leakscope: {' against '.join(names)}",
        headline=headline(comparison),
        side_text=side_text,
        peaks=peaks_text(comparison),
        unrelated=unrelated_text(comparison),
        rate_text=rate_text,
        unseen_text=unseen_text,
        line_of=line_of,
        title=title,
    )


FORMAT = 1
"""Format number, increased when a key is removed or changes its meaning."""


def comparison_json(comparison: RunComparison) -> str:
    """The comparison as JSON; unknown is null, and bytes per step are totals over all ranks."""
    data = {
        "format": FORMAT,
        "leakscope": comparison.new.run.leakscope or None,
        "exit_status": comparison.exit_status,
        "could_be_judged": comparison.could_be_judged,
        "are_related": comparison.are_related,
        "worse": comparison.worse,
        "why": headline(comparison),
        "base": _side(comparison.base),
        "new": _side(comparison.new),
        "counts": {change: len(comparison.of(change)) for change in Change},
        "leaks": [_leak(leak) for leak in comparison.leaks],
    }
    return json_text(data)


def _side(side: Judged) -> dict[str, Any]:
    peak = peak_of(side)
    return {
        "run": run_name(side),
        "command": list(side.run.command),
        "verdict": side.findings.verdict,
        "why": why_text(side.findings),
        "ranks": side.run.expected_ranks,
        "steps": steps_of(side.run),
        "peak_bytes": None if peak is None else peak.bytes,
        "peak_rank": None if peak is None else peak.rank,
    }


def _leak(leak: Compared) -> dict[str, Any]:
    finding = leak.finding
    return {
        "change": leak.change,
        "fingerprint": finding.fingerprint,
        "rule": finding.rule,
        "title": title(finding),
        "line": line_of(finding) or None,
        "ranks": list(finding.ranks),
        "base_bytes_per_step": None if leak.base is None else leak.base.bytes_per_step,
        "new_bytes_per_step": None if leak.new is None else leak.new.bytes_per_step,
        "base_retained_bytes": None if leak.base is None else leak.base.retained_bytes,
        "new_retained_bytes": None if leak.new is None else leak.new.retained_bytes,
        "unseen": unseen_text(leak) or None,
    }


FORMATS: Mapping[str, Callable[[RunComparison], str]] = {
    "text": comparison_text,
    "json": comparison_json,
    "markdown": comparison_markdown,
    "html": comparison_html,
}
"""Renderers by the name of their format; each is pure."""
