"""The story for a terminal: verdict first, then each leak from the root down to the memory."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from leakscope.findings.model import Finding, Findings, Hop, RuleName
from leakscope.record.model import Run
from leakscope.report.cleaning import cleaned, one_line
from leakscope.report.marks import NO_TRACE, allocation_sites, closes_cycle, new_reasons, source_line, suspects
from leakscope.report.per_rank import RankStory, rank_stories
from leakscope.report.snapshot_section import device_lines
from leakscope.report.wording import (
    advice,
    also_text,
    cut_name,
    cycle_text,
    error_text,
    first_cut,
    freed_text,
    held_text,
    holds_nothing,
    hung_text,
    leaks,
    library,
    next_text,
    notes,
    of_block,
    plural,
    proved_text,
    seen_text,
    status_word,
    steps_of,
    title,
    why_text,
    would_be_freed,
)
from leakscope.units import bytes_text

WIDTH = 110
SIGHTINGS_SHOWN = 8
LISTED_SHOWN = 30


def render(run: Run, findings: Findings) -> str:
    """The whole report as plain text, at most 110 columns wide, without colour."""
    run, findings = cleaned(run), cleaned(findings)
    lines = [*_verdict(run, findings), "", *_sections(run, findings), *_ranks(run, findings), ""]
    if device := list(device_lines(run)):
        lines += [*(line for text in device for line in _wrapped(text, "", "  ")), ""]
    lines += _lists(findings)
    return _joined(lines)


def render_in_test(run: Run, findings: Findings) -> str:
    """What a failing test says was left behind: nothing on a command, its ranks and how they ended."""
    run, findings = cleaned(run), cleaned(findings)
    told = leaks(findings)
    lines = [*_field("Next", f"{first_cut(told)}."), ""] if told else []
    lines += _sections(run, findings)
    lines += [
        line
        for rank in run.ranks
        for look in rank.looks
        for text in look.unjudged
        for line in _wrapped(text, "- ", "  ")
    ]
    return _joined(lines)


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _sections(run: Run, findings: Findings) -> Iterator[str]:
    for section, found in (("leak", leaks(findings)), ("library", library(findings)), ("note", notes(findings))):
        if found:
            yield from (*_heading(section, len(found)), "")
            for number, finding in enumerate(found, 1):
                yield from (*_finding(run, finding, number), "")


def _verdict(run: Run, findings: Findings) -> Iterator[str]:
    device = f", {run.device}" if run.device else ""
    torch = f", torch {run.torch}" if run.torch else ""
    told = leaks(findings)
    count = f": {plural(len(told), 'distinct leak')}" if told else ""
    yield from _field("Verdict", f"{findings.verdict.upper()}{count} (exit status {findings.exit_status})")
    if hung := hung_text(run):
        yield from _field("Hung", hung)
    yield from _field("Why", why_text(findings))
    for sentence in findings.out_of_memory:
        yield from _field("Memory", sentence)
    yield from _field("Next", next_text(run, findings))
    about = f"{' '.join(run.command)}: {plural(len(run.ranks), 'rank')}, {plural(steps_of(run), 'step')}{device}{torch}"
    yield from _field("Run", about)
    if run.folder:
        yield from _field("Folder", run.folder)


def _heading(section: str, count: int) -> tuple[str, str]:
    heading = {
        "leak": "Leaks",
        "library": "Held by libraries: not yours to mend, and no reason to fail",
        "note": "Notes: too small to judge, or no leak by themselves",
    }[section]
    line = f"{heading} ({count})"
    return line, "=" * len(line)


def _finding(run: Run, finding: Finding, number: int) -> Iterator[str]:
    yield from _wrapped(f"{number}. {title(finding)}", "", "   ")
    block = of_block(run)
    held = held_text(finding, "after the block") if block else f"{held_text(finding)}; {seen_text(finding)}"
    yield from _wrapped(f"{finding.rule} [{finding.fingerprint}]; {held}", "   ")
    yield ""
    if not holds_nothing(finding):
        yield from _held(run, finding)
    yield from _made_at(run, finding)
    if not block:
        yield from _field("seen", _sightings(finding), "   ", 10)
    if advice(finding):
        yield from _field("advice", advice(finding), "   ", 10)
    for index, place in enumerate(finding.see):
        yield from _field("see" if index == 0 else "", place, "   ", 10)


def _held(run: Run, finding: Finding) -> Iterator[str]:
    """What holds the memory, what to cut, and who frees it."""
    if trace := list(_trace(finding)):
        yield from trace
        yield ""
    yield from _cut(run, finding)
    if cycle := cycle_text(finding):
        yield from _field("cycle", cycle, "   ", 10)
    yield from _field("freed by", freed_text(finding), "   ", 10)


def _made_at(run: Run, finding: Finding) -> Iterator[str]:
    for index, (place, line) in enumerate(allocation_sites(run, finding)):
        yield from _field("made at" if index == 0 else "", place, "   ", 10)
        yield from _source(line)


def _source(line: str) -> Iterator[str]:
    if line:
        yield from _field("", f"| {line}", "   ", 10)


def _trace(finding: Finding) -> Iterator[str]:
    if not finding.trace and finding.rule != RuleName.LATE_RELEASE:  # of that the holders are known, and many
        yield f"   {NO_TRACE}"
    at_fault, cut, reasons = suspects(finding), finding.cut_position, new_reasons(finding)
    last = len(finding.trace) - 1
    for index, hop in enumerate(finding.trace):
        branch = "╰→ " if index == last else "┬─ " if index == 0 else "├─ "
        stem = "     " if index == last else "│    "
        place = f"  ({hop.where})" if hop.where else ""
        yield from _wrapped(f"{one_line(hop.object)}{place}", "   " + branch, "   " + stem)
        if closes_cycle(finding, index):
            yield f"   {stem}the cycle is closed; from it on to the memory:"
            continue
        status = status_word(finding, hop)
        yield from _wrapped(f"{status}: {reasons[index]}" if reasons[index] else status, "   " + stem)
        if hop.reference and index != last:
            yield from _reference(finding, hop, stem, index in at_fault, index == cut)


def _reference(finding: Finding, hop: Hop, stem: str, at_fault: bool, is_cut: bool) -> Iterator[str]:
    name = one_line(hop.reference)
    mark = ""
    if is_cut and finding.cut is not None:
        mark = f"   <- cut here{also_text(finding.cut)}: {bytes_text(finding.cut.frees_bytes)} would be freed"
    elif at_fault and hop.frees_bytes:
        mark = f"   (cutting it would free {bytes_text(hop.frees_bytes)})"
    lead = f"   {stem}↓ "
    room = WIDTH - len(lead)
    pieces = textwrap.wrap(name, room) or [""]
    for number, piece in enumerate(pieces):
        closing = number == len(pieces) - 1
        inline = mark if closing and len(piece) + len(mark) <= room else ""
        yield lead + piece + inline
        if at_fault or is_cut:
            yield f"   {stem}  {'~' * len(piece)}"
        if closing and mark and not inline:
            yield f"   {stem}  {mark.strip()}"
        lead = f"   {stem}  "


def _cut(run: Run, finding: Finding) -> Iterator[str]:
    cut = finding.cut
    if cut is None:
        yield from _field("cut", "no single reference frees it", "   ", 10)
        return
    where = f" at {cut.where}" if cut.where else ""
    text = f"`{cut_name(cut)}`{where}{also_text(cut)}: {would_be_freed(finding)}"
    yield from _field("cut", text, "   ", 10)
    yield from _source(source_line(run, cut.where))
    if proof := proved_text(finding):
        yield from _field("", proof, "   ", 10)


def _sightings(finding: Finding) -> str:
    ranks = []
    for rank in finding.ranks:
        seen = sorted((s for s in finding.sightings if s.rank == rank), key=lambda s: s.step)
        shown = ", ".join(f"step {s.step}: {bytes_text(s.bytes)}" for s in seen[-SIGHTINGS_SHOWN:])
        more = f"{len(seen) - SIGHTINGS_SHOWN} earlier, " if len(seen) > SIGHTINGS_SHOWN else ""
        ranks.append(f"rank {rank} ({more}{shown})")
    return "; ".join(ranks) or "at no judged look"


def _ranks(run: Run, findings: Findings) -> Iterator[str]:
    stories = rank_stories(run, findings)
    yield "Ranks"
    yield "====="
    for story in stories:
        yield from _ended(story)
    yield ""
    yield from _table(stories)
    for story in stories:
        yield from _figures(story)


def _ended(story: RankStory) -> Iterator[str]:
    mark = "!" if story.badly else " "
    yield from _wrapped(f"{mark} rank {story.number} {story.ended}", "", "    ")
    if error := error_text(story.ended, story.error):
        yield from _wrapped(error, "    error: ", "           ")
    for line in story.stack:
        yield from _wrapped(line, "    | ", "    | ")
    if story.log and (story.badly or story.error):
        yield from _wrapped(story.log, "    log: ", "         ")


def _table(stories: tuple[RankStory, ...]) -> Iterator[str]:
    heads = ("rank", "steps", "counted", "growth/step", "explained", "leaked", "peak", "gc would free", "gc freed")
    rows = [
        (
            str(s.number),
            str(s.steps),
            _known(s.counted_bytes),
            _known(s.growth_per_step),
            _known(s.explained_bytes),
            _known(s.leaked_bytes),
            _known(s.summary.peak_bytes),
            _known(s.predicted_bytes),
            _known(s.gc_freed_bytes),
        )
        for s in stories
    ]
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    yield "(- is unknown; counted: what the allocator has out, explained: the storages found)"


def _known(count: float | None) -> str:
    return "-" if count is None else bytes_text(count)


def _figures(story: RankStory) -> Iterator[str]:
    avoidable = story.summary.avoidable_peak_bytes
    categories = sorted(story.categories.items(), key=lambda item: (-item[1], item[0]))
    told = [
        ", ".join(f"{one_line(name)} {bytes_text(count)}" for name, count in categories if count),
        f"{bytes_text(avoidable)} of the peak could be avoided" if avoidable else "",
        story.gc,
        story.own_collections,
        story.looking,
        *story.notes,
    ]
    told = [text for text in told if text]
    if told:
        yield ""
        yield f"  rank {story.number}"
        for text in told:
            yield from _wrapped(text, "    ", "      ")


def _lists(findings: Findings) -> Iterator[str]:
    unjudged = [f"{item.rule} on rank {item.rank}: {item.why}" for item in findings.unjudged]
    suppressed = [
        f"[{f.fingerprint}] {f.rule}: {title(f)}, {bytes_text(f.retained_bytes)}" for f in findings.suppressed
    ]
    listed = list(findings.listed[:LISTED_SHOWN])
    if len(findings.listed) > LISTED_SHOWN:
        listed.append(f"and {len(findings.listed) - LISTED_SHOWN} more")
    for heading, items in (
        ("Not judged", unjudged),
        ("Suppressed", suppressed),
        ("Memory that lay unused", findings.drag),
        ("What collecting would do", findings.gc_advice),
        ("Alive after the script's main code had returned (listed, never judged)", listed),
    ):
        if items:
            yield heading
            yield "=" * len(heading)
            for item in items:
                yield from _wrapped(item, "- ", "  ")
            yield ""


def _field(name: str, text: str, indent: str = "", column: int = 9) -> Iterator[str]:
    yield from _wrapped(text, f"{indent}{name.ljust(column)}", indent + " " * column)


def _wrapped(text: str, first: str, rest: str | None = None) -> Iterator[str]:
    """Lines of `text` no wider than the page, after `first`, then after `rest`."""
    rest = first if rest is None else rest
    for paragraph in text.splitlines() or [""]:
        wrapped = textwrap.wrap(paragraph, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
        yield from wrapped or [first]
        first = rest
