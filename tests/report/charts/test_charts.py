"""What holds of every chart, and the small one of a card."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from support import examples
from support.examples import KIB, MIB

from leakscope.findings.model import Findings, LedgerInterval, Line, LineKind
from leakscope.memory_snapshot.analysis import MemoryTimeline
from leakscope.report.charts import (
    SPARK_HEIGHT,
    SPARK_MARGIN,
    SPARK_WIDTH,
    Moment,
    memory_chart,
    snapshot_chart,
    snapshots_chart,
    sparkline,
)
from leakscope.report.html.chart_data import memory_of, timeline
from leakscope.verdict import Verdict

HOSTILE = "<img src=x> $x_1$ & --> #020000"
HISTORY = MemoryTimeline(
    at=(0.0, 1.0, 2.0),
    event=(0, 10, 40),
    alive=(0, 3 * MIB, 2 * MIB),
    reserved=(0, 4 * MIB, 4 * MIB),
    clock=True,
    categories={"activation": (0, MIB, MIB), "unknown": (0, 2 * MIB, MIB)},
)


def memory() -> str:
    ledger = (LedgerInterval(3, 11, MIB, (Line(LineKind.LEAKS, MIB, "x"), Line(LineKind.UNATTRIBUTED, MIB, ""))),)
    run = examples.run(examples.rank(0, growth=MIB))
    found = memory_of(run, run.ranks[0], Findings(Verdict.LEAKS, "", 0, ledgers={0: ledger}), False)
    assert found is not None
    return memory_chart((found,), 1, absolute=False)


def operations() -> str:
    drawn = timeline(examples.comm_operations(step_count=2))
    assert drawn is not None
    return drawn.svg


CHARTS: dict[str, Callable[[], str]] = {
    "memory": memory,
    "operations": operations,
    "sparkline": lambda: sparkline(((2, KIB), (4, 3 * KIB))),
    "snapshot": lambda: snapshot_chart(HOSTILE, HISTORY, [Moment(10, "peak"), Moment(12, "out of memory", True)]),
    "snapshots": lambda: snapshots_chart([(HOSTILE, HISTORY), ("rank 1", HISTORY)]),
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_the_same_each_time_and_refers_to_nothing_outside_of_itself(name: str) -> None:
    drawn = CHARTS[name]()
    ElementTree.fromstring(drawn)
    assert not re.search(r' id="|href=|url\(|<style|<metadata|<!--|<script', drawn)
    before = dict(mpl.rcParams)
    with mpl.rc_context({"svg.fonttype": "path", "lines.linewidth": 9.0, "text.usetex": True}):
        assert CHARTS[name]() == drawn, "whatever the user's own settings are"
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("name", ["snapshot", "snapshots"])
def test_what_a_run_says_is_text_and_no_markup(name: str) -> None:
    texts = [text.text or "" for text in ElementTree.fromstring(CHARTS[name]()).iter("text")]
    assert sum(HOSTILE in text for text in texts) == 1


def test_without_a_history_there_is_no_chart() -> None:
    empty = MemoryTimeline(True, (), (), (), ())
    assert snapshot_chart("rank 0", empty, []) == snapshots_chart([("rank 0", empty)]) == ""


def dots(svg: str) -> list[tuple[float, float]]:
    """Each dot is a line of no length."""
    path = next(iter(re.findall(r'd="([^"]+)" style="[^"]*stroke-linecap: round', svg)), "")
    return [(float(x), float(y)) for x, y in re.findall(r"M ([\d.]+) ([\d.]+)", path)]


def test_more_bytes_stand_higher_and_later_looks_further_right() -> None:
    drawn = dots(sparkline(((2, KIB), (4, 3 * KIB), (12, 4 * KIB))))
    assert drawn[0][0] == SPARK_MARGIN and drawn[-1] == (SPARK_WIDTH - SPARK_MARGIN, SPARK_MARGIN)
    assert all(x < x1 and y > y1 for (x, y), (x1, y1) in pairwise(drawn)) and drawn[1][0] < SPARK_WIDTH / 2
    assert drawn[0][1] < SPARK_HEIGHT - SPARK_MARGIN, "what is held at the first look is not shown as nothing"


def test_memory_that_went_again_stands_lower() -> None:
    (_, high), (_, low), _ = dots(sparkline(((1, 8), (2, 0), (3, 8))))
    assert high == SPARK_MARGIN and low == SPARK_HEIGHT - SPARK_MARGIN


def test_the_same_is_said_in_words() -> None:
    assert ': 1.00 KiB at step 2, 3.00 KiB at step 4"' in CHARTS["sparkline"]()


def test_one_look_makes_no_line() -> None:
    assert sparkline(()) == sparkline(((3, KIB),)) == ""
    assert dots(sparkline(((3, 0), (4, 0)))), "nor does it fail where nothing is held"
