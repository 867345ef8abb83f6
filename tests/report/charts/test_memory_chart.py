"""The memory chart shows measured figures, growth by holder, the effect of the cut and forecasts."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples
from support.examples import KIB, MIB

from leakscope.findings.capacity import full_at
from leakscope.findings.model import Cut, CutReference, Findings, LedgerInterval, Line, LineKind, Sighting
from leakscope.report.charts import layer_colours, memory_chart
from leakscope.report.html.chart_data import (
    CHOICES,
    LAYERS,
    POINTS,
    MemoryOnPage,
    RankMemory,
    memory_of,
    memory_on_page,
    thinned,
)
from leakscope.report.ranks import RankGroup, rank_reports
from leakscope.run.model import Rank
from leakscope.run.rows import DeviceBlocks, LayoutAtSnapshot
from leakscope.verdict import Verdict


def findings_of(*leaks: object, **ledgers: object) -> Findings:
    return Findings(Verdict.LEAKS, "", 0, findings=tuple(leaks), ledgers={0: ledgers.get("ledger", ())})  # type: ignore[arg-type]


def leak(frees: int, held: int, *sightings: tuple[int, int], rate: float = 1.0 * MIB) -> object:
    return replace(
        examples.growth_finding(),
        cut=Cut((CutReference("[i]"),), frees),
        retained_bytes=held,
        bytes_per_step=rate,
        host_bytes=0,
        sightings=tuple(Sighting(0, step, size) for step, size in sightings),
    )


def memory(rank: Rank, findings: Findings, absolute: bool = False) -> RankMemory:
    found = memory_of(examples.run(rank), rank, findings, absolute)
    assert found is not None
    return found


def test_snapshots_lie_on_the_line_of_counted_bytes() -> None:
    drawn = memory(examples.rank(0, growth=MIB), findings_of())
    assert drawn.line[0] == (1, 0.0) and drawn.line[-1] == (12, 11.0 * MIB)
    assert [dot.step for dot in drawn.snapshots] == [3, 5, 9, 11]
    assert all((dot.step, dot.bytes) in drawn.line for dot in drawn.snapshots)


def test_the_cut_lowers_the_line_by_the_sightings_of_each_snapshot() -> None:
    seen = [(3, 3 * MIB), (5, 5 * MIB), (9, 9 * MIB), (11, 11 * MIB)]
    drawn = memory(examples.rank(0, growth=MIB), findings_of(leak(11 * MIB, 11 * MIB, *seen)))
    assert [dot.freed for dot in drawn.snapshots] == [size for _, size in seen]
    assert {size for _, size in drawn.would_be} == {-1.0 * MIB}, "all of the growth is the leak's"
    assert drawn.saved == 11 * MIB


@pytest.mark.parametrize("reported", [False, True])
def test_there_is_no_such_line_without_a_known_effect_of_the_cut(reported: bool) -> None:
    (one,) = (leak(0, 9 * MIB, (3, MIB), (11, 9 * MIB)),)
    unknown = replace(one, cut=Cut((CutReference("[i]"),), MIB, is_exact=False)) if reported else replace(one, cut=None)  # type: ignore[type-var]
    drawn = memory(examples.rank(0), findings_of(unknown))
    assert drawn.would_be == () and drawn.cuts == 0


@given(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=9), st.integers(2, 5))
def test_layers_add_up_to_the_growth_breakdown(sizes: list[int], intervals: int) -> None:
    kinds = list(LineKind)
    lines = tuple(Line(kinds[i % len(kinds)], size, f"{i:08x}") for i, size in enumerate(sizes))
    steps = (3, 5, 9, 11, 12)[:intervals]
    ledger = tuple(LedgerInterval(a, b, sum(sizes), lines) for a, b in pairwise(steps))
    drawn = memory(examples.rank(0), findings_of(ledger=ledger))
    assert len(drawn.layers) <= LAYERS + 2 and len(set(layer_colours(drawn.layers))) == len(drawn.layers)
    for place, step in enumerate(steps):
        assert sum(layer.at(step) for layer in drawn.layers) == sum(sizes) * place


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=3), st.integers(1, 400), st.integers(0, 399))
def test_a_thinned_line_keeps_its_ends_its_highest_and_its_lowest(some: list[int], count: int, odd: int) -> None:
    sizes = [float(some[i % len(some)]) for i in range(count)]
    sizes[odd % count], sizes[odd // 2 % count] = 1e6, -1e6
    points = tuple(enumerate(sizes))
    kept = thinned(points)
    assert len(kept) <= POINTS and set(kept) <= set(points) and list(kept) == sorted(kept)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert (min(s for _, s in kept), max(s for _, s in kept)) == (min(sizes), max(sizes))


def on_page(*ranks: Rank) -> MemoryOnPage:
    run, findings = examples.run(*ranks), findings_of()
    groups = [RankGroup((story,)) for story in rank_reports(run, findings)]
    found = memory_on_page(run, findings, groups, absolute=False)
    assert found is not None
    return found


def test_a_point_lies_on_the_line_that_matplotlib_drew() -> None:
    svg = str(on_page(examples.rank(0, growth=MIB)).svg)
    line = re.search(r'class="line line-1">\s*<path d="([^"]+)"', svg)
    assert line is not None
    corners = [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", line[1])]
    (x0, y0), (x1, y1) = corners[0], corners[-1]
    for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg):
        assert abs((float(y) - y0) * (x1 - x0) - (float(x) - x0) * (y1 - y0)) < 0.3 * (x1 - x0)


def test_the_rank_that_grew_most_is_shown_first_and_the_page_can_show_the_others() -> None:
    page = on_page(*(examples.rank(n, growth=n * 64 * MIB) for n in range(12)))
    assert len(page.choices) == CHOICES and page.choices[page.chosen - 1].memory.number == 11
    svg = str(page.svg)
    assert svg.count('class="line ') == 12 and f"of-{CHOICES}" in svg and f"of-{CHOICES + 1}" not in svg


@pytest.mark.parametrize(
    ("verdict", "size", "is_drawn"),
    [
        (Verdict.CLEAN, -682 * KIB, False),
        (Verdict.CLEAN, 2 * 64 * KIB - 1, False),
        (Verdict.CLEAN, 2 * 64 * KIB, True),
        (Verdict.LEAKS, -682 * KIB, True),
    ],
)
def test_a_little_unattributed_growth_of_a_clean_run_is_not_drawn(verdict: Verdict, size: int, is_drawn: bool) -> None:
    ledger = (LedgerInterval(3, 5, size, (Line(LineKind.UNATTRIBUTED, size, ""),)),)
    run = examples.run(examples.rank(0), min_bytes=64 * KIB)
    found = memory_of(run, run.ranks[0], replace(findings_of(ledger=ledger), verdict=verdict), False)
    assert found is not None and [layer.at(5) for layer in found.layers] == [size]
    assert ('class="area of of-1"' in memory_chart((found,), 1, absolute=False)) == is_drawn


# when the device is full

GIB = 1024 * MIB


def on_device(growth: int, outside: tuple[int, int] = (GIB, GIB), devices: int = 1) -> Rank:
    counted = examples.steps(12, GIB, growth)
    steps = tuple(replace(s, counted_on="cuda", peak_bytes=(s.counted_bytes or 0) + GIB) for s in counted)
    rows = []
    for step, other in zip((3, 11), outside, strict=True):
        reserved, active = 2 * GIB, GIB + growth * step
        layout = [
            LayoutAtSnapshot(device, reserved, active, active, 0, 0, 0, 0, driver=(8 * GIB - reserved - other, 8 * GIB))
            for device in range(devices)
        ]
        rows.append(DeviceBlocks(step, "step", "cuda", (), (), (), (), (), (), tuple(layout)))  # type: ignore[arg-type]
    return replace(examples.rank(0), steps=steps, device_blocks=tuple(rows))


def test_a_device_is_full_where_the_peak_reaches_what_is_left_of_it() -> None:
    found = full_at(on_device(64 * MIB), 2)
    assert found is not None and found.capacity_bytes == 8 * GIB
    assert found.step == 80, (
        "7 GiB are this rank's; 1 GiB and 64 MiB a step are out at a step's end, 1 GiB more inside it"
    )


def test_nothing_is_forecast_without_the_capacity() -> None:
    reported = on_device(64 * MIB)
    unasked = tuple(replace(row, layout=(replace(row.layout[0], driver=None),)) for row in reported.device_blocks)
    assert full_at(replace(reported, device_blocks=unasked), 2) is None
    assert full_at(replace(reported, device_blocks=()), 2) is None
    assert full_at(on_device(64 * MIB, devices=2), 2) is None
    assert full_at(on_device(64 * MIB, outside=(GIB, 2 * GIB)), 2) is None, "others fill it as well"
