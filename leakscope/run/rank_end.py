"""The end of a rank on disk, with the stacks of one that hung."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from leakscope.errors import Unreadable
from leakscope.files import parse_json, read_json, read_regular
from leakscope.originals import Path, os
from leakscope.run.model import Ended
from leakscope.run.rows import ORPHAN_STATUS, EndKind, from_json

NAME = "ended.json"


def ended_file(rank: Path) -> Path:
    """Path of the file with a rank's end."""
    return rank / NAME


def ranks_in(folder: Path) -> list[int]:
    """Numbers of the ranks that have a folder, ascending."""
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
    """The end of a rank with this many recorded steps and no record of its end."""
    if os.path.lexists(ended_file(rank)):
        return Ended(EndKind.UNKNOWN, 0, steps)
    return Ended(EndKind.LOST, 1, steps, error="the rank exited without recording a status")


def read_ends(folder: Path, expected: int) -> Iterator[tuple[int, Ended, int]]:
    """Read each rank's number, end, and number of recorded steps.

    Damaged entries are treated as missing.
    """
    there = ranks_in(folder)
    for number in sorted({*there, *range(expected)}):
        if number not in there:
            yield number, lost(), 0
            continue
        path = folder / rank_name(number)
        steps = _whole_lines(path / "steps.jsonl")
        try:
            yield number, from_json(Ended, read_json(ended_file(path))), steps
        except (Unreadable, ValueError):
            yield number, replace(no_word(path, steps), how=EndKind.LOST), steps


def _whole_lines(path: Path) -> int:
    """Number of complete lines of a file; 0 without a file."""
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
_MAX_BYTES = 1 << 24
"""Maximum size of a file that is read. Heuristic: faulthandler writes a few kilobytes a thread."""


def read_stack(path: Path) -> tuple[str, ...]:
    """The stack that faulthandler wrote when the rank was told to end, innermost call last; () if there is none.

    Of several threads it is the one that received the signal, else the main thread, which faulthandler lists last.
    """
    try:
        text = read_regular(path, _MAX_BYTES).decode(errors="replace")
    except Unreadable:
        return ()
    sections = re.split(r"^(?:Current thread|Thread) .*\n", text, flags=re.MULTILINE)
    stacks = [re.findall(r"^  File .*", section, flags=re.MULTILINE) for section in sections[1:]]
    shown = [[line for line in reversed(stack) if not any(ours in line for ours in _LEFT_OUT)] for stack in stacks]
    running = [stack for stack in shown if any("/lib/python" not in line for line in stack)]
    return ("Stack at termination (most recent call last):", *running[-1]) if running else ()
