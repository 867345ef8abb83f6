"""Figures, groups and notes of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from leakscope.findings.comm import CommState, comm_states, first_to_fail
from leakscope.findings.counters import counted_rate, counted_steps
from leakscope.findings.facts import RuleName
from leakscope.findings.model import Findings, RankSummary
from leakscope.report.rank_text import comm_notes, ended_badly, ended_text, error_text, processes_text
from leakscope.report.rendering import one_line
from leakscope.report.run_text import GARBAGE
from leakscope.run.model import Rank, Run
from leakscope.run.rows import EndKind
from leakscope.units import bytes_span, bytes_text, count_span, plural, seconds_text


@dataclass(frozen=True)
class RankReport:
    """Figures and sentences of one rank."""

    rank: Rank
    summary: RankSummary
    ended: str
    error: str
    """The error, unless `ended` contains it."""
    badly: bool
    steps: int
    counted_bytes: int | None
    """At the last snapshot, else at the last step."""
    growth_per_step: float | None
    """Growth of the counted bytes per step after warm-up."""
    explained_bytes: int | None
    leaks: tuple[tuple[int, str], ...]
    """(number in the report, fingerprint) of each leak that this rank has."""
    leaked_bytes: int
    """Bytes held by them when they were last seen."""
    notes: tuple[str, ...]

    @property
    def number(self) -> int:
        """Number of the rank."""
        return self.rank.number


def rank_reports(run: Run, findings: Findings) -> tuple[RankReport, ...]:
    """One report for each rank of the run, lost ones included, in order."""
    states, leaked = comm_states(run), _leaked(findings)
    leaks: dict[int, list[tuple[int, str]]] = {}
    for number, leak in enumerate(findings.leaks, 1):
        for rank in leak.ranks:
            leaks.setdefault(rank, []).append((number, leak.fingerprint))
    return tuple(
        _report(run, rank, findings.ranks.get(rank.number, RankSummary()), states.get(rank.number), leaked, leaks)
        for rank in run.ranks
    )


def _report(
    run: Run,
    rank: Rank,
    summary: RankSummary,
    state: CommState | None,
    leaked: Mapping[int, int],
    leaks: Mapping[int, Sequence[tuple[int, str]]],
) -> RankReport:
    notes = [*(each.why for each in rank.recording_ended), *rank.notes]
    if rank.processes and rank.steps:
        started = processes_text(rank.processes)
        notes.append(f"the script started {started}, which are not recorded; start them with --ranks instead")
    last = rank.steps[-1].counted_bytes if rank.steps else None
    return RankReport(
        rank=rank,
        summary=summary,
        ended=ended_text(rank),
        error=error_text(rank),
        badly=ended_badly(rank),
        steps=max(rank.ended.steps, len(rank.steps)),
        counted_bytes=last if summary.counted_bytes is None else summary.counted_bytes,
        growth_per_step=_growth(rank, run.warmup_of(rank)),
        explained_bytes=summary.explained_bytes if rank.heap_snapshots or summary.explained_bytes else None,
        leaks=tuple(leaks.get(rank.number, ())),
        leaked_bytes=leaked.get(rank.number, 0),
        notes=(*notes, *(comm_notes(state) if state is not None else ())),
    )


def ending(report: RankReport) -> tuple[str, ...]:
    """How a rank ended, whatever its number of steps: with the type of its error, not its text, which contains
    addresses and sizes.
    """
    ended = report.rank.ended
    error = ended.error.partition(":")[0] if ended.how == EndKind.RAISED else ""
    return ended.how, str(ended.status), error, "no step" if ended.steps == 0 else ""


def _growth(rank: Rank, warmup: int) -> float | None:
    """The rate used by the verdict, or over all steps if there are few."""
    rate = counted_rate(rank, warmup)
    counted = [step for step in counted_steps(rank) if step.number > warmup]
    if rate is not None or not counted or counted[-1].number == counted[0].number:
        return rate
    grown = (counted[-1].counted_bytes or 0) - (counted[0].counted_bytes or 0)
    return grown / (counted[-1].number - counted[0].number)


def _leaked(findings: Findings) -> Mapping[int, int]:
    """The bytes of each rank's leaks when they were last seen."""
    total: Counter[int] = Counter()
    for finding in findings.leaks:
        last = {s.rank: s.bytes for s in sorted(finding.sightings, key=lambda sighting: sighting.step)}
        total.update(last)
    return total


def _gc(rank: Rank, summary: RankSummary) -> str:
    """The result of the final garbage collection beside the prediction; "" without one."""
    diff = rank.gc_diff
    if diff is None:
        if summary.freed_by_gc_bytes is None:
            return ""
        return f"garbage collection freed {bytes_text(summary.freed_by_gc_bytes)} in {seconds_text(summary.gc_seconds)}"
    generations = " + ".join(bytes_text(freed) for freed in diff.freed_bytes[:3])
    text = f"garbage collection freed {bytes_text(sum(diff.freed_bytes))} in {seconds_text(sum(diff.seconds))}"
    if len(diff.freed_bytes) > 1:
        full = (
            f"; {plural(diff.collections, 'full collection')} until nothing more was freed" if diff.collections else ""
        )
        text += f" (generations 0, 1, 2: {generations}{full})"
    return f"{text}; predicted {bytes_text(diff.predicted_bytes)}"


def _own_collections(rank: Rank) -> str:
    """Garbage collections during the run; "" if there were none."""
    collections = [c for step in rank.steps for c in step.collections]
    if not collections:
        return ""
    full = sum(c.is_full for c in collections)
    freed = sum(c.freed_bytes or 0 for c in collections)
    cost = seconds_text(sum(c.seconds for c in collections))
    count = plural(len(collections), "collection")
    return f"gc during the run: {count} ({full} full), {cost}, {bytes_text(freed)} freed"


def snapshots_text(run: Run) -> str:
    """`4 snapshots (960.0 ms)`, of the rank that spent most on them; "" if none did."""
    spent = max(
        ((sum(snapshot.seconds for snapshot in rank.heap_snapshots), len(rank.heap_snapshots)) for rank in run.ranks),
        default=(0.0, 0),
    )
    return f"{plural(spent[1], 'snapshot')} ({seconds_text(spent[0])})" if spent[1] else ""


def _snapshot_cost(rank: Rank) -> str:
    if not rank.heap_snapshots:
        return ""
    spent = sum(snapshot.seconds for snapshot in rank.heap_snapshots)
    stopped = sum(snapshot.stopped_seconds for snapshot in rank.heap_snapshots)
    count = plural(len(rank.heap_snapshots), "snapshot")
    return f"{count}, {seconds_text(spent)} in total, program paused for {seconds_text(stopped)}"


_ALWAYS = 3
"""Number of columns always shown; the others appear if a rank has a value."""


@dataclass(frozen=True)
class Column:
    """One figure of each rank."""

    head: str
    of: Callable[[RankReport], float | None]
    span: Callable[[Iterable[float]], str] = bytes_span

    def text(self, reports: Iterable[RankReport]) -> str:
        """The value, as a range if ranks differ; `-` if it is unknown."""
        listed = [self.of(report) for report in reports]
        known = [value for value in listed if value is not None]
        return " or ".join([*([self.span(known)] if known else []), *(["-"] if len(known) < len(listed) else [])])


def _gc_freed(report: RankReport) -> int | None:
    diff = report.rank.gc_diff
    return report.summary.freed_by_gc_bytes if diff is None else sum(diff.freed_bytes)


COLUMNS = (
    Column("steps", lambda report: report.steps, count_span),
    Column("allocated", lambda report: report.counted_bytes),
    Column("growth/step", lambda report: report.growth_per_step),
    Column("in tensors", lambda report: report.explained_bytes),
    Column("leaked", lambda report: report.leaked_bytes),
    Column("peak", lambda report: report.summary.peak_bytes),
    Column("gc would free", lambda report: None if (diff := report.rank.gc_diff) is None else diff.predicted_bytes),
    Column("gc freed", _gc_freed),
)
"""Allocated: what the process has of its allocator at the last snapshot. In tensors: of the storages found there."""


def columns_of(reports: Sequence[RankReport], whole: bool = False) -> tuple[Column, ...]:
    """The columns with values, or all if `whole`."""
    return tuple(
        column
        for place, column in enumerate(COLUMNS)
        if whole or place < _ALWAYS or any(column.of(report) for report in reports)
    )


MANY = 8
"""Ranks that ended badly in the same way above which they share a row, as the peers of one that died do. Heuristic."""
_FEW = 2
"""Maximum size of a set of outliers; more ranks form a group of their own (heuristic)."""
_SHARE = 0.25
"""Relative gap between neighbouring figures up to which they count as equal (heuristic)."""
_SPREADS = 6 * 1.4826
"""Distance of an outlier in median absolute deviations: six standard deviations of a normal distribution."""
_FLOOR = 4 << 20
"""Bytes by which identical processes differ in practice (heuristic)."""


@dataclass(frozen=True)
class Figure:
    """A figure by which a rank is compared with its peers."""

    clause: str
    """A clause in which `{}` is the value or range."""
    of: Callable[[RankReport], float | None]
    floor: int
    """Smaller differences are ignored."""
    span: Callable[[Iterable[float]], str] = bytes_span


FIGURES = (
    Figure("took {} steps", lambda report: report.steps, 1, count_span),
    Figure("leaked {}", lambda report: report.leaked_bytes, _FLOOR),
    Figure("grew by {} a step", lambda report: report.growth_per_step, 64 << 10),
    Figure("holds {} in tensors", lambda report: report.explained_bytes, _FLOOR),
    Figure("had a peak of {}", lambda report: report.summary.peak_bytes, _FLOOR),
    Figure("has {} allocated", lambda report: report.counted_bytes, 4 * _FLOOR),
)
"""Figures that split groups, in this order; on the CPU the allocator counts the whole process."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks that ended in the same way with the same leaks and about the same figures."""

    reports: tuple[RankReport, ...]
    """Of its ranks, in order."""
    apart: tuple[str, ...] = ()
    """Clauses that distinguish it from its peers: `leaked 96.00 MiB, 30 peers 1.20 to 1.40 MiB`."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of its ranks, in order."""
        return tuple(report.number for report in self.reports)

    @property
    def report(self) -> RankReport:
        """The report of the rank that represents the group."""
        return self.reports[0]

    @property
    def leaks(self) -> tuple[tuple[int, str], ...]:
        """(number in the report, fingerprint) of each leak that its ranks have."""
        return self.report.leaks

    @property
    def representative(self) -> int:
        """Number of the rank that represents the group."""
        return self.report.number

    @property
    def badly(self) -> bool:
        """Whether its ranks did not finish."""
        return self.report.badly

    @property
    def outlying(self) -> bool:
        """Whether it failed or its figures are far from those of its peers."""
        return self.badly or bool(self.apart)


def rank_groups(run: Run, findings: Findings) -> tuple[RankGroup, ...]:
    """Each rank in one group; those that stand out first, then by the smallest rank.

    A rank that was killed, hung or failed, and one whose figures are far from those of its peers, is a group of its
    own; only where more than `MANY` ended badly in the same way are they one, except the first to fail.
    """
    reports = rank_reports(run, findings)
    groups = [*_ended_badly(run, reports)]
    alike: dict[object, list[RankReport]] = {}
    for report in reports:
        if not report.badly:
            alike.setdefault((ending(report), report.leaks), []).append(report)
    skewed = _skewed(findings)
    for peers in alike.values():
        groups += _alike(peers, skewed)
    return tuple(sorted(groups, key=lambda group: (not group.outlying, group.representative)))


def _ended_badly(run: Run, reports: Iterable[RankReport]) -> Iterable[RankGroup]:
    """Failed ranks, each alone unless more than `MANY` failed in the same way."""
    first = first_to_fail(run)
    same: dict[object, list[RankReport]] = {}
    for report in reports:
        if report.badly and (first is None or report.number != first.number):
            same.setdefault((ending(report), report.leaks), []).append(report)
        elif report.badly:
            yield RankGroup((report,))
    for those in same.values():
        for group in [those] if len(those) > MANY else [[report] for report in those]:
            yield RankGroup(tuple(group))


def _skewed(findings: Findings) -> frozenset[int]:
    """Ranks with a rank-skew finding; empty if there are more than `MANY`."""
    found = [f for f in findings.findings if f.rule == RuleName.RANK_SKEW]
    ranks = frozenset(rank for finding in found for rank in finding.ranks)
    return ranks if len(ranks) <= MANY else frozenset()


def _alike(peers: Sequence[RankReport], skewed: frozenset[int]) -> Iterable[RankGroup]:
    """Groups of ranks with the same leaks, split where their figures are far apart."""
    usual = [[report for report in peers if report.number not in skewed]]
    for report in peers:
        if report.number in skewed:
            yield RankGroup((report,), ("retains memory that other ranks release",))
    outliers: dict[int, tuple[RankReport, list[str]]] = {}
    for figure in FIGURES:
        split: list[list[RankReport]] = []
        for group in usual:
            same, far = _split(group, figure)
            split += same
            for report, clause in far:
                outliers.setdefault(report.number, (report, []))[1].append(clause)
        usual = split
    yield from (RankGroup(tuple(group)) for group in usual if group)
    yield from (RankGroup((report,), tuple(clauses)) for report, clauses in outliers.values())


def _split(group: list[RankReport], figure: Figure) -> tuple[list[list[RankReport]], list[tuple[RankReport, str]]]:
    """Ranks grouped by similar figures, and outliers with the clause that distinguishes them."""
    known = {report.number: value for report in group if (value := figure.of(report)) is not None}
    unknown = [report for report in group if report.number not in known]
    clusters = _clusters(sorted(known.items(), key=lambda item: (item[1], item[0])), figure)
    many = [cluster for cluster in clusters if len(cluster) > _FEW]
    far: dict[int, str] = {}
    for cluster in clusters if many else ():
        if len(cluster) <= _FEW:
            near = min(many, key=lambda other: abs(_middle(other) - _middle(cluster)))
            if abs(_middle(cluster) - _middle(near)) > _reach(near, figure):
                far |= {number: _clause(figure, known[number], near) for number, _ in cluster}
            else:
                near += cluster
    same = [{number for number, _ in cluster} - far.keys() for cluster in (many or clusters)]
    together = [[report for report in group if report.number in numbers] for numbers in same]
    return [*together, *([unknown] if unknown else [])], [(s, far[s.number]) for s in group if s.number in far]


def _clusters(values: Sequence[tuple[int, float]], figure: Figure) -> list[list[tuple[int, float]]]:
    """Sorted (rank, value) pairs, split at large gaps."""
    clusters = [[pair] for pair in values[:1]]
    for (_, below), pair in pairwise(values):
        if pair[1] - below > max(figure.floor, _SHARE * max(abs(below), abs(pair[1]))):
            clusters.append([])
        clusters[-1].append(pair)
    return clusters


def _middle(cluster: Sequence[tuple[int, float]]) -> float:
    return median(value for _, value in cluster)


def _reach(cluster: Sequence[tuple[int, float]], figure: Figure) -> float:
    """Maximum distance from the median of a group."""
    middle = _middle(cluster)
    spread = median(abs(value - middle) for _, value in cluster)
    return max(_SPREADS * spread, _SHARE * abs(middle), figure.floor)


def _clause(figure: Figure, value: float, peers: Sequence[tuple[int, float]]) -> str:
    theirs = figure.span(of_peer for _, of_peer in peers)
    return f"{figure.clause.format(figure.span([value]))}, {plural(len(peers), 'peer')} {theirs}"


def notes_together(
    groups: Sequence[RankGroup], texts: Callable[[RankReport], Iterable[str]]
) -> tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]:
    """(ranks, texts that apply to exactly these), those of representative ranks first."""
    first = [group.report for group in groups]
    others = [report for group in groups for report in group.reports[1:]]
    of_ranks: dict[str, list[int]] = {}
    for report in (*first, *sorted(others, key=lambda report: report.number)):
        for text in dict.fromkeys(texts(report)):
            of_ranks.setdefault(text, []).append(report.number)
    by_ranks: dict[tuple[int, ...], list[str]] = {}
    for text, ranks in of_ranks.items():
        by_ranks.setdefault(tuple(sorted(ranks)), []).append(text)
    return tuple((ranks, tuple(alike)) for ranks, alike in by_ranks.items())


def notes_of(report: RankReport) -> Iterator[str]:
    """Notes of a rank."""
    yield from (text for text in report.notes if text)


def all_of(report: RankReport) -> Iterator[str]:
    """All notes of a rank, its memory by category and its garbage collections."""
    named = {"leaked": GARBAGE} if not report.leaked_bytes else {}  # nothing was found to leak, so that is all of it
    categories = sorted(report.summary.categories.items(), key=lambda item: (-item[1], item[0]))
    sorted_memory = ", ".join(
        f"{one_line(named.get(name, name))} {bytes_text(count)}" for name, count in categories if count
    )
    rank = report.rank
    costs = (_gc(rank, report.summary), _own_collections(rank), _snapshot_cost(rank))
    not_read = (text for snapshot in rank.heap_snapshots for text in snapshot.unjudged)
    yield from (text for text in (sorted_memory, *costs, *report.notes, *not_read) if text)
