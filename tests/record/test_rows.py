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

from leakscope.comm.operations import Channel, LiveOperation
from leakscope.run.model import ROWS, Ended, HeapSnapshot, Rank
from leakscope.run.operations import FAILED, ISSUED, WAITED, WAITING
from leakscope.run.rank_end import ended_from_json, ended_to_json
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
    EndKind,
    FinalOperation,
    GainingContainer,
    GcFreeze,
    MemoryThere,
    Occasion,
    OperationState,
    Row,
    Signed,
    from_json,
    from_line,
    to_json,
    to_line,
)
from leakscope.run.writer import RankFolder, write_run
from tests.support.heap_text import heap_from

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
    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(row=rows_of(kind))
    def there_and_back(row: Any) -> None:
        if isinstance(row, Row):
            assert (
                from_line(
                    OF_FIELD[next(name for name, of in KINDS if of is kind)], json.loads(json.dumps(to_line(row)))
                )
                == row
            )
        else:
            assert from_json(kind, json.loads(json.dumps(to_json(row)))) == row

    there_and_back()


def test_all_fields_of_a_rank_that_hold_rows_are_known() -> None:
    assert {*OF_FIELD, "final_operation"} == ROWS


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_what_a_folder_is_given_is_what_is_read(tmp_path: Path, name: str, kind: type[Row]) -> None:
    row = an_example(kind)
    write_run(tmp_path, {"ranks": 1, "command": ["train.py"]})
    folder = RankFolder(tmp_path, 0)
    folder.append(row)
    folder.close()
    assert getattr(read_run(tmp_path).ranks[0], name) == (row,)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_damaged_row_costs_itself_and_is_told(tmp_path: Path, name: str, kind: type[Row]) -> None:
    whole = to_line(an_example(kind))
    field = next(iter(to_json(an_example(kind))))
    for number, damaged in enumerate(
        ([], "row", 5, {**whole, field: {}}, {k: v for k, v in whole.items() if k != field})
    ):
        rank = recorded(tmp_path / str(number), kind.FILE, damaged, whole)
        assert getattr(rank, name) == (an_example(kind),)
        assert [note.partition(" is damaged and was skipped: ")[0] for note in rank.notes] == [
            f"line 1 of {kind.FILE}.jsonl"
        ]
        assert rank.damaged == (f"{kind.FILE}.jsonl",)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_what_only_a_newer_version_says_is_passed_over(tmp_path: Path, name: str, kind: type[Row]) -> None:
    row = an_example(kind)
    assert getattr(recorded(tmp_path, kind.FILE, {**to_line(row), "new": [1]}), name) == (row,)


def test_rows_of_a_kind_that_only_a_newer_version_knows_are_passed_over(tmp_path: Path) -> None:
    assert recorded(tmp_path, "lifetimes", {"kind": "forecast", "step": 3}).lifetimes == ()


@pytest.mark.parametrize("more", [{}, {"reused": 3.0, "dropped": True, "failed": "gone", "source": 2, "waited": 2.0}])
def test_nothing_of_what_is_written_of_an_operation_is_lost(more: dict[str, Any]) -> None:
    operation = LiveOperation(
        4, Channel("send", None if "source" in more else 1, 0, "default"), 5, ("train.py:1 go", "train.py:9 <module>")
    )
    operation.issued, operation.microbatch = 1.5, 0
    for name, value in more.items():
        setattr(operation, name, value)
    line = json.loads(json.dumps(operation.row(1.0)))
    assert to_json(from_json(CommOperation, line)) == {**line, "shape": list(line["shape"])}


def test_what_no_memory_could_hold_may_have_been_wanted(tmp_path: Path) -> None:
    row = AllocationFailure(
        step=3, error="you tried to allocate 18446744073709551615 bytes", wanted_bytes=(1 << 64) - 1
    )
    assert recorded(tmp_path, AllocationFailure.FILE, to_line(row)).allocation_failures == (row,)


def test_a_rank_that_hung_is_written_as_before(tmp_path: Path) -> None:
    hung = Ended(EndKind.HUNG, 124, 7, error="nothing happened for 8 s")
    assert ended_to_json(hung)["how"] == "raised" and ended_to_json(hung)["error"] == "hung: nothing happened for 8 s"
    assert ended_from_json(json.loads(json.dumps(ended_to_json(hung)))) == hung
    write_run(tmp_path, {"ranks": 1, "command": ["train.py"]})
    RankFolder(tmp_path, 0).ended(hung)
    assert read_run(tmp_path).ranks[0].ended == hung


def test_the_packed_words_are_the_states() -> None:
    packed = {word.rstrip(b"! ").decode() for word in (ISSUED, WAITING, WAITED, FAILED)}
    assert packed == {str(state) for state in OperationState}


def test_what_a_look_says_of_objects_is_read_as_it_was_written(tmp_path: Path) -> None:
    heap = heap_from("module train -> .log -> list log 3")
    look = HeapSnapshot(
        step=7,
        occasion=Occasion.STEP,
        heap=heap,
        counted_bytes=100,
        explained_bytes=0,
        containers=(GainingContainer(1, items=3, gained=2, bytes=90, counted_bytes=60, item="str"),),
    )
    write_run(tmp_path, {"command": ["train.py"], "ranks": 1})
    RankFolder(tmp_path, 0).look(look)

    (read,) = read_run(tmp_path).ranks[0].looks

    assert read.containers == look.containers


def test_a_look_of_an_earlier_version_says_nothing_of_objects(tmp_path: Path) -> None:
    write_run(tmp_path, {"command": ["train.py"], "ranks": 1})
    folder = RankFolder(tmp_path, 0)
    folder.look(HeapSnapshot(7, Occasion.STEP, heap_from(""), None, 0))
    (path,) = folder.path.glob("heap_*.json")
    earlier = {name: value for name, value in json.loads(path.read_text()).items() if name != "containers"}
    path.write_text(json.dumps(earlier))

    (read,) = read_run(tmp_path).ranks[0].looks

    assert read.containers == ()
