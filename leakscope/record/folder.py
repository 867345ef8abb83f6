"""The folder of a run on disk: written step by step, readable after a kill."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.graph.model import from_json, to_json
from leakscope.record.kinds import EndKind, Occasion
from leakscope.record.last_operation import NAME as WIRE_LAST
from leakscope.record.last_operation import unpack
from leakscope.record.model import Collection, Ended, GcDiff, Look, Rank, Run, Step

if TYPE_CHECKING:
    from leakscope.allocator.figures import SnapshotReport

FORMAT = 1
"""Number of the folder's format; a newer one is refused."""
MOST_ANALYSED = 16
"""Ranks whose allocator snapshots are analysed for a report; `leakscope snapshot` reads those of all."""


class RankFolder:
    """Writes one rank's files; every line is flushed, every whole file appears at once."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"rank_{rank:04d}"
        self.path.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, TextIO] = {}

    def append(self, stem: str, line: Mapping[str, Any]) -> None:
        """Add one line to `<stem>.jsonl` and flush it."""
        stream = self._open.get(stem)
        if stream is None:
            stream = self._open[stem] = open(self.path / f"{stem}.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - kept open to append
        stream.write(json.dumps(line) + "\n")
        stream.flush()

    def step(self, step: Step) -> None:
        self.append("steps", asdict(step))

    def look(self, look: Look) -> None:
        name = (
            f"heap_step_{look.step:06d}.json"
            if look.occasion == Occasion.STEP
            else f"heap_{look.occasion}_{look.step:06d}.json"
        )
        write_json(self.path / name, _look_to_json(look))

    def ended(self, ended: Ended) -> None:
        write_json(self.path / "ended.json", asdict(ended))

    def gc_diff(self, diff: GcDiff) -> None:
        write_json(self.path / "gc_diff.json", asdict(diff))

    def proved(self, proved: Mapping[str, int | str]) -> None:
        write_json(self.path / "proved.json", dict(proved))

    def note(self, text: str) -> None:
        self.append("notes", {"note": text})

    def close(self) -> None:
        for stream in self._open.values():
            stream.close()
        self._open.clear()


def snapshot_name(kind: str, step: int, occasion: str) -> str:
    """Name of an allocator snapshot's file: `cuda_step_000012.pickle`, named like the look it was taken at."""
    return f"{kind}_{occasion}_{step:06d}.pickle"


def write_json(path: Path, data: Any) -> None:
    """Write a whole file under a temporary name, then rename: a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data), encoding="utf-8")
    os.replace(temporary, path)


def write_run(folder: Path, data: Mapping[str, Any]) -> None:
    """Write `run.json`: format, command, ranks, device, torch, leakscope, options; see `read_run`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", {"format": FORMAT, **data})


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
    data = _read_json(folder / "run.json", f"{folder} is not a leakscope run: it has no readable run.json")
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise Unreadable(f"{folder} is not a leakscope run: run.json names no format")
    if data["format"] > FORMAT:
        raise Unreadable(
            f"{folder} was recorded by a newer leakscope (format {data['format']}, this one reads up to {FORMAT}); upgrade leakscope"
        )
    try:
        expected = int(data["ranks"])
        numbers = sorted(int(p.name[5:]) for p in folder.iterdir() if re.fullmatch(r"rank_\d{4,}", p.name))
        missing = [n for n in range(expected) if n not in numbers]
        ranks = tuple(
            _read_rank(folder, n, snapshots and place < MOST_ANALYSED) for place, n in enumerate(numbers)
        ) + tuple(_lost(n) for n in missing)
        return Run(
            command=tuple(data["command"]),
            ranks=tuple(sorted(ranks, key=lambda rank: rank.number)),
            expected_ranks=expected,
            device=str(data.get("device", "cpu")),
            torch=str(data.get("torch", "")),
            leakscope=str(data.get("leakscope", "")),
            folder=str(folder),
            warmup=int(data.get("warmup", 2)),
            min_bytes=int(data.get("min_bytes", 64 * 1024)),
            options=dict(data.get("options", {})),
            sources={name: tuple(lines) for name, lines in data.get("sources", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unreadable(f"{folder} is a damaged leakscope run: {error}") from None


def _lost(number: int) -> Rank:
    return Rank(number, (), (), Ended(EndKind.LOST, 1, 0), notes=("nothing was recorded for this rank",))


def _read_rank(folder: Path, number: int, snapshots: bool) -> Rank:
    path = folder / f"rank_{number:04d}"
    notes: list[str] = []
    lines = {p.stem: _read_lines(p, notes) for p in sorted(path.glob("*.jsonl"))}
    last = path / WIRE_LAST
    if last.exists():
        try:
            lines["wire_last"] = unpack(last.read_bytes())
        except ValueError as error:
            notes.append(f"what the rank did last on the wire cannot be told: {error}")
    steps = tuple(_step_from_json(line) for line in lines.pop("steps", ()))
    looks = sorted(
        (_read_look(p) for p in path.glob("heap_*.json")), key=lambda look: (look.step, look.occasion != Occasion.STEP)
    )
    notes += [str(line["note"]) for line in lines.pop("notes", ())]
    ended_file = path / "ended.json"
    if ended_file.exists():
        ended = _read_json(ended_file, f"{ended_file} cannot be read")
        rank_ended = Ended(**{**ended, "stack": tuple(ended.get("stack", ()))})
    else:
        rank_ended = Ended(EndKind.LOST, 1, len(steps), error="the rank left no word of how it ended")
    diff_file = path / "gc_diff.json"
    diff = _read_json(diff_file, f"{diff_file} cannot be read") if diff_file.exists() else None
    proved_file = path / "proved.json"
    analysed, problems = _snapshots(path, number) if snapshots else ((), ())
    notes += problems
    return Rank(
        number=number,
        steps=steps,
        looks=tuple(looks),
        ended=rank_ended,
        gc_diff=None
        if diff is None
        else GcDiff(tuple(diff["freed_bytes"]), diff["collections"], tuple(diff["seconds"]), diff["predicted_bytes"]),
        notes=tuple(notes),
        proved=_read_json(proved_file, f"{proved_file} cannot be read") if proved_file.exists() else {},
        extras={stem: tuple(rows) for stem, rows in lines.items()},
        snapshots=analysed,
    )


def _snapshots(path: Path, number: int) -> tuple[tuple[SnapshotReport, ...], tuple[str, ...]]:
    from leakscope.allocator.of_rank import snapshots_in

    return snapshots_in(path, number)


def _read_lines(path: Path, notes: list[str]) -> list[Mapping[str, Any]]:
    rows = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            if line != text.splitlines()[-1]:
                raise ValueError(f"{path.name} has a damaged line") from None
            notes.append(f"the last line of {path.name} was cut off when the rank died and is left out")
    return rows


def _step_from_json(data: Mapping[str, Any]) -> Step:
    return Step(**{**data, "collections": tuple(Collection(**c) for c in data.get("collections", ()))})


def _look_to_json(look: Look) -> dict[str, Any]:
    data = {name: getattr(look, name) for name in look.__dataclass_fields__ if name != "heap"}
    return {**data, "types": dict(look.types), "unjudged": list(look.unjudged), "heap": to_json(look.heap)}


def _read_look(path: Path) -> Look:
    data = _read_json(path, f"{path} cannot be read")
    return Look(**{**data, "heap": from_json(data["heap"]), "unjudged": tuple(data["unjudged"])})


def _read_json(path: Path, problem: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise Unreadable(problem) from None


def read_stack(path: Path) -> tuple[str, ...]:
    """The stack that faulthandler wrote when the rank was told to end, the innermost call last; () where there is none.

    Of several threads the one that the signal met is taken, else the main thread, which faulthandler lists last.
    """
    if not path.is_file():
        return ()
    sections = re.split(
        r"^(?:Current thread|Thread) .*\n", path.read_text(encoding="utf-8", errors="replace"), flags=re.MULTILINE
    )
    stacks = [re.findall(r"^  File .*", section, flags=re.MULTILINE) for section in sections[1:]]
    told = [
        [line for line in reversed(stack) if "/leakscope/capture/" not in line and "<frozen " not in line]
        for stack in stacks
    ]
    running = [stack for stack in told if any("/lib/python" not in line for line in stack)]
    return ("Stack when it was told to end (most recent call last):", *running[-1]) if running else ()


def prepare_folder(folder: Path, force: bool) -> None:
    """Make the run's folder; an existing run is replaced only with `force`.

    Raises LeakscopeError when it exists, holds anything but a run, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not force:
                raise LeakscopeError(f"{folder} exists already; give another --output, or --force to replace it")
            if not (folder / "run.json").is_file():
                raise LeakscopeError(
                    f"{folder} holds no leakscope run, so --force will not replace it; give another --output"
                )
            _remove_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise LeakscopeError(f"cannot write to {folder}: {error.strerror}; give another --output") from None


def _remove_run(folder: Path) -> None:
    import shutil

    for path in folder.iterdir():
        if re.fullmatch(r"rank_\d{4,}", path.name) or path.name == "logs":
            shutil.rmtree(path)
        elif path.name in ("run.json", "findings.json", "report.html"):
            path.unlink()
