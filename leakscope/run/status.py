"""The progress of each rank of a run, from the ends of its files."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leakscope.errors import Unreadable
from leakscope.files import parse_json, read_json
from leakscope.originals import Path, os, time
from leakscope.run.live import Activity, LiveRank, RankState, live_ranks, read_states, tail_of
from leakscope.run.model import Ended, Run, Step, is_complete, read_header, recorded_options
from leakscope.run.rank_end import ended_file, rank_name
from leakscope.run.rows import EndKind, from_json
from leakscope.run.writer import INTERIM

_STEPS_READ = 50
"""Last steps of a rank that are read. Heuristic: a trend of this many tells a leak from a single larger step."""
_STUCK_S = 30.0
"""Minimum seconds of a step before it is reported as possibly stuck. Heuristic."""
_STUCK_TIMES = 10
"""Factor over the duration of the previous steps for the same. Heuristic."""
_SNAPSHOT_FILE = re.compile(r"heap_([a-z]+)_([0-9]+)\.json")


@dataclass(frozen=True)
class RankStatus:
    """The state of one rank."""

    rank: int
    process: int | None
    """Process id of the recorder; None if it does not record yet."""
    machine: str
    state: str
    """`waiting` before recording, `running`, `looking`, `stuck`, or as in `EndKind`; `lost` also if its process is gone
    without a record.
    """
    step: int
    """Number of steps that have ended."""
    step_seconds: float | None
    """Median duration of the last steps; None without steps."""
    since_step: float | None
    """Seconds since the last step or the start of recording; None after its end."""
    counted_bytes: int | None
    """At the end of the last step."""
    counted_on: str
    bytes_per_step: float | None
    """Growth per step over the last steps after warm-up; None if there are too few."""
    over_steps: int
    """Number of those steps."""
    looks: int
    last_look_step: int | None
    """None if there was none."""
    since_look: float | None
    """Seconds since the last heap snapshot."""
    looking_seconds: float | None
    """Seconds spent on snapshots, including one more; None if the rank does not report it any more."""


@dataclass(frozen=True)
class RunStatus:
    """The state of all ranks."""

    folder: str
    command: tuple[str, ...]
    started: str
    steps: int | None
    """Step at which the run ends, if it was given."""
    goes_on: bool
    ranks: tuple[RankStatus, ...]
    interim: str
    """The newest report made while it was running, "" if there is none."""


def status_of(folder: Path) -> RunStatus:
    """The current state of a run's ranks. Raises Unreadable if it is not a run."""
    header = read_header(folder)
    live = live_ranks(folder)
    states = read_states(folder, live[-1].number + 1)
    options, command = recorded_options(header), header.get("command")
    warmup, steps = options.get("warmup"), options.get("steps")
    ranks = tuple(
        _rank(
            folder / rank_name(rank.number),
            rank,
            warmup if type(warmup) is int else Run.warmup,
            states[rank.number] if rank.number < len(states) else None,
        )
        for rank in live
    )
    return RunStatus(
        folder=str(folder),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        started=str(header.get("started", "")),
        steps=steps if type(steps) is int else None,
        goes_on=not is_complete(header) and not all(rank.ended for rank in live),
        ranks=ranks,
        interim=_newest_interim(folder),
    )


def _rank(path: Path, live: LiveRank, warmup: int, state: RankState | None) -> RankStatus:
    rows = _last_steps(path)
    last = rows[-1] if rows else None
    snapshots = _snapshot_files(path)
    now = time.time()
    since = None if live.ended else _age(path / ("steps.jsonl" if rows else "process.json"), now)
    took = statistics.median(step.seconds for step in rows) if rows else None
    judged = [row for row in rows if row.number > warmup and last is not None and row.counted_on == last.counted_on]
    counted = [(row.number, row.counted_bytes) for row in judged if row.counted_bytes is not None]
    latest = max(snapshots, default=None)
    return RankStatus(
        rank=live.number,
        process=None if live.process is None else live.process.number,
        machine="" if live.process is None else live.process.machine,
        state=_state(path, live, state, since, took),
        step=0 if last is None else last.number,
        step_seconds=took,
        since_step=since,
        counted_bytes=None if last is None else last.counted_bytes,
        counted_on="" if last is None else last.counted_on,
        bytes_per_step=slope(counted),
        over_steps=len(counted),
        looks=len(snapshots),
        last_look_step=None if latest is None else latest[0],
        since_look=None if latest is None else _age(path / latest[1], now),
        looking_seconds=state.spent if state is not None and not live.ended else None,
    )


def _state(path: Path, live: LiveRank, state: RankState | None, since: float | None, step_seconds: float | None) -> str:
    if live.ended:
        try:
            return from_json(Ended, read_json(ended_file(path))).how
        except (Unreadable, ValueError):
            return EndKind.LOST
    if live.process is None:
        return "waiting"
    if state is not None and state.activity == Activity.SNAPSHOT:
        return "looking"
    patience = max(_STUCK_S, _STUCK_TIMES * (step_seconds or 0.0))
    return "stuck" if since is not None and since > patience else EndKind.RUNNING


def _last_steps(path: Path) -> list[Step]:
    steps = []
    for line in tail_of(path / "steps.jsonl", _STEPS_READ):
        try:
            steps.append(from_json(Step, parse_json(line)))
        except (Unreadable, ValueError):  # damaged: the report says so
            continue
    return steps


def slope(points: Sequence[tuple[int, int]]) -> float | None:
    """Slope of the second over the first, by least squares; None if undefined."""
    if len({place for place, _ in points}) <= 1:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _snapshot_files(path: Path) -> list[tuple[int, str]]:
    """Step and file of each heap snapshot."""
    try:
        names = os.listdir(path)
    except OSError:
        return []
    return [(int(found[2]), name) for name in names if (found := _SNAPSHOT_FILE.fullmatch(name))]


def _age(path: Path, now: float) -> float | None:
    """Seconds since a file was last modified; None if it does not exist."""
    try:
        return max(now - path.stat().st_mtime, 0.0)
    except OSError:
        return None


def _newest_interim(folder: Path) -> str:
    reports: list[Any] = sorted((folder / INTERIM).glob("[0-9]*/report.html"))
    return str(reports[-1]) if reports else ""
