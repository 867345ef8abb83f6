"""Ranks, growth and details in the text report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leakscope.findings.model import Finding, Findings
from leakscope.report.finding_text import cut_name, line_to_edit, title
from leakscope.report.growth_text import ledger_table, lines_text, rose_text
from leakscope.report.memory_snapshot import device_lines
from leakscope.report.ranks import (
    COLUMNS,
    RankGroup,
    RankReport,
    all_of,
    columns_of,
    ending,
    notes_of,
    notes_together,
    rank_groups,
)
from leakscope.report.rendering import (
    WIDTH,
    Line,
    Paragraph,
    cleaned,
    field_lines,
    figures,
    fitting,
    text_page,
    width_of,
    wrapped,
)
from leakscope.report.run_text import listed_texts, loader_notes, loader_text, run_text, worker_line_text
from leakscope.report.verdict_text import (
    is_fault,
    is_reportable,
    steps_of,
    suppressed_by_text,
    suppression_notes,
    unjudged_together,
)
from leakscope.run.model import Run
from leakscope.run.rows import EndKind
from leakscope.units import bytes_text, count_span, like_text, listed_numbers, plural, ranks_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
from leakscope.verdict import Verdict

LISTED_SHOWN = 30
"""Maximum lines of the memory retained at exit: a screenful."""
UNJUDGED_SHOWN = 12
"""Maximum lines of what was not judged (heuristic)."""
BRIEF = 4
"""Maximum items of a list without `verbose` (heuristic)."""


def small_print(run: Run, findings: Findings, verbose: bool, groups: Sequence[Sequence[int]] = ()) -> Iterator[Line]:
    """Lists under their headings; without `verbose` those that help with this verdict.

    `groups`: ranks that behaved the same, of which one is shown.
    """
    for heading, items, is_shown in (
        ("Not judged", _unjudged(findings, verbose), True),
        ("Suppressed", _suppressed(findings), True),
        ("Non-tensor growth", run_text(findings.also_grows, groups), verbose),
        ("Idle memory", run_text(findings.drag, groups), verbose),
        ("Garbage collection", run_text(findings.gc_advice, groups), verbose),
        ("Retained at exit", _listed(findings, groups), verbose or not steps_of(run)),
    ):
        if items and is_shown:
            yield heading
            yield "=" * len(heading)
            shown = items if verbose or len(items) <= BRIEF + 1 else items[:BRIEF]
            for item in shown:
                yield from wrapped(item, "- ", "  ")
            if len(shown) < len(items):
                yield f"- and {len(items) - len(shown)} more"
            yield ""


def _unjudged(findings: Findings, whole: bool) -> list[str]:
    helps = is_reportable if findings.verdict == Verdict.INCONCLUSIVE else is_fault
    shown = [item for item in findings.unjudged if whole or helps(item)]
    lines = [f"{rule} on {ranks_text(ranks)}: {why}" for rule, ranks, why in unjudged_together(shown)]
    return lines if whole else [*lines[:UNJUDGED_SHOWN], *more_lines(len(lines) - UNJUDGED_SHOWN)]


def _suppressed(findings: Findings) -> list[str]:
    apart = (
        (f"[{f.fingerprint}] {f.rule}: {title(f)}, {bytes_text(f.retained_bytes)}", suppressed_by_text(f))
        for f in findings.suppressed
    )
    return [*(f"{text}; {by}" if by else text for text, by in apart), *suppression_notes(findings)]


def _listed(findings: Findings, groups: Sequence[Sequence[int]]) -> list[str]:
    listed = listed_texts(findings.listed, groups)
    return [*listed[:LISTED_SHOWN], *more_lines(len(listed) - LISTED_SHOWN)]


def more_lines(count: int) -> list[str]:
    """The line that stands for omitted items."""
    return [f"and {count} more"] if count > 0 else []


_LEAST = 5
"""The first columns, which are shown even if the terminal is too narrow."""
_LISTED = 4
"""Maximum ranges of numbers in the first cell (heuristic)."""
_COUNTED = 4
"""Number of ranks above which a row gives their count (heuristic)."""


def table(rows: Sequence[RankGroup], whole: bool) -> Iterator[Line]:
    """A line for each row, its figures from the smallest to the largest where its ranks differ.

    Columns in which no rank has anything are left out, but not of the `whole` table, which has none of the leaks.
    """
    shown = columns_of([report for row in rows for report in row.reports], whole)
    several = any(len(row.reports) > 1 for row in rows)
    with_leaks = not whole and len(rows) > 1 and any(row.leaks for row in rows)
    heads = ("ranks" if several else "rank", *(["leak"] if with_leaks else []), *(column.head for column in shown))
    lines = []
    for row in rows:
        numbers, count = listed_numbers(row.ranks, _LISTED), len(row.ranks)
        leaks = [listed_numbers(number for number, _ in row.leaks) or "none"] if with_leaks else []
        ranks = f"{numbers} ({count})" if count > _COUNTED else numbers
        lines.append((ranks, *leaks, *(column.text(row.reports) for column in shown)))
    spare = [column.head for column in COLUMNS[_LEAST:]]
    yield _Table(heads, tuple(lines), () if whole else tuple(head for head in reversed(heads) if head in spare))
    if any("-" in cell.split() for line in lines for cell in line[1:]):
        yield "(-: unknown)"


@dataclass(frozen=True)
class _Table:
    heads: tuple[str, ...]
    """That of the first column is `ranks` where its cells are lists of ranks."""
    rows: tuple[tuple[str, ...], ...]
    spare: tuple[str, ...]
    """Columns that may be dropped, in this order, if the terminal is too narrow."""

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """A table of the columns that fit, or one paragraph per row if too few do."""
        shown = fitting(self.heads, self.rows, self.spare, options.max_width)
        justify = ("l" if self.heads[0] == "ranks" else "r") + "r" * (len(shown) - 1)
        rows = [[row[place] for place in shown] for row in self.rows]
        table = figures(rows, justify, [self.heads[place] for place in shown])
        if width_of(table) <= options.max_width:
            yield table
            return
        for first, *others in self.rows:
            text = ", ".join(f"{head} {cell}" for head, cell in zip(self.heads[1:], others, strict=True))
            yield Paragraph(f"{first}: {text}", "  rank " if first.isdigit() else "  ranks ", "    ")


_ROWS = 16
"""Maximum number of groups of ranks with a line, and of sets of ranks with notes (heuristic)."""
_WHOLE = 3
"""Number of failed groups shown with their error and stack (heuristic)."""


def rank_lines(run: Run, groups: Sequence[RankGroup], verbose: bool = False) -> Iterator[Line]:
    """How the ranks ended, a table of their figures, and notes; nothing if the report already contains them.

    A line for each group of ranks that did the same; `verbose`: for each rank.
    """
    reports = sorted((report for group in groups for report in group.reports), key=lambda report: report.number)
    lines = list(_ends(groups, verbose))
    if verbose or any(report.counted_bytes is not None for report in reports):
        rows = [RankGroup((report,)) for report in reports] if verbose else groups[:_ROWS]
        lines += [*([""] if lines else []), *table(rows, whole=verbose)]
        if rest := () if verbose else groups[_ROWS:]:
            ranks = ranks_text(sorted(rank for group in rest for rank in group.ranks))
            lines += wrapped(f"and {len(rest)} more groups, {ranks}: --verbose shows each", "")
    lines += _notes_of_each(groups, verbose)
    if run.notes:
        lines += ["", "  the run", *(line for text in run.notes for line in wrapped(text, "    ", "      "))]
    if lines:
        yield from ("Ranks", "=====", *lines)


def _ends(groups: Sequence[RankGroup], verbose: bool) -> Iterator[Line]:
    alone = len(groups) == 1 and len(groups[0].ranks) == 1
    badly = [group for group in groups if group.badly]
    for place, group in enumerate(badly if verbose else badly[:_ROWS]):
        yield from _badly(group, alone, place < _WHOLE, verbose)
    if len(badly) > _ROWS and not verbose:
        ranks = ranks_text(sorted(rank for group in badly[_ROWS:] for rank in group.ranks))
        yield from wrapped(f"! {ranks} also failed: --rank N shows each", "", "    ")
    well: dict[tuple[str, ...], list[RankReport]] = {}
    for group in groups:
        if not group.badly:
            well.setdefault(ending(group.report), []).extend(group.reports)
    for reports in well.values():
        yield from _well(sorted(reports, key=lambda report: report.number), len(well) == 1 and not badly)
    for group in groups:
        if group.apart:
            yield from wrapped(f"! {ranks_text(group.ranks)} {', '.join(group.apart)}", "", "    ")


def _badly(group: RankGroup, alone: bool, whole: bool, verbose: bool) -> Iterator[Line]:
    """A group of failed ranks, with the message of the first."""
    report = group.report
    how = report.rank.ended.how
    is_above = alone and how != EndKind.HUNG and not verbose
    if not is_above:
        yield from wrapped(f"! {ranks_text(group.ranks)} {report.ended}", "", "    ")
        if len({(each.ended, each.error) for each in group.reports}) > 1:
            yield from wrapped(f"(message of rank {report.number}; the others differ)", "    ")
    if not whole and not verbose:
        return
    yield from error_lines(report, stack=not (is_above and how == EndKind.RAISED), log=not is_above)


def error_lines(report: RankReport, stack: bool, log: bool) -> Iterator[Line]:
    """The error, stack and log of a rank."""
    if report.error:
        yield from wrapped(report.error, "    error: ", "           ")
    for line in report.rank.ended.stack if stack else ():
        yield from wrapped(line, "    | ", "    | ")
    if report.rank.ended.log and log and (report.badly or report.error):
        yield from wrapped(report.rank.ended.log, "    log: ", "         ")


def _well(reports: Sequence[RankReport], are_all: bool) -> Iterator[Line]:
    first = reports[0]
    many = len(reports) > 1
    who = f"all {len(reports)} ranks" if are_all and many else ranks_text(report.number for report in reports)
    other = [report.steps for report in reports if report.steps != first.steps]
    more = f", some after {count_span(other)}" if other else ""
    yield from wrapped(f"  {who} {first.ended}{more}", "", "    ")
    for report in reports:
        yield from error_lines(report, stack=True, log=True)


def _notes_of_each(groups: Sequence[RankGroup], verbose: bool) -> Iterator[Line]:
    """Notes on ranks."""
    together = notes_together(groups, all_of if verbose else notes_of)
    shown = together if verbose else together[:_ROWS]
    for ranks, texts in sorted(shown):
        yield ""
        yield from wrapped(ranks_text(ranks), "  ", "    ")
        for text in texts:
            yield from wrapped(text, "    ", "      ")
    if rest := sorted({rank for ranks, _ in together[len(shown) :] for rank in ranks}):
        yield ""
        yield from wrapped(f"notes on {ranks_text(rest)} are omitted: --rank N shows them", "  ", "    ")


_RANKS_SHOWN = 4
"""Maximum number of ranks with a growth breakdown (heuristic)."""


def ledger_lines(findings: Findings, groups: Sequence[Sequence[int]] = (), verbose: bool = False) -> Iterator[Line]:
    """One line for each kind of growth, and for each leak, of the ranks that grew most; nothing where none grew.

    `groups`: ranks that behaved the same, of which one is shown. `verbose`: also the growth between snapshots.
    """
    tables = sorted(ledger_table(findings, groups), key=lambda table: (-table[0].bytes, table[0].rank))
    if not tables:
        return
    yield "Growth breakdown"
    yield "================"
    for grown, more, lines in tables[:_RANKS_SHOWN]:
        yield from wrapped(f"{like_text(grown.rank, more)}: {rose_text(grown, rate=False)}", "", "  ")
        rows = [(bytes_text(size), f"{bytes_text(per_step)} a step", what) for size, per_step, what in lines]
        yield figures(rows, "rrl", indent=2, wraps=True)
        for interval in findings.ledgers[grown.rank] if verbose else ():
            rose = bytes_text(interval.grown)
            text = f"steps {interval.from_step} to {interval.to_step}: {rose}: {lines_text(interval.lines)}"
            yield from wrapped(text, "  ", "    ")
    if rest := sum(1 + more for _, more, _ in tables[_RANKS_SHOWN:]):
        yield f"and {plural(rest, 'more rank')} with less growth"
    yield ""


def worker_lines(findings: Findings) -> Iterator[Line]:
    """The memory of each DataLoader's workers; nothing without workers."""
    found = [(rank, loader) for rank, loaders in sorted(findings.loaders.items()) for loader in loaders]
    if not found:
        return
    yield from ("DataLoader workers", "==================")
    for rank, loader in found:
        of_rank = f"rank {rank}: " if len(findings.ranks) > 1 else ""
        yield from wrapped(f"{of_rank}{loader_text(loader)}", "", "  ")
        rows = [(bytes_text(line.bytes), worker_line_text(line)) for line in loader.lines if line.bytes]
        yield figures(rows, "rl", indent=2, wraps=True)
        each = (
            f"worker {one.worker}: {bytes_text(one.unique_bytes)} unique, {bytes_text(one.proportional_bytes)} "
            f"proportional, grew by {bytes_text(one.grew_bytes)}"
            for one in loader.workers
        )
        for text in (*each, *loader_notes(loader)):
            yield from wrapped(text, "  - ", "    ")
    yield ""


_COLUMN = 16
"""Width of the column of names."""


def render_ranks(run: Run, findings: Findings, numbers: Sequence[int], width: int = WIDTH) -> str:
    """The full report of some ranks of the run, one after the other."""
    run, findings = cleaned(run), cleaned(findings)
    groups = rank_groups(run, findings)
    lines = [line for number in numbers for line in _rank(run, findings, groups, number)]
    return text_page(lines, width)


def _rank(run: Run, findings: Findings, groups: Sequence[RankGroup], number: int) -> Iterator[Line]:
    group = next(group for group in groups if number in group.ranks)
    report = next(report for report in group.reports if report.number == number)
    alone = replace(run, ranks=tuple(rank for rank in run.ranks if rank.number == number), notes=())
    own = _of_rank(findings, number)
    heading = f"Rank {number} of {plural(len(run.ranks), 'rank')}"
    yield from (heading, "=" * len(heading))
    yield from field_lines("ended", report.ended, "", _COLUMN)
    yield from error_lines(report, stack=True, log=False)
    others = [rank for rank in group.ranks if rank != number]
    like = f"{ranks_text(others)} behaved the same" if others else "no other rank behaved the same"
    if len(run.ranks) > 1:
        yield from field_lines("peers", "; ".join([*group.apart, like]), "", _COLUMN)
    for column in COLUMNS:
        yield from field_lines(column.head, column.text((report,)), "", _COLUMN)
    if report.rank.ended.log:
        yield from field_lines("log", report.rank.ended.log, "", _COLUMN)
    yield ""
    for sentence in run_text(own.out_of_memory):
        yield from wrapped(sentence, "- ", "  ")
    yield from _findings(findings, own, number)
    yield from ledger_lines(own, verbose=True)
    yield from device_lines(alone)
    yield from small_print(alone, own, verbose=True)
    if notes := list(all_of(report)):
        yield from ("Notes", "=====")
        for text in notes:
            yield from wrapped(text, "- ", "  ")
        yield ""


def _of_rank(findings: Findings, number: int) -> Findings:
    """The findings restricted to one rank."""
    return replace(
        findings,
        findings=tuple(f for f in findings.findings if number in f.ranks),
        suppressed=tuple(f for f in findings.suppressed if number in f.ranks),
        unjudged=tuple(item for item in findings.unjudged if item.rank == number),
        ranks={rank: summary for rank, summary in findings.ranks.items() if rank == number},
        ledgers={rank: ledger for rank, ledger in findings.ledgers.items() if rank == number},
        listed=tuple(alive for alive in findings.listed if alive.rank == number),
        out_of_memory=tuple(fact for fact in findings.out_of_memory if fact.rank == number),
        gc_advice=tuple(fact for fact in findings.gc_advice if fact.rank == number),
        drag=tuple(fact for fact in findings.drag if fact.rank == number),
        also_grows=tuple(fact for fact in findings.also_grows if fact.rank == number),
    )


def _findings(findings: Findings, own: Findings, number: int) -> Iterator[Line]:
    """The findings of a rank, numbered as in the report, with their size at each snapshot."""
    numbers = {finding.fingerprint: place for place, finding in enumerate(findings.leaks, 1)}
    for finding in own.findings:
        which = f"leak {numbers[finding.fingerprint]}" if finding.fingerprint in numbers else finding.severity
        yield from wrapped(f"{which}: {title(finding)} [{finding.fingerprint}]", "- ", "  ")
        if finding.cut is not None:
            yield from wrapped(f"cut `{cut_name(finding.cut)}` {line_to_edit(finding)}".rstrip(), "  ")
        yield from wrapped(_seen(finding, number), "  ")
    if own.findings:
        yield ""


def _seen(finding: Finding, number: int) -> str:
    seen = sorted((s for s in finding.sightings if s.rank == number), key=lambda sighting: sighting.step)
    return ", ".join(f"step {sighting.step}: {bytes_text(sighting.bytes)}" for sighting in seen)
