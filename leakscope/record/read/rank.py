"""What did one rank leave in its folder? What is damaged there is left out and said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from leakscope.errors import Unreadable
from leakscope.files import read_regular
from leakscope.originals import Path
from leakscope.record.ends import ended_file, ended_from_json, no_word
from leakscope.record.last_operation import NAME as LAST_OPERATION
from leakscope.record.last_operation import unpack
from leakscope.record.live.answers import goes_on, running
from leakscope.record.model import GcDiff, Rank, Step
from leakscope.record.read.damage import Damage, is_there
from leakscope.record.read.looks import blocks_that_fit, lifetimes_that_fit, read_looks
from leakscope.record.read.operations import read_operations
from leakscope.record.rows.clock import RecordingEnded, StartedProcess, StepsBy
from leakscope.record.rows.comm import ContextsAtStep, FinalOperation
from leakscope.record.rows.counts import CountsAtStep
from leakscope.record.rows.device import DeviceBlocks, DeviceFailure, DeviceStep
from leakscope.record.rows.host import SHORTAGE_ROWS, AllocationFailure, GcFreeze, MemoryThere
from leakscope.record.rows.lifetimes import LIFETIME_ROWS
from leakscope.record.rows.row import Row, from_json, from_line
from leakscope.record.rows.workers import WORKERS_ROWS

if TYPE_CHECKING:
    from leakscope.allocator.figures import SnapshotReport

R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class _Noted:
    """One line of `notes.jsonl`."""

    note: str


@dataclass(frozen=True)
class _Proved:
    """`proved.json`, in the form of a field."""

    proved: dict[str, int | str]


def read_rank(path: Path, number: int, snapshots: bool, may_run: bool = False) -> Rank:
    """The rank with this folder, its newest allocator snapshots analysed where they are asked for; it has not ended
    where it `may_run` and does.
    """
    runs = may_run and not is_there(ended_file(path)) and goes_on(path)
    damage = Damage(grows=runs)
    steps = _steps(path, damage)
    noted = tuple(damage.each(path / "notes.jsonl", lambda line: from_json(_Noted, line).note))
    looks = read_looks(path, damage)
    rows = read_rows(path, damage)
    rows["lifetimes"] = lifetimes_that_fit(rows["lifetimes"], looks, damage)
    rows["device_blocks"] = blocks_that_fit(rows["device_blocks"], looks, damage)
    final, final_known = _final_operation(path, damage)
    analysed, problems = _snapshots(path, number) if snapshots else ((), ())
    rank = Rank(
        number=number,
        steps=steps,
        looks=looks,
        ended=damage.read(ended_file(path), ended_from_json, None)
        or (running(path, len(steps)) if runs else no_word(path, len(steps))),
        gc_diff=damage.read(path / "gc_diff.json", lambda data: from_json(GcDiff, data), None),
        proved=damage.read(path / "proved.json", lambda data: from_json(_Proved, {"proved": data}).proved, {}),
        final_operation=final,
        final_operation_known=final_known,
        snapshots=analysed,
        **rows,
    )
    return replace(rank, notes=(*noted, *damage.notes(), *problems), damaged=damage.files())


def read_rows(path: Path, damage: Damage) -> dict[str, Any]:
    """The fields of a rank that hold rows of its files."""

    def rows(*kinds: type[R]) -> tuple[R, ...]:
        file = path / f"{kinds[0].FILE}.jsonl"
        read: Iterator[R | None] = damage.each(file, lambda line: from_line(kinds, line))
        return tuple(row for row in read if row is not None)

    return {
        "operations": read_operations(path, damage),
        "contexts": rows(ContextsAtStep),
        "lifetimes": rows(*LIFETIME_ROWS),
        "device_steps": rows(DeviceStep),
        "device_blocks": rows(DeviceBlocks),
        "device_failures": rows(DeviceFailure),
        "allocation_failures": rows(AllocationFailure),
        "memory_shortages": rows(*SHORTAGE_ROWS),
        "gc_freezes": rows(GcFreeze),
        "host_memory": rows(MemoryThere),
        "loader_workers": rows(*WORKERS_ROWS),
        "clocks": rows(StepsBy),
        "processes": rows(StartedProcess),
        "recording_ended": rows(RecordingEnded),
        "counts": rows(CountsAtStep),
    }


def _steps(path: Path, damage: Damage) -> tuple[Step, ...]:
    """Those whose numbers rise: a number comes once."""
    last = 0

    def read(line: Any) -> Step:
        nonlocal last
        step = from_json(Step, line)
        if step.number <= last:
            raise ValueError(f"step {step.number} does not follow step {last}")
        last = step.number
        return step

    return tuple(damage.each(path / "steps.jsonl", read))


def _final_operation(path: Path, damage: Damage) -> tuple[FinalOperation | None, bool]:
    """The rank's last operation, and whether its file could be read: where it tells of none, there was none."""
    file = path / LAST_OPERATION
    if not is_there(file):
        return None, False
    try:
        return unpack(read_regular(file)), True
    except (ValueError, Unreadable) as error:
        damage.note(f"which communication operation was the rank's last cannot be told: {error}")
        return None, False


def _snapshots(path: Path, number: int) -> tuple[tuple[SnapshotReport, ...], tuple[str, ...]]:
    from leakscope.allocator.of_rank import snapshots_in

    return snapshots_in(path, number)
