"""What holds of every chart, and the small one of a card."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from support import examples
from support.examples import KIB, MIB

from leakscope.findings.model import Findings, LedgerInterval, Line, LineKind
from leakscope.memory_snapshot.analysis import MemoryTimeline
from leakscope.report.charts import (
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
