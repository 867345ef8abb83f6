"""What was recorded? The one place that reads a run's folder and takes nothing in it on trust."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from leakscope.errors import Unreadable
from leakscope.graph.as_json import from_json as heap_from_json
from leakscope.record.ends import lost, ranks_in, read_end
from leakscope.record.header import read_header
from leakscope.record.kinds import Occasion
from leakscope.record.last_operation import NAME as LAST_OPERATION
from leakscope.record.last_operation import unpack
from leakscope.record.model import GcDiff, Look, Rank, Run, Step
from leakscope.record.rows.clock import RecordingEnded, StartedProcess, StepsBy
from leakscope.record.rows.comm import CommOperation, ContextsAtStep, FinalOperation
from leakscope.record.rows.device import DeviceBlocks, DeviceFailure, DeviceStep
from leakscope.record.rows.host import SHORTAGE_ROWS, AllocationFailure, GcFreeze, MemoryThere
from leakscope.record.rows.lifetimes import LIFETIME_ROWS
from leakscope.record.rows.objects import GainingContainer
from leakscope.record.rows.row import Row, from_json, from_line

if TYPE_CHECKING:
    from leakscope.allocator.figures import SnapshotReport

MAX_ANALYSED = 16
"""Ranks whose allocator snapshots are analysed for a report; `leakscope snapshot` reads those of all."""

Lines = Mapping[str, Sequence[Any]]
"""Name of a file to what its lines say."""
T = TypeVar("T")
R = TypeVar("R", bound=Row)


def read_run(folder: Path, snapshots: bool = False) -> Run:
    """The run that is recorded in a folder.

    >>> from pathlib import Path
    >>> import leakscope
    >>> run = leakscope.read_run(Path("sample_runs/p2p_pipeline/none"))
    >>> len(run.ranks), len(run.ranks[0].steps), str(run.ranks[0].ended.how)
    (2, 12, 'stopped')

    Args:
        folder: the one that was given with `--output`; it holds `run.json`.
        snapshots: analyse the allocator snapshots in it as well, which takes about a second each.

    Raises:
        Unreadable: it is no run, is damaged beyond a cut-off last line, or is of a newer format.

    """
    data = read_header(folder)
    try:
        expected = int(data["ranks"])
        numbers = ranks_in(folder)
        missing = [n for n in range(expected) if n not in numbers]
        ranks = tuple(
            _read_rank(folder, n, snapshots and place < MAX_ANALYSED) for place, n in enumerate(numbers)
        ) + tuple(_lost(n) for n in missing)
        return Run(
            command=tuple(data["command"]),
            ranks=tuple(sorted(ranks, key=lambda rank: rank.number)),
            expected_ranks=expected,
            device=str(data.get("device", "cpu")),
            torch=str(data.get("torch", "")),
            leakscope=str(data.get("leakscope", "")),
            heap_reader=str(data.get("heap_reader", "")),
            folder=str(folder),
            warmup=int(data.get("warmup", 2)),
            min_bytes=int(data.get("min_bytes", 64 * 1024)),
            options=dict(data.get("options", {})),
            sources={name: tuple(lines) for name, lines in data.get("sources", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unreadable(f"{folder} is a damaged leakscope run: {error}") from None


def _lost(number: int) -> Rank:
    return Rank(number, (), (), lost(), notes=("nothing was recorded for this rank",))


def _read_rank(folder: Path, number: int, snapshots: bool) -> Rank:
    path = folder / f"rank_{number:04d}"
    notes: list[str] = []
    lines = {p.stem: _read_lines(p, notes) for p in sorted(path.glob("*.jsonl"))}
    final, final_known = _final_operation(path, notes)
    steps = tuple(_each("steps", lines, lambda line: from_json(Step, line)))
    notes += _each("notes", lines, lambda line: str(line["note"]))
    looks = (_read_look(p) for p in path.glob("heap_*.json"))
    diff = _read_json_of(path / "gc_diff.json")
    analysed, problems = _snapshots(path, number) if snapshots else ((), ())
    return Rank(
        number=number,
        steps=steps,
        looks=tuple(sorted(looks, key=lambda look: (look.step, look.occasion != Occasion.STEP))),
        ended=read_end(path, len(steps)),
        gc_diff=None if diff is None else from_json(GcDiff, diff),
        notes=(*notes, *problems),
        proved=_read_json_of(path / "proved.json") or {},
        operations=_operations(lines),
        final_operation=final,
        final_operation_known=final_known,
        contexts=_rows(lines, ContextsAtStep),
        lifetimes=_rows(lines, *LIFETIME_ROWS),
        device_steps=_rows(lines, DeviceStep),
        device_blocks=_rows(lines, DeviceBlocks),
        device_failures=_rows(lines, DeviceFailure),
        allocation_failures=_rows(lines, AllocationFailure),
        memory_shortages=_rows(lines, *SHORTAGE_ROWS),
        gc_freezes=_rows(lines, GcFreeze),
        host_memory=_rows(lines, MemoryThere),
        clocks=_rows(lines, StepsBy),
        processes=_rows(lines, StartedProcess),
        recording_ended=_rows(lines, RecordingEnded),
        snapshots=analysed,
    )


def _read_lines(path: Path, notes: list[str]) -> list[Any]:
    rows = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            if line != lines[-1]:
                raise ValueError(f"{path.name} has a damaged line") from None
            notes.append(f"the last line of {path.name} was cut off when the rank died and is left out")
    return rows


def _each(stem: str, lines: Lines, read: Callable[[Any], T]) -> Iterator[T]:
    """What `read` makes of each line of a file; raises ValueError that says which line is damaged."""
    for number, line in enumerate(lines.get(stem, ()), 1):
        try:
            yield read(line)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"line {number} of {stem}.jsonl is damaged: {error}") from None


def _rows(lines: Lines, *kinds: type[R]) -> tuple[R, ...]:
    """The rows of one file, of one kind or told apart by their tags."""
    rows: Iterator[R | None] = _each(kinds[0].FILE, lines, lambda line: from_line(kinds, line))
    return tuple(row for row in rows if row is not None)


@dataclass(frozen=True)
class _Numbered:
    """What every line of an operation has, the first and those that complete it."""

    id: int


def _operations(lines: Lines) -> tuple[CommOperation, ...]:
    """In the order of issue; later lines of the file complete earlier ones by their `id`."""
    whole: dict[int, dict[str, Any]] = {}
    for number, line in _each(CommOperation.FILE, lines, lambda line: (from_json(_Numbered, line).id, line)):
        whole.setdefault(number, {}).update(line)
    issued = [from_json(CommOperation, line) for line in whole.values() if "issued" in line]
    return tuple(sorted(issued, key=lambda operation: operation.issued))


def _final_operation(path: Path, notes: list[str]) -> tuple[FinalOperation | None, bool]:
    """The rank's last operation, and whether its file could be read: where it tells of none, there was none."""
    file = path / LAST_OPERATION
    if not file.exists():
        return None, False
    try:
        return unpack(file.read_bytes()), True
    except ValueError as error:
        notes.append(f"which communication operation was the rank's last cannot be told: {error}")
        return None, False


def _read_look(path: Path) -> Look:
    data = _read_json(path, f"{path} cannot be read")
    gaining = {"containers": tuple(from_json(GainingContainer, row) for row in data.get("containers", ()))}
    data = {name: value for name, value in data.items() if name in Look.__dataclass_fields__}
    return Look(**{**data, **gaining, "heap": heap_from_json(data["heap"]), "unjudged": tuple(data["unjudged"])})


def _read_json_of(path: Path) -> Any:
    """What a file of a rank says; None where there is no such file."""
    return _read_json(path, f"{path} cannot be read") if path.exists() else None


def _read_json(path: Path, problem: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise Unreadable(problem) from None


def _snapshots(path: Path, number: int) -> tuple[tuple[SnapshotReport, ...], tuple[str, ...]]:
    from leakscope.allocator.of_rank import snapshots_in

    return snapshots_in(path, number)
