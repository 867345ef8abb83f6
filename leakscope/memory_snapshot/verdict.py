"""Reads snapshot files and gives the verdict on one, or on those of several ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import median_low

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.memory_snapshot.analysis import DeviceReport, HistoryKind, SnapshotReport, analyse
from leakscope.memory_snapshot.growth import MIN_RISES
from leakscope.memory_snapshot.reader import read_snapshots
from leakscope.memory_snapshot.sites import Site, SiteBytes
from leakscope.verdict import Verdict

MIN_STEP_BYTES = 64 << 10
"""Minimum bytes per step for a verdict; smaller growth is only listed. As `leakscope run --min-bytes`."""
MIN_BYTES = 1 << 20
"""Minimum total bytes for a verdict: the largest request that the allocator calls small (kSmallSize)."""
_PENDING_SHARE = 0.02
"""Minimum share of the reserved bytes to report memory that waits for another stream. Heuristic."""
_STUCK_SHARE = 0.25
"""Minimum share of the reserved bytes to report memory stuck between live blocks. Heuristic."""
_MIN_STUCK_BYTES = 64 << 20
"""Minimum bytes to report it. Heuristic."""
_LINE = re.compile(r":\d+ ")
"""The line number in a site's name."""
_EXCESS_SHARE = 0.05
"""Minimum share of a rank's requested bytes to report that it holds more than its peers. Heuristic."""


class ConcernKind(StrEnum):
    """The kind of a concern, the most urgent first."""

    OUT_OF_MEMORY = "out-of-memory"
    GROWTH = "growth"
    RANK_EXCESS = "rank-excess"
    PENDING_FREES = "pending-frees"
    FRAGMENTATION = "fragmentation"


_URGENCY = tuple(ConcernKind)


@dataclass(frozen=True)
class Concern:
    """One reportable concern."""

    kind: ConcernKind
    snapshot: str
    rank: int | None
    device: int
    bytes: int
    """Bytes requested, kept at the end, in excess of the peers, waiting, or stuck."""
    site: Site | None = None
    per_step: float = 0.0
    steps: int = 0
    of_bytes: int = 0
    """Free device memory for `out-of-memory`, the peers' bytes for `rank-excess`, otherwise reserved bytes."""
    alive_bytes: int = 0


@dataclass(frozen=True)
class SnapshotVerdict:
    """The verdict on the snapshots, why it is limited, and the concerns."""

    verdict: Verdict
    why: str
    """The reason for `inconclusive`, a clause; otherwise empty."""
    concerns: tuple[Concern, ...]


@dataclass(frozen=True)
class SiteChange:
    """Bytes of one site in two snapshots."""

    where: str
    """`train.py:12 step`; `train.py:12 -> :14 step` if an edit between the two has moved the line."""
    base_end_bytes: int
    new_end_bytes: int
    base_peak_bytes: int
    new_peak_bytes: int


@dataclass(frozen=True)
class SnapshotComparison:
    """Two snapshots side by side; differences are new minus base."""

    base: SnapshotReport
    new: SnapshotReport
    end_bytes: int
    peak_bytes: int
    reserved_bytes: int
    sites: tuple[SiteChange, ...]
    """Largest change first, without unchanged sites."""


@dataclass(frozen=True)
class SnapshotsReport:
    """The result of `leakscope snapshot` for its files."""

    snapshots: tuple[SnapshotReport, ...]
    judgement: SnapshotVerdict
    comparison: SnapshotComparison | None = None


def judge_snapshots(snapshots: Sequence[SnapshotReport]) -> SnapshotVerdict:
    """The verdict on snapshots of different ranks (or of one)."""
    concerns = [
        concern for snapshot in snapshots for device in snapshot.devices for concern in _concerns(snapshot, device)
    ]
    concerns += _excesses(snapshots)
    concerns.sort(key=lambda concern: (_URGENCY.index(concern.kind), -concern.bytes, concern.snapshot, concern.device))
    if any(concern.kind == ConcernKind.GROWTH for concern in concerns):
        return SnapshotVerdict(Verdict.LEAKS, "", tuple(concerns))
    why = next((reason for snapshot in snapshots for device in snapshot.devices if (reason := _unjudged(device))), "")
    return SnapshotVerdict(Verdict.INCONCLUSIVE if why else Verdict.CLEAN, why, tuple(concerns))


def _concerns(snapshot: SnapshotReport, device: DeviceReport) -> list[Concern]:
    origin = (snapshot.name, snapshot.rank, device.device)
    concerns = [
        Concern(
            ConcernKind.OUT_OF_MEMORY,
            *origin,
            failure.requested_bytes,
            failure.site,
            of_bytes=failure.device_free_bytes or 0,
            alive_bytes=failure.alive_bytes,
        )
        for failure in device.out_of_memory[:1]
    ]
    concerns += [
        Concern(
            ConcernKind.GROWTH,
            *origin,
            grown.kept_bytes,
            grown.site,
            grown.bytes_per_step,
            grown.steps,
            device.reserved_bytes,
        )
        for grown in device.growth.growing
        if device.growth.judged and grown.bytes_per_step >= MIN_STEP_BYTES and grown.kept_bytes >= MIN_BYTES
    ]
    if device.pending.bytes >= max(MIN_BYTES, _PENDING_SHARE * device.reserved_bytes):
        site = device.pending.sites[0].site if device.pending.sites else None
        concerns.append(
            Concern(ConcernKind.PENDING_FREES, *origin, device.pending.bytes, site, of_bytes=device.reserved_bytes)
        )
    stuck, reserved = _stuck(device)
    if stuck >= max(_MIN_STUCK_BYTES, _STUCK_SHARE * reserved):
        concerns.append(Concern(ConcernKind.FRAGMENTATION, *origin, stuck, of_bytes=reserved))
    return concerns


def _stuck(device: DeviceReport) -> tuple[int, int]:
    """Reserved bytes stuck between live blocks: at the failure if there was one, since the script has left what was
    stuck afterwards.
    """
    for failure in device.out_of_memory[:1]:
        stuck = 0 if failure.room is None else failure.room.idle_bytes - failure.room.empty_bytes
        return stuck, failure.reserved_bytes
    return device.fragmentation.stuck_bytes, device.reserved_bytes


def _unjudged(device: DeviceReport) -> str:
    """Why growth over steps could not be judged on this device; empty if it could."""
    if device.history == HistoryKind.NONE:
        return "the file holds no history of allocations"
    growth = device.growth
    unmarked = "it marks no steps" if device.timeline.clock else "its events carry no times (torch before 2.2)"
    if not growth.marker:
        return f"{unmarked}, and no sequence of allocations repeats"
    if growth.steps < MIN_RISES:
        return f"it has {growth.steps} complete steps; growth needs at least {MIN_RISES}"
    if not growth.judged:
        return (
            f"{unmarked}, and the sequence that repeats {growth.steps} times, from {growth.marker} on, has no backward "
            "pass: it may not be a step"
        )
    return ""


def _excesses(snapshots: Sequence[SnapshotReport]) -> list[Concern]:
    """Sites at which one rank holds more at the end than the median of its peers."""
    if len(snapshots) <= 1 or len({snapshot.rank for snapshot in snapshots} - {None}) < len(snapshots):
        return []
    held = [_end_by_place(snapshot) for snapshot in snapshots]
    concerns = []
    for index, snapshot in enumerate(snapshots):
        for place, entry in held[index].items():
            peers = median_low(
                [other[place].bytes if place in other else 0 for at, other in enumerate(held) if at != index]
            )
            total = sum(device.requested_bytes for device in snapshot.devices)
            if entry.bytes - peers >= max(MIN_BYTES, _EXCESS_SHARE * total):
                device = snapshot.devices[0].device
                concerns.append(
                    Concern(
                        ConcernKind.RANK_EXCESS,
                        snapshot.name,
                        snapshot.rank,
                        device,
                        entry.bytes - peers,
                        entry.site,
                        of_bytes=peers,
                    )
                )
    return concerns


def _end_by_place(snapshot: SnapshotReport) -> dict[str, SiteBytes]:
    places: dict[str, SiteBytes] = {}
    for device in snapshot.devices:
        for entry in device.end_sites:
            old = places.get(entry.site.where)
            places[entry.site.where] = SiteBytes(
                entry.site, entry.bytes + (old.bytes if old else 0), entry.count + (old.count if old else 0)
            )
    return places


def compare(base: SnapshotReport, new: SnapshotReport) -> SnapshotComparison:
    """Compare two snapshots by site."""
    tables = [_totals(report, peak) for peak in (False, True) for report in (base, new)]
    sites = [
        SiteChange(name, *(sum(table.get(place, 0) for place in places) for table in tables))
        for name, places in _paired(set(tables[0]) | set(tables[2]), set(tables[1]) | set(tables[3]))
    ]
    changed = [
        site
        for site in sites
        if (site.base_end_bytes, site.base_peak_bytes) != (site.new_end_bytes, site.new_peak_bytes)
    ]

    def difference(name: str) -> int:
        return sum(int(getattr(device, name)) for device in new.devices) - sum(
            int(getattr(device, name)) for device in base.devices
        )

    return SnapshotComparison(
        base,
        new,
        end_bytes=difference("requested_bytes"),
        peak_bytes=difference("peak_bytes"),
        reserved_bytes=difference("reserved_bytes"),
        sites=tuple(sorted(changed, key=_largest_change)),
    )


def _largest_change(site: SiteChange) -> tuple[int, int, str]:
    return (
        -abs(site.new_end_bytes - site.base_end_bytes),
        -abs(site.new_peak_bytes - site.base_peak_bytes),
        site.where,
    )


def _paired(base: set[str], new: set[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Pair the sites of two snapshots by name: each line is a site, and if a function has one unpaired line in each,
    those are paired.
    """
    moved: dict[str, tuple[list[str], list[str]]] = {}
    for side, only in enumerate((base - new, new - base)):
        for place in only:
            moved.setdefault(_LINE.sub(" ", place), ([], []))[side].append(place)
    rows: list[tuple[str, tuple[str, ...]]] = [(place, (place,)) for place in base & new]
    for before, after in moved.values():
        if len(before) == len(after) == 1 and _LINE.search(before[0]):
            rows.append((_LINE.sub(f"{_line(before[0])} -> {_line(after[0])} ", after[0]), (before[0], after[0])))
        else:
            rows += [(place, (place,)) for place in (*before, *after)]
    return rows


def _line(place: str) -> str:
    found = _LINE.search(place)
    return found[0].rstrip() if found else ""


def _totals(report: SnapshotReport, peak: bool) -> dict[str, int]:
    totals: dict[str, int] = {}
    for device in report.devices:
        for entry in device.peak_sites if peak else device.end_sites:
            totals[entry.site.where] = totals.get(entry.site.where, 0) + entry.bytes
    return totals


_NAME = re.compile(r"([a-z][a-z0-9]*)_([a-z]+)_(\d{6,})\.pickle")
_FAILED = "oom"
_RANK = re.compile(r"(?:^|[^a-z])rank[_\-=. ]?0*(\d{1,6})", re.IGNORECASE)
_SHORT = re.compile(r"(?:^|[_\-.])r0*(\d{1,6})(?=[_\-.]|$)", re.IGNORECASE)


def files_in(folder: Path) -> tuple[Path, ...]:
    """The rank's snapshot files in the order they were taken.

    `cuda_step_000012.pickle`, then `cuda_oom_000012.pickle`, which was taken after that step.
    """
    named = [
        (int(name[3]), name[2] != "step", path)
        for path in folder.glob("*.pickle")
        if (name := _NAME.fullmatch(path.name))
    ]
    return tuple(path for _, _, path in sorted(named))


def snapshots_in(folder: Path, rank: int) -> tuple[tuple[SnapshotReport, ...], tuple[str, ...]]:
    """Analyse the newest snapshot and that of the last failure; also returns a sentence for each that could not be
    read.
    """
    files = files_in(folder)
    failed = [path for path in files if f"_{_FAILED}_" in path.name]
    reports: list[SnapshotReport] = []
    problems: list[str] = []
    for path in dict.fromkeys([*failed[-1:], *files[-1:]]):
        try:
            reports += [analyse(snapshot, rank) for snapshot in read_snapshots(path)]
        except Unreadable as error:
            problems.append(str(error))
    return tuple(reports), tuple(problems)


def rank_in(path: Path) -> int | None:
    """The rank in the file's name, or in the name of the nearest folder with one (`rank_0003/cuda.pickle`), else None.

    A snapshot does not contain the rank that wrote it.
    """
    for part in (path.name, *(parent.name for parent in path.parents)):
        if match := _RANK.search(part):
            return int(match[1])
    match = _SHORT.search(path.name)
    return int(match[1]) if match else None


_COMPARED = ("a base", "a new one")


def examine(paths: Sequence[Path], comparing: bool = False, frames: int = 1, at: int | None = None) -> SnapshotsReport:
    """Read and analyse files, as ranks named by their file names or, with `comparing`, as a base and a new one.

    Reports `frames` of the user's frames for each site, and what was alive after the event `at`. Files are read one at
    a time, so memory is that of the largest. Raises Unreadable for a file that is not a snapshot, and LeakscopeError if
    a comparison does not have two files, or no file has that many events.
    """
    reports: list[SnapshotReport] = []
    for path in paths:
        for snapshot in read_snapshots(path):
            reports.append(analyse(snapshot, rank_in(path), frames, at))
    most = max((device.events for report in reports for device in report.devices), default=0)
    if at is not None and at >= most:
        raise LeakscopeError(f"no event {at}: the files have at most {most}, counted from 0")
    reports = _named_apart(paths, reports)
    if not comparing:
        reports.sort(key=lambda report: (report.rank is None, report.rank or 0))
        return SnapshotsReport(tuple(reports), judge_snapshots(reports))
    if len(reports) != len(_COMPARED):
        raise LeakscopeError(f"comparing takes two snapshots, {' and '.join(_COMPARED)}, and {len(reports)} were given")
    return SnapshotsReport(tuple(reports), judge_snapshots(reports[1:]), compare(*reports))


def _named_apart(paths: Sequence[Path], reports: list[SnapshotReport]) -> list[SnapshotReport]:
    """Prefix files of the same name with their folder's name."""
    if len({report.name for report in reports}) == len(reports) or len(reports) != len(paths):
        return reports
    return [
        replace(report, name=f"{path.parent.name}/{report.name}") for path, report in zip(paths, reports, strict=True)
    ]
