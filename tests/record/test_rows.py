"""Rows round-trip through files, and a damaged row is rejected without affecting the others."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import comm_operations

from leakscope.run.damage import Damage
from leakscope.run.model import ROWS, Rank
from leakscope.run.operations import Operations, column, read_operations
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
    Real,
    Row,
    Signed,
    TrainingState,
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
    "training": (TrainingState,),
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
        Real: st.floats(allow_nan=False),  # which differs from itself
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


def test_columns_return_operations_in_order_of_issue() -> None:
    some = comm_operations()
    some = (replace(some[0], tag=(1 << 64) - 1, peer=None, waited=None, failed="it broke", shape=()), *some[1:])
    kept = Operations(reversed(some))
    ordered = sorted(some, key=lambda operation: operation.issued)
    assert len(kept) == len(some) and kept == ordered and list(kept) == ordered
    assert kept[0] == ordered[0] and kept[-2:] == tuple(ordered[-2:]) and kept != ordered[1:]
    for name in ("id", "peer", "tag", "waited", "dropped", "failed", "shape"):
        assert list(column(kept, name)) == list(column(ordered, name)) == [getattr(o, name) for o in ordered]


def _read(folder: Path, *lines: object) -> tuple[Operations, tuple[str, ...]]:
    (folder / "wire.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    damage = Damage()
    return read_operations(folder, damage), damage.notes()


def test_later_lines_complete_or_damage_an_operation(tmp_path: Path) -> None:
    first, second, third = (to_json(operation) for operation in comm_operations()[:3])
    read, notes = _read(tmp_path, first, second, {"id": second["id"], "waited": 77.5, "dropped": True}, third)
    assert [o.id for o in read] == [first["id"], second["id"], third["id"]] and not notes
    assert read[1].waited == 77.5 and read[1].dropped and not read[0].dropped
    read, notes = _read(tmp_path, first, {"id": first["id"], "bytes": -1}, {"id": 99, "waited": 1.0}, second)
    assert [o.id for o in read] == [second["id"]]
    assert len(notes) == 1 and "bytes" in notes[0]
    read, notes = _read(tmp_path, {"id": 1, "bytes": 3}, first, {"id": 1, "bytes": "x"}, {"id": 1, "bytes": 5})
    assert [o.bytes for o in read] == [5] and not notes, "the last line counts"
