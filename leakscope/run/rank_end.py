"""The end of a rank on disk, with the stacks of one that hung."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from leakscope.errors import Unreadable
from leakscope.files import parse_json, read_json, read_regular
from leakscope.originals import Path, os
from leakscope.run.model import Ended
from leakscope.run.rows import ORPHAN_STATUS, EndKind, from_json, to_json

NAME = "ended.json"
_HUNG = "hung: "
"""Begins the error of a rank that `--hang-timeout` has ended, in the form in which it is written."""


def as_written(ended: Ended) -> Ended:
    """The same end in the words of the file, which are older than `EndKind.HUNG` and `EndKind.UNKNOWN`."""
    if ended.how == EndKind.UNKNOWN:
        return replace(ended, how=EndKind.LOST)
    if ended.how != EndKind.HUNG:
        return ended
    return replace(ended, how=EndKind.RAISED, error=f"{_HUNG}{ended.error}")


def ended_to_json(ended: Ended) -> dict[str, Any]:
    """What `ended.json` has."""
    return to_json(as_written(ended))


def ended_from_json(data: Any) -> Ended:
    """Inverse of `ended_to_json`; raises ValueError on anything else."""
    ended = from_json(Ended, data)
    if not ended.error.startswith(_HUNG):
        return ended
    return replace(ended, how=EndKind.HUNG, error=ended.error.removeprefix(_HUNG))


def ended_file(rank: Path) -> Path:
    """Where a rank's folder says how it ended."""
    return rank / NAME


def ranks_in(folder: Path) -> list[int]:
    """Numbers of the ranks that have a folder, rising."""
    names = (path.name for path in folder.iterdir() if re.fullmatch(r"rank_[0-9]{4,9}", path.name) and path.is_dir())
    return sorted(int(name[5:]) for name in names if name == rank_name(int(name[5:])))


def rank_name(number: int) -> str:
    """Name of a rank's folder: `rank_0000`."""
    return f"rank_{number:04d}"


def lost() -> Ended:
    """The end of a rank that has no folder."""
    return Ended(EndKind.LOST, 1, 0)


def orphaned_after(steps: int) -> Ended:
    """The end of a rank that was ended because leakscope's own process was gone."""
    return Ended(EndKind.KILLED, ORPHAN_STATUS, steps, is_orphan=True)


def no_word(rank: Path, steps: int) -> Ended:
    """The end of a rank that has written down so many steps, and whose folder does not say how it ended."""
    if os.path.lexists(ended_file(rank)):
        return Ended(EndKind.UNKNOWN, 0, steps)
    return Ended(EndKind.LOST, 1, steps, error="the rank exited without recording a status")


def read_ends(folder: Path, expected: int) -> Iterator[tuple[int, Ended, int]]:
    """Each rank's number, how it ended, and how many steps it has written down; nothing else is read.

    What is damaged counts as not written.
    """
    there = ranks_in(folder)
    for number in sorted({*there, *range(expected)}):
        if number not in there:
            yield number, lost(), 0
            continue
        path = folder / rank_name(number)
        steps = _whole_lines(path / "steps.jsonl")
        try:
            yield number, ended_from_json(read_json(ended_file(path))), steps
        except (Unreadable, ValueError):
            yield number, as_written(no_word(path, steps)), steps


def _whole_lines(path: Path) -> int:
    """Lines of a file, but for a last one that was cut off; 0 where there is no such file."""
    lines: list[bytes] = []
    try:
        lines = read_regular(path).splitlines()
        parse_json(lines[-1] if lines else b"")
    except Unreadable:
        return max(len(lines) - 1, 0)
    return len(lines)


_LEFT_OUT = (
    *(tuple(f"/leakscope/{name}/" for name in ("comm", "dataloader", "heap", "process", "recorder"))),
    "/leakscope/bootstrap.py",
    "<frozen ",
)
_MOST_BYTES = 1 << 24
"""A larger file is not read; chosen: faulthandler writes a few kilobytes a thread."""


def read_stack(path: Path) -> tuple[str, ...]:
    """The stack that faulthandler wrote when the rank was told to end, the innermost call last; () where there is none.

    Of several threads the one that the signal met is taken, else the main thread, which faulthandler lists last.
    """
    try:
        text = read_regular(path, _MOST_BYTES).decode(errors="replace")
    except Unreadable:
        return ()
    sections = re.split(r"^(?:Current thread|Thread) .*\n", text, flags=re.MULTILINE)
    stacks = [re.findall(r"^  File .*", section, flags=re.MULTILINE) for section in sections[1:]]
    shown = [[line for line in reversed(stack) if not any(ours in line for ours in _LEFT_OUT)] for stack in stacks]
    running = [stack for stack in shown if any("/lib/python" not in line for line in stack)]
    return ("Stack at termination (most recent call last):", *running[-1]) if running else ()
