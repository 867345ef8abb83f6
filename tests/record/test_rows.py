"""Rows round-trip through files, and a damaged row is rejected without affecting the others."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakscope.run.model import ROWS, Rank
from leakscope.run.reader import read_run
from leakscope.run.rows import (
    LARGEST,
    LIFETIME_ROWS,
    SHORTAGE_ROWS,
    WORKERS_ROWS,
    AllocationFailure,
    CommOperation,
    ContextsAtStep,
    DeviceBlocks,
    DeviceFailure,
    DeviceStep,
    FinalOperation,
    GcFreeze,
    MemoryThere,
    Row,
    Signed,
    from_json,
    from_line,
    to_json,
    to_line,
)
from leakscope.run.writer import write_run

OF_FIELD: dict[str, tuple[type[Row], ...]] = {
    "operations": (CommOperation,),
    "contexts": (ContextsAtStep,),
    "lifetimes": LIFETIME_ROWS,
    "device_steps": (DeviceStep,),
    "device_blocks": (DeviceBlocks,),
    "device_failures": (DeviceFailure,),
    "allocation_failures": (AllocationFailure,),
    "memory_shortages": SHORTAGE_ROWS,
    "gc_freezes": (GcFreeze,),
    "host_memory": (MemoryThere,),
    "loader_workers": WORKERS_ROWS,
}
"""The fields of a rank that hold rows, with the kinds of their file."""
KINDS = [(name, kind) for name, kinds in OF_FIELD.items() for kind in kinds]
EITHER = (UnionType, Union)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """All that a field of this type may hold."""
    parts = get_args(kind)
    if get_origin(kind) in EITHER:
        return st.one_of(*(st.none() if part is NoneType else values(part) for part in parts))
    if get_origin(kind) is tuple and parts[-1] is Ellipsis:
        return st.lists(values(parts[0]), max_size=3).map(tuple)
    if get_origin(kind) is tuple:
        return st.tuples(*map(values, parts))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return st.sampled_from(list(kind))
    plain = {
        int: st.integers(0, LARGEST),
        Signed: st.integers(-(1 << 63), (1 << 64) - 1),
        str: st.text(max_size=8),
        bool: st.booleans(),
        float: st.floats(-LARGEST, LARGEST),
    }
    return plain[kind] if kind in plain else rows_of(kind)


def rows_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: values(hints[name]) for name in kind.__dataclass_fields__})


def an_example(kind: type[Any]) -> Any:
    """One row, the same each time."""
    simple = {int: 1, str: "x", bool: True, float: 0.5}

    def value(of: Any) -> Any:
        if get_origin(of) in EITHER:
            return None
        if get_origin(of) is tuple:
            return () if get_args(of)[-1] is Ellipsis else tuple(map(value, get_args(of)))
        if issubclass(of, StrEnum):
            return next(iter(of))
        return simple[of] if of in simple else an_example(of)

    hints = get_type_hints(kind)
    return kind(**{name: value(hints[name]) for name in kind.__dataclass_fields__})


def recorded(folder: Path, stem: str, *lines: Any) -> Rank:
    write_run(folder, {"ranks": 1, "command": ["train.py"]})
    (folder / "rank_0000").mkdir()
    (folder / "rank_0000" / f"{stem}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_run(folder).ranks[0]


@pytest.mark.parametrize("kind", [kind for _, kind in KINDS] + [FinalOperation])
def test_a_row_is_read_as_it_was_written(kind: type[Any]) -> None:
    @settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
    @given(row=rows_of(kind))
    def round_trip(row: Any) -> None:
        if isinstance(row, Row):
            kinds = OF_FIELD[next(name for name, of in KINDS if of is kind)]
            assert from_line(kinds, json.loads(json.dumps(to_line(row)))) == row
        else:
            assert from_json(kind, json.loads(json.dumps(to_json(row)))) == row

    round_trip()


def test_all_fields_of_a_rank_that_hold_rows_are_known() -> None:
    assert {*OF_FIELD, "final_operation"} == ROWS


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_damaged_row_is_skipped_and_noted(tmp_path: Path, name: str, kind: type[Row]) -> None:
    whole = to_line(an_example(kind))
    field = next(iter(to_json(an_example(kind))))
    without = {k: v for k, v in whole.items() if k != field}
    rank = recorded(tmp_path, kind.FILE, [], "row", 5, {**whole, field: {}}, without, whole)
    assert getattr(rank, name) == (an_example(kind),)
    assert rank.damaged == (f"{kind.FILE}.jsonl",) and rank.notes


def test_rows_of_a_newer_version_are_skipped(tmp_path: Path) -> None:
    assert recorded(tmp_path, "lifetimes", {"kind": "forecast", "step": 3}).lifetimes == ()
