"""Lag, use and drag of a step in byte-seconds, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.lived_steps import KIB, watched
from torch import ones

from leakscope.findings import judge
from leakscope.findings.peak import drag
from leakscope.recorder.lifetimes.peak import StepPeak, rows_of
from leakscope.recorder.lifetimes.storage_table import STILL_ALIVE, StorageRecord, StorageTable, TensorOperation
from leakscope.report import FORMATS
from leakscope.report.run_text import run_text
from leakscope.report.text.page import render
from leakscope.run.model import Run
from leakscope.run.rows import Phase, WatchedStep


def table_of(*records: StorageRecord) -> StorageTable:
    """Operations at 0, 1, 2, ... seconds; the second step begins at the fifth."""
    table = StorageTable()
    table.operations = [
        TensorOperation("aten::op", None, 0, Phase.FORWARD, "", "", float(number)) for number in range(10)
    ]
    table.records = list(records)
    return table


def test_lag_use_and_drag_are_counted_in_byte_seconds() -> None:
    used = StorageRecord(1, 100, born=0, ordinal=0, first=1, last=3, died=5, born_seconds=0.0, died_seconds=4.5)
    never = StorageRecord(2, 10, born=1, ordinal=0, last=1, died=3, born_seconds=1.0, died_seconds=3.0)
    native = StorageRecord(
        3, 1, born=0, ordinal=1, first=2, last=2, died=4, born_seconds=0.0, died_seconds=4.0, handed_out=True
    )
    kept = StorageRecord(4, 1000, born=2, ordinal=0, first=3, last=3, died=STILL_ALIVE, born_seconds=2.0)
    step = next(rows_of(table_of(used, never, native, kept), 5, StepPeak(-1, 0, 0), 3))
    assert isinstance(step, WatchedStep)
    assert step.storages == 3, "what still lives has no end to count to"
    assert step.lag_byte_seconds == 100 * 1 + 10 * 2 + 1 * 2
    assert step.use_byte_seconds == 100 * 2 + 10 * 0 + 1 * 2
    assert step.drag_byte_seconds == pytest.approx(100 * 1.5 + 10 * 2)


@pytest.mark.process
def test_the_report_tells_drag_and_the_idle_part_of_the_peak_in_every_form() -> None:
    def step() -> None:
        held = ones(64 * KIB)
        held.sum()
        ones(1024 * KIB)

    lived = watched(step)
    run = Run(("train.py",), (lived.rank,), 1, "cpu", "", "")
    told = run_text(drag(lived.rank))
    assert told[0].startswith("Rank 0: lifetime of the ") and told[0].endswith("% idle after the last use.")
    assert "Rank 0: the peak of step 3 was " in told[1]
    assert "256.00 KiB of it idle (not used again): 256.00 KiB your code can release." in told[1]
    found = judge(replace(run, folder=""))
    data, page = (FORMATS[form](run, found) for form in ("json", "html"))
    assert "\nIdle memory\n" not in FORMATS["text"](run, found)
    text = render(run, found, verbose=True)
    assert "\nIdle memory\n" in text and "256.00 KiB your code can release" in " ".join(text.split())
    assert "256.00 KiB your code can release" in data and '"gc_advice"' in data
    assert "256.00 KiB your code can release" in page
