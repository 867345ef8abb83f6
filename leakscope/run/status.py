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
from leakscope.run.model import Run, Step, is_told, read_header
from leakscope.run.rank_end import ended_file, ended_from_json, rank_name
from leakscope.run.rows import EndKind, from_json
from leakscope.run.writer import INTERIM

_STEPS_READ = 50
"""Steps at the end of a rank's that are read, chosen: a trend of so many tells a leak from a step that is larger."""
_STUCK_S = 30.0
"""Seconds, chosen, that a step may take in any case before it is said that it may not end."""
_STUCK_TIMES = 10
"""How many times as long as the steps before it it may take, chosen."""
_LOOK = re.compile(r"heap_([a-z]+)_([0-9]+)\.json")


@dataclass(frozen=True)
class RankStanding:
    """Where one rank is."""

    rank: int
    process: int | None
    """Number of the process that records it; None where it does not record yet."""
    machine: str
    state: str
    """`waiting` where it does not record yet, `running`, `looking`, `stuck`, or as in `EndKind`; `lost` also where its
    process is gone without a word.
    """
    step: int
    """Steps that have ended."""
    step_seconds: float | None
    """What the last ones took, the median; None where none was."""
    since_step: float | None
    """Seconds since the last step ended, or since recording began; None where the rank has ended."""
    counted_bytes: int | None
    """At the end of the last step."""
    counted_on: str
    bytes_per_step: float | None
    """By which they rose over the last steps after warm-up; None where they are too few."""
    over_steps: int
    """How many those are."""
    looks: int
    last_look_step: int | None
    """None where there was none."""
    since_look: float | None
    """Seconds since the last look was there."""
    looking_seconds: float | None
    """What looking has taken so far, with one more look; None where the rank does not say so any more."""


@dataclass(frozen=True)
class RunStanding:
    """Where all of them are."""

    folder: str
    command: tuple[str, ...]
    started: str
    steps: int | None
    """At which the run ends, where it was told."""
    goes_on: bool
    ranks: tuple[RankStanding, ...]
    interim: str
    """The newest report that was made while it went on, "" where there is none."""


def standing_of(folder: Path) -> RunStanding:
    """Where the ranks of a run are now. Raises Unreadable where it is no run."""
    header = read_header(folder)
    live = live_ranks(folder)
    states = read_states(folder, live[-1].number + 1)
    warmup, options, command = header.get("warmup"), header.get("options"), header.get("command")
    steps = options.get("steps") if isinstance(options, dict) else None
    ranks = tuple(
        _rank(
            folder / rank_name(rank.number),
            rank,
            warmup if type(warmup) is int else Run.warmup,
            states[rank.number] if rank.number < len(states) else None,
        )
        for rank in live
    )
    return RunStanding(
        folder=str(folder),
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        started=str(header.get("started", "")),
        steps=steps if type(steps) is int else None,
        goes_on=not is_told(header) and not all(rank.ended for rank in live),
        ranks=ranks,
        interim=_newest_interim(folder),
    )


def _rank(path: Path, live: LiveRank, warmup: int, state: RankState | None) -> RankStanding:
    rows = _last_steps(path)
    last = rows[-1] if rows else None
    looks = _looks(path)
    now = time.time()
    since = None if live.ended else _age(path / ("steps.jsonl" if rows else "process.json"), now)
    took = statistics.median(step.seconds for step in rows) if rows else None
    judged = [row for row in rows if row.number > warmup and last is not None and row.counted_on == last.counted_on]
    counted = [(row.number, row.counted_bytes) for row in judged if row.counted_bytes is not None]
    latest = max(looks, default=None)
    return RankStanding(
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
        looks=len(looks),
        last_look_step=None if latest is None else latest[0],
        since_look=None if latest is None else _age(path / latest[1], now),
        looking_seconds=state.spent if state is not None and not live.ended else None,
    )


def _state(path: Path, live: LiveRank, state: RankState | None, since: float | None, step_seconds: float | None) -> str:
    if live.ended:
        try:
            return ended_from_json(read_json(ended_file(path))).how
        except (Unreadable, ValueError):
            return EndKind.LOST
    if live.process is None:
        return "waiting"
    if state is not None and state.activity == Activity.LOOKING:
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
    """By how much the second rises for one of the first, by least squares; None where that cannot be told."""
    if len({place for place, _ in points}) <= 1:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _looks(path: Path) -> list[tuple[int, str]]:
    """The step and the file of each look."""
    try:
        names = os.listdir(path)
    except OSError:
        return []
    return [(int(found[2]), name) for name in names if (found := _LOOK.fullmatch(name))]


def _age(path: Path, now: float) -> float | None:
    """Seconds since a file was written to last; None where it is not there."""
    try:
        return max(now - path.stat().st_mtime, 0.0)
    except OSError:
        return None


def _newest_interim(folder: Path) -> str:
    reports: list[Any] = sorted((folder / INTERIM).glob("[0-9]*/report.html"))
    return str(reports[-1]) if reports else ""
