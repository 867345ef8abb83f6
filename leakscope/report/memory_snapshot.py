"""Memory snapshots of the allocator: a report of their own, and the device section of a run's report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from leakscope.findings.oom import DeviceSnapshot, device_snapshots
from leakscope.memory_snapshot.analysis import (
    DeviceReport,
    Fragmentation,
    OutOfMemory,
    Pool,
    SnapshotReport,
)
from leakscope.memory_snapshot.model import BlockState
from leakscope.memory_snapshot.oom import Help, Remedy, Room
from leakscope.memory_snapshot.replay import LabelKind
from leakscope.memory_snapshot.sites import Site, SiteBytes, SiteKind
from leakscope.memory_snapshot.verdict import Concern, ConcernKind, SnapshotsReport, judge_snapshots
from leakscope.report import charts
from leakscope.report.rendering import (
    UNLIMITED,
    Line,
    cleaned,
    figures,
    html_page,
    json_text,
    one_line,
    text_page,
    wrapped,
)
from leakscope.run.model import Rank, Run
from leakscope.run.rows import Occasion
from leakscope.units import bytes_text, like_text, one_of_each, plural, seconds_text
from leakscope.verdict import Verdict

_MAX_STREAMS = 4
"""Maximum number of streams listed (heuristic)."""
_MAX_POOLS = 8
"""Maximum number of private pools listed (heuristic)."""
_PRESET = {"pinned_num_register_threads": "1"}
"""Settings whose default in torch is not off (c10/cuda/CUDAAllocatorConfig.h)."""
_ANSWERS = {
    True: "enough at best",
    False: "not enough",
    None: "unknown whether that is enough",
}
"""Whether a remedy would have been enough."""
_NO_RELEASES = "no release was recorded, so idle memory at that point is unknown"
_MAX_SITES = 3
"""Allocation sites in the first line (heuristic)."""


def verdict_line(report: SnapshotsReport) -> str:
    """The result in one line: the most urgent concern (after a failure also what grew) and the number of others, the
    peak and its holders, what is alive at the end, and whether it grew.
    """
    judgement = report.judgement
    several = len(report.snapshots) > 1
    shown = list(judgement.concerns[:1])
    if shown and shown[0].kind == ConcernKind.OUT_OF_MEMORY:
        shown += [concern for concern in judgement.concerns if concern.kind == ConcernKind.GROWTH][:1]
    parts = [concern_text(concern, several) for concern in shown]
    if len(judgement.concerns) > len(shown):
        parts[-1] += f" (and {len(judgement.concerns) - len(shown)} more)"
    devices = [(device, snapshot) for snapshot in report.snapshots for device in snapshot.devices]
    if not parts and judgement.verdict == Verdict.CLEAN:
        fewest = min((device.growth for device, _ in devices), key=lambda growth: growth.steps)
        how = " (inferred from repeated allocations)" if fewest.inferred else ""
        parts.append(f"no growth over {fewest.steps} steps{how}")
    highest, its = max(devices, key=lambda pair: pair[0].peak_bytes)
    if highest.peak_bytes:
        parts.append(peak_holders_text(highest) + (f" ({snapshot_title(its)})" if several else ""))
    if judgement.verdict == Verdict.INCONCLUSIVE:
        return "; ".join([*parts, f"growth {judgement.verdict}: {judgement.why}"])
    return f"{judgement.verdict}: {'; '.join(parts)}"


def peak_holders_text(device: DeviceReport) -> str:
    """`peak 12.97 GiB: 2.56 GiB of model.py:39 forward, 2.25 GiB of model.py:532 silu; 1.28 GiB at the end`."""
    sites = device.end_sites if device.peak_event < 0 else device.peak_sites
    held = ", ".join(f"{bytes_text(entry.bytes)} {_made(entry.site)}" for entry in sites[:_MAX_SITES])
    if device.peak_event < 0:
        return f"{bytes_text(device.requested_bytes)} alive: {held}"
    return f"peak {bytes_text(device.peak_bytes)}: {held}; {bytes_text(device.requested_bytes)} at the end"


def _made(site: Site) -> str:
    return f"({site.where})" if site.kind == SiteKind.UNKNOWN else f"of {site.where}"


def _place(site: Site | None) -> str:
    """As the subject of a sentence."""
    return "an unknown place" if site is None or site.kind == SiteKind.UNKNOWN else site.where


def concern_text(concern: Concern, several: bool) -> str:
    """One concern as a clause; names the file if there are `several`."""
    where = _place(concern.site)
    origin = (
        "" if not several else f" on rank {concern.rank}" if concern.rank is not None else f" in {concern.snapshot}"
    )
    made = f"; allocated at {where}" if concern.site and concern.site.kind != SiteKind.UNKNOWN else ""
    amount, of = bytes_text(concern.bytes), bytes_text(concern.of_bytes)
    if concern.kind == ConcernKind.OUT_OF_MEMORY:
        alive = bytes_text(concern.alive_bytes)
        return f"out of memory{origin}: {where} requested {amount} with {alive} alive and {of} of the device free"
    if concern.kind == ConcernKind.GROWTH:
        per_step = bytes_text(concern.per_step)
        kept = f"{concern.steps} steps in a row, {amount} alive at the end"
        return f"{where} keeps {per_step} more each step{origin} ({kept})"
    if concern.kind == ConcernKind.RANK_EXCESS:
        return f"{where} holds {amount} more on rank {concern.rank} than on its peers ({of})"
    if concern.kind == ConcernKind.PENDING_FREES:
        return f"{amount} of freed tensors await another stream{origin} (record_stream{made})"
    return f"{amount} of {of} reserved is stuck between live blocks{origin}"


def snapshot_title(snapshot: SnapshotReport) -> str:
    """`rank 3 (cuda_step_000012.pickle)`, or only the file if the rank is unknown."""
    return snapshot.name if snapshot.rank is None else f"rank {snapshot.rank} ({snapshot.name})"


def device_facts(device: DeviceReport) -> tuple[tuple[str, str], ...]:
    """The device's figures as pairs of label and text."""
    active = sum(count for state, count in device.blocks.items() if state != BlockState.INACTIVE)
    peak = f"{bytes_text(device.peak_bytes)} after event {device.peak_event} of {device.events}"
    kinds = f"{kinds_text(device.peak_categories)} at the peak"
    if device.peak_event < 0:
        peak, kinds = "unknown without a history", f"{kinds_text(device.peak_categories)} at the end"
    rows = [
        ("history", f"{device.events} events, history {device.history}"),
        ("alive at the end", f"{bytes_text(device.requested_bytes)} in {active} blocks"),
        ("peak", peak),
        ("by kind", kinds if device.peak_categories else ""),
        ("reserved", f"{bytes_text(device.reserved_bytes)} in {device.segments} segments"),
        ("fragmentation", _fragmentation(device.fragmentation) + (" (at the end)" if device.out_of_memory else "")),
    ]
    if device.pending.blocks or device.pending.requests or device.pending.highest_bytes:
        at_end = f"{bytes_text(device.pending.bytes)} in {device.pending.blocks} blocks at the end"
        rows.append(("pending frees", f"{at_end}, at most {bytes_text(device.pending.highest_bytes)} during the trace"))
    if len(device.streams) > 1:
        peaks = [f"{bytes_text(peak.peak_bytes)} on {peak.stream}" for peak in device.streams[:_MAX_STREAMS]]
        rows.append(("stream peaks", ", ".join(peaks)))
    private = sorted((pool for pool in device.pools if pool.pool != (0, 0)), key=lambda pool: -pool.peak_bytes)
    rows += [(f"private pool {pool.pool[0]},{pool.pool[1]}", _pool(pool)) for pool in private[:_MAX_POOLS]]
    if len(private) > _MAX_POOLS:
        rows.append(("private pools", f"{len(private) - _MAX_POOLS} more, smaller ones"))
    if device.growth.marker:
        growth = device.growth
        how = f"inferred from allocations that repeat from {growth.marker} on"
        marked = f"each from one {growth.marker} to the next"
        rows.append(("steps", f"{growth.steps} complete, {how if growth.inferred else marked}"))
    return tuple(row for row in rows if row[1])


def kinds_text(categories: Mapping[str, int]) -> str:
    """`activation 1.20 GiB, parameter 300.00 MiB, ... (judged from stacks and life spans)`."""
    return f"{each_kind_text(categories)} (judged from stacks and life spans)"


def each_kind_text(categories: Mapping[str, int]) -> str:
    """`activation 1.20 GiB, parameter 300.00 MiB`."""
    return ", ".join(f"{kind} {bytes_text(count)}" for kind, count in categories.items())


def settings_text(settings: Mapping[str, str]) -> str:
    """The allocator settings that differ from torch's defaults."""
    plain = {"", "0", "0.0", "-1", "False", "None", "[]", "{}"}
    own = {name: value for name, value in settings.items() if value not in plain and _PRESET.get(name) != value}
    return ", ".join(f"{name}={value}" for name, value in own.items())


def _fragmentation(scraps: Fragmentation) -> str:
    stuck = f"{bytes_text(scraps.stuck_bytes)} stuck between live blocks"
    return (
        f"{bytes_text(scraps.inactive_bytes)} reserved and unused: "
        f"{bytes_text(scraps.releasable_bytes)} in empty segments, "
        f"{stuck} (largest piece {bytes_text(scraps.largest_stuck_bytes)}); "
        f"rounding adds {bytes_text(scraps.rounding_bytes)}"
    )


def _pool(pool: Pool) -> str:
    pending = f", {bytes_text(pool.pending_bytes)} pending" if pool.pending_bytes else ""
    active = f"{bytes_text(pool.active_bytes)} active of {bytes_text(pool.reserved_bytes)} reserved{pending}"
    return f"{active}, at most {bytes_text(pool.peak_bytes)} ({pool.owner})"


def failure_lines(device: DeviceReport) -> tuple[str, ...]:
    """One sentence per out-of-memory event, and the arithmetic of the first."""
    texts = []
    for failure in device.out_of_memory:
        when = "" if failure.at is None else f", {seconds_text(failure.at)} into the trace"
        texts.append(
            f"Out of memory at event {failure.event}{when}: {_place(failure.site)} requested "
            f"{bytes_text(failure.requested_bytes)}; {bytes_text(failure.alive_bytes)} alive of "
            f"{bytes_text(failure.reserved_bytes)} reserved, device free {bytes_text(failure.device_free_bytes)}"
        )
    rooms = (line for failure in device.out_of_memory[:1] for line in room_texts(failure))
    return (*texts[:1], *rooms, *texts[1:])


def room_texts(failure: OutOfMemory) -> tuple[str, ...]:
    """The arithmetic of an out-of-memory event: missing and idle memory, and possible remedies."""
    room = failure.room
    if room is None:
        return (_NO_RELEASES,)
    lines = list(_missing_and_idle(failure, room))
    if len(room.pools) > 1:
        lines += [
            f"{_pool_name(row.pool)}, stream {row.stream}: {bytes_text(row.reserved_bytes)} reserved, "
            f"{bytes_text(row.idle_bytes)} idle, largest piece {bytes_text(row.largest_idle_bytes)}"
            for row in room.pools
        ]
    return (*lines, *(_help_text(remedy, room) for remedy in room.helps))


def room_in_short(failure: OutOfMemory) -> str:
    """Why the allocation failed in one sentence, without the pools and how each remedy works."""
    if failure.room is None:
        return _NO_RELEASES
    parts = list(_missing_and_idle(failure, failure.room))
    for enough, answer in _ANSWERS.items():
        helps = [f"{_name(each)} ({bytes_text(each.bytes)})" for each in failure.room.helps if each.enough is enough]
        if helps:
            parts.append(f"{answer}: {', '.join(helps)}")
    return "; ".join(parts)


def _name(remedy: Help) -> str:
    return "a smaller batch" if remedy.remedy == Remedy.SMALLER_BATCH else str(remedy.remedy)


def _missing_and_idle(failure: OutOfMemory, room: Room) -> tuple[str, str]:
    free = bytes_text(failure.device_free_bytes)
    return (
        f"to be reserved {bytes_text(room.needed_bytes)}, device free {free}{_lack(room)}",
        f"idle {bytes_text(room.idle_bytes)} of {bytes_text(failure.reserved_bytes)} reserved, largest piece for the "
        f"request {bytes_text(room.largest_idle_bytes)}",
    )


def _lack(room: Room) -> str:
    if room.limited:
        return (
            ": that would have been enough, so a limit of the process's own refused it "
            "(set_per_process_memory_fraction), or the driver"
        )
    return "" if room.missing_bytes is None else f": short by {bytes_text(room.missing_bytes)}"


def _pool_name(pool: tuple[int, int]) -> str:
    return "default pool" if pool == (0, 0) else f"private pool {pool[0]},{pool[1]}"


def _help_text(remedy: Help, room: Room) -> str:
    brought = bytes_text(remedy.bytes)
    if remedy.remedy == Remedy.SMALLER_BATCH:
        made = f"smaller batch: {bytes_text(remedy.of_bytes)} alive were made in the forward"
        most = " at the most" if room.limited else ""
        if not remedy.enough:
            return f"{made}, and {brought}{most} were missing: not enough"
        return f"{made}, {remedy.bytes / remedy.of_bytes:.0%} less of it is {brought}{most}"
    if remedy.remedy == Remedy.EXPANDABLE_SEGMENTS and room.expandable:
        return f"{remedy.remedy}: already in use"
    what = {
        Remedy.EMPTY_CACHE: f"{brought} in segments that held nothing",
        Remedy.EXPANDABLE_SEGMENTS: f"{brought} of idle pieces could have been used together",
        Remedy.MAX_SPLIT_SIZE: f"{brought} in the largest segment that only smaller pieces kept",
    }[remedy.remedy]
    return f"{remedy.remedy}: {what}: {_ANSWERS[remedy.enough]}"


SNAPSHOTS_SHOWN = 8
"""Maximum number of heap snapshots listed per rank and device (heuristic)."""
_NATIVE_SITES_SHOWN = 6
"""Maximum number of allocation sites per heap snapshot (heuristic)."""
_HEADS = ("step", "device", "reserved", "active", "held", "for gc", "native", "pending", "outside")
_LEGEND = (
    "active = held (by a live object) + for gc (unreachable) + native (no storage found) + pending (freed, in use by "
    "another stream); outside: used on the device but not reserved by this process, other processes included"
)


def device_lines(run: Run, groups: Sequence[Sequence[int]] = ()) -> Iterator[Line]:
    """The section of the text report; empty without an accelerator's allocator.

    `groups`: ranks with the same behaviour, of which one is shown.
    """
    ranks = _device_records(run, groups)
    if not any(records or rank.memory_snapshots for rank, _, records in ranks):
        return
    yield "Device memory"
    yield "============="
    for rank, more, records in ranks:
        if records:
            yield like_text(rank.number, more)
            last = records[-SNAPSHOTS_SHOWN * len({record.device for record in records}) :]
            yield figures(map(_cells, last), "r" * len(_HEADS), _HEADS, indent=2)
            yield from (line for text in _native(records) for line in wrapped(text, "    ", "  "))
        for report in rank.memory_snapshots:
            yield from wrapped(one_line(f"snapshot {report.name}: {_verdict(report)}"), "  ")
    if any(records for _, _, records in ranks):
        yield from wrapped(f"({_LEGEND})", "", "  ")
    yield ""


def _device_records(run: Run, groups: Sequence[Sequence[int]]) -> list[tuple[Rank, int, tuple[DeviceSnapshot, ...]]]:
    """(rank, number of further ranks like it, its device records) of each rank shown."""
    shown = one_of_each((rank.number for rank in run.ranks if rank.device_blocks or rank.memory_snapshots), groups)
    return [(rank, shown[rank.number], cleaned(device_snapshots(rank))) for rank in run.ranks if rank.number in shown]


def device_text(run: Run) -> str:
    """`1.00 GiB reserved on cuda:0 by rank 2, 960.00 MiB active`: of the rank with most reserved at its last snapshot;
    "" without an accelerator's allocator.
    """
    last = [(records[-1], rank.number) for rank in run.ranks if (records := cleaned(device_snapshots(rank)))]
    if not last:
        return ""
    most, number = max(last, key=lambda each: (each[0].reserved, -each[1]))
    of_rank = f" by rank {number}" if len(run.ranks) > 1 else ""
    return (
        f"{bytes_text(most.reserved)} reserved on {most.kind}:{most.device}{of_rank}, {bytes_text(most.active)} active "
        f"at the last heap snapshot"
    )


def _cells(record: DeviceSnapshot) -> tuple[str, ...]:
    step = str(record.step) if record.occasion == Occasion.STEP else f"{record.step} ({record.occasion})"
    sizes = (record.reserved, record.active, record.held, record.waiting, record.native, record.pending)
    outside = "-" if record.outside is None else bytes_text(record.outside)
    return (step, f"{record.kind}:{record.device}", *(bytes_text(size) for size in sizes), outside)


def _native(records: tuple[DeviceSnapshot, ...]) -> tuple[str, ...]:
    """The allocation sites of the last snapshot's native blocks."""
    sites = [
        site
        for record in records
        if (record.step, record.occasion) == (records[-1].step, records[-1].occasion)
        for site in record.sites
    ]
    return tuple(
        f"native: {bytes_text(s.bytes)} in {plural(s.count, 'block')}, allocated at {one_line(s.where)}"
        for s in sites[:_NATIVE_SITES_SHOWN]
    )


def device_section(run: Run, groups: Sequence[Sequence[int]] = ()) -> dict[str, Any] | None:
    """What `device_memory.html` shows; None without an accelerator's allocator. `run` is already cleaned.

    `groups`: ranks with the same behaviour, of which one is shown.
    """
    ranks = [
        (
            like_text(rank.number, more),
            list(map(_cells, records)),
            _native(records),
            snapshots_on_page(rank.memory_snapshots),
        )
        for rank, more, records in _device_records(run, groups)
        if records or rank.memory_snapshots
    ]
    return {"ranks": ranks, "heads": _HEADS, "legend": _LEGEND} if ranks else None


_ROWS, _ROWS_ON_PAGE = 10, 20
"""Maximum rows of a table, in text and on a page (heuristic)."""


@dataclass(frozen=True)
class Table:
    """One table, which the text and the page show alike."""

    title: str
    heads: tuple[str, ...]
    justify: str
    """`l` or `r` for each column."""
    rows: tuple[tuple[str, ...], ...]
    """A cell may have several lines."""
    paths: tuple[str, ...] = ()
    """The whole path of each row's place, for a tooltip; "" for none."""


def device_tables(device: DeviceReport, most: int = _ROWS_ON_PAGE) -> Iterator[Table]:
    """What was alive when memory ran out, at a requested event, at the end and at the peak, and what made it."""
    for failure in device.out_of_memory[:1]:
        yield from _sites("Alive when memory ran out", failure.alive_sites, most)
    if (moment := device.moment) is not None:
        alive = f"{bytes_text(moment.alive_bytes)} alive of {bytes_text(moment.reserved_bytes)} reserved"
        yield from _sites(f"After event {moment.event}: {alive}; {kinds_text(moment.categories)}", moment.sites, most)
    if device.regions:
        kinds = (f"\n  {each_kind_text(found)}" if found else "" for found in device.region_categories)
        yield Table(
            "Within annotated regions, with categories at the peak",
            ("at most", "left by the last", "times", "region"),
            "rrrl",
            tuple(
                (bytes_text(one.peak_bytes), bytes_text(one.left_bytes), f"{one.times}x", one_line(one.name) + more)
                for one, more in list(zip(device.regions, kinds, strict=True))[:most]
            ),
        )
    if device.labels:
        yield Table(
            "Allocated in compiled regions or under user metadata",
            ("at most", "at the peak", "at the end", "times", "label"),
            "rrrrl",
            tuple(
                (
                    *map(bytes_text, (label.peak_bytes, label.at_peak_bytes, label.end_bytes)),
                    f"{label.allocations}x",
                    one_line(label.name if label.kind == LabelKind.COMPILED else f"{label.kind} {label.name}"),
                )
                for label in device.labels[:most]
            ),
        )
    if growing := device.growth.growing[:most]:
        yield Table(
            "Allocated each step and never freed",
            ("a step", "kept", "steps", "first user frame"),
            "rrrl",
            tuple(
                (bytes_text(g.bytes_per_step), bytes_text(g.kept_bytes), str(g.steps), one_line(g.site.where))
                for g in growing
            ),
            tuple(grown.site.filename for grown in growing),
        )
    yield from _sites("Alive at the end", device.end_sites, most)
    if device.peak_event >= 0:
        yield from _sites("Alive at the peak", device.peak_sites, most)
    yield from _sites("Freed, in use by another stream", device.pending.sites, most)


def _sites(title: str, sites: Sequence[SiteBytes], most: int) -> Iterator[Table]:
    if not sites:
        return
    rows = []
    for entry in sites[:most]:
        through = f", through {entry.site.through}" if entry.site.through else ""
        places = (entry.site.where + through, *(f"from {caller}" for caller in entry.callers))
        rows.append((bytes_text(entry.bytes), f"{entry.count}x", "\n  ".join(map(one_line, places))))
    if rest := sites[most:]:
        rows.append((bytes_text(sum(entry.bytes for entry in rest)), "", f"in {len(rest)} more places"))
    paths = (*(entry.site.filename for entry in sites[:most]), "")
    yield Table(title, ("bytes", "count", "first user frame"), "rrl", tuple(rows), paths)


def _overview(report: SnapshotsReport, most: int) -> Iterator[Table]:
    """The differences of two snapshots, or the figures of several."""
    if (comparison := report.comparison) is not None:
        rows = [
            (
                signed(site.new_end_bytes - site.base_end_bytes),
                signed(site.new_peak_bytes - site.base_peak_bytes),
                one_line(site.where),
            )
            for site in comparison.sites[: 2 * most]
        ]
        yield Table(
            f"{comparison.new.name} against {comparison.base.name}: end {signed(comparison.end_bytes)}, "
            f"peak {signed(comparison.peak_bytes)}, reserved {signed(comparison.reserved_bytes)}",
            ("end", "peak", "place"),
            "rrl",
            tuple(rows or [("", "", "no place differs")]),
        )
    elif len(report.snapshots) > 1:
        of_ranks = []
        for snapshot in report.snapshots:
            name = f"rank {snapshot.rank}" if snapshot.rank is not None else snapshot.name
            for device in snapshot.devices:
                sizes = (device.requested_bytes, device.peak_bytes, device.reserved_bytes, device.pending.bytes)
                of_ranks.append((one_line(f"{name}, device {device.device}"), *map(bytes_text, sizes)))
        yield Table("All snapshots", ("", "end", "peak", "reserved", "pending"), "lrrrr", tuple(of_ranks))


def snapshot_text(report: SnapshotsReport) -> str:
    """The report as plain text, starting with the verdict; ends with a line feed."""
    return text_page(_text(cleaned(report)), UNLIMITED)


def _text(report: SnapshotsReport) -> Iterator[Line]:
    yield one_line(verdict_line(report))
    several = len(report.snapshots) > 1
    if len(report.judgement.concerns) > 1:
        yield from ("", "Concerns")
        yield from (f"  - {one_line(concern_text(concern, several))}" for concern in report.judgement.concerns)
    for table in _overview(report, _ROWS):
        yield from ("", one_line(table.title), figures(table.rows, table.justify, table.heads, indent=2))
    for snapshot in report.snapshots:
        yield from ("", one_line(snapshot_title(snapshot)))
        if settings := settings_text(snapshot.settings):
            yield f"  settings: {one_line(settings)}"
        for device in snapshot.devices:
            if len(snapshot.devices) > 1:
                yield f"  device {device.device}"
            yield figures([(label, one_line(text)) for label, text in device_facts(device)], "ll", indent=2)
            yield from (f"  note: {note}" for note in device.notes)
            yield from (f"  {one_line(text)}" for text in failure_lines(device))
            for table in device_tables(device, _ROWS):
                yield from (f"  {one_line(table.title)}", figures(table.rows, table.justify, table.heads, indent=4))


def signed(count: int) -> str:
    """A difference in bytes with its sign."""
    return ("+" if count > 0 else "") + bytes_text(count)


def _device_chart(report: SnapshotReport, device: DeviceReport) -> str:
    """The chart of one device, with peak and failures marked; empty without a history."""
    moments = [charts.Moment(device.peak_event, f"peak {bytes_text(device.peak_bytes)}")]
    moments += [charts.Moment(failure.event, "out of memory", is_failure=True) for failure in device.out_of_memory]
    return charts.snapshot_chart(snapshot_title(report), device.timeline, moments)


def _together(snapshots: Sequence[SnapshotReport]) -> str:
    """One chart with a curve for each device of each snapshot; empty when none has a history."""
    return charts.snapshots_chart(
        [
            (snapshot_title(each) + (f", device {device.device}" if len(each.devices) > 1 else ""), device.timeline)
            for each in snapshots
            for device in each.devices
        ]
    )


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "title": snapshot_title,
    "facts": device_facts,
    "failures": failure_lines,
    "settings": settings_text,
    "chart": _device_chart,
    "tables": device_tables,
}
"""Filters of the page's template."""


def snapshot_html(report: SnapshotsReport) -> str:
    """The report as one HTML page without scripts or external resources; all text of the files is escaped."""
    report = cleaned(report)
    several = len(report.snapshots) > 1
    return html_page(
        "memory_snapshot.html",
        _FILTERS,
        verdict=verdict_line(report),
        word=report.judgement.verdict,
        concerns=[concern_text(concern, several) for concern in report.judgement.concerns],
        snapshots=report.snapshots,
        overview=_overview(report, _ROWS_ON_PAGE),
        together=_together(report.snapshots) if several else "",
        drawn=8,
    )


FORMAT = 1
"""Format number of this file; a newer one may have other fields."""


def snapshot_json(report: SnapshotsReport) -> str:
    """The report as JSON, bytes as whole numbers, unknown as null; the fields are those of the report's dataclasses."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "verdict": report.judgement.verdict,
        "line": verdict_line(report),
        "why": report.judgement.why,
    }
    data["concerns"] = [asdict(concern) for concern in report.judgement.concerns]
    data["snapshots"] = [asdict(snapshot) for snapshot in report.snapshots]
    comparison = report.comparison
    data["comparison"] = comparison and {
        "base": comparison.base.name,
        "new": comparison.new.name,
        "end_bytes": comparison.end_bytes,
        "peak_bytes": comparison.peak_bytes,
        "reserved_bytes": comparison.reserved_bytes,
        "sites": [asdict(site) for site in comparison.sites],
    }
    return json_text(data, indent=1)


_SITES_SHOWN = 12
"""Maximum number of allocation sites per device on the run's page (heuristic)."""


def snapshots_on_page(reports: Sequence[SnapshotReport]) -> list[tuple[str, str, list[tuple[object, ...]]]]:
    """(name, verdict, [(chart, facts, failures, tables) of each device]) for each."""
    return [
        (
            report.name,
            _verdict(report),
            [
                (
                    _device_chart(report, device),
                    device_facts(device),
                    failure_lines(device),
                    [*_sites("Alive at its end, by first user frame", device.end_sites, _SITES_SHOWN)],
                )
                for device in report.devices
            ],
        )
        for report in reports
    ]


def _verdict(report: SnapshotReport) -> str:
    return verdict_line(SnapshotsReport((report,), judge_snapshots([report])))
