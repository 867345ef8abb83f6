"""Lag, use and drag of a step in byte-seconds, counted by hand."""

from __future__ import annotations

import pytest

from leakscope.recorder.lifetimes.peak import StepPeak, rows_of
from leakscope.recorder.lifetimes.storage_table import STILL_ALIVE, StorageRecord, StorageTable, TensorOperation
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
