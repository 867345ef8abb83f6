"""Repeats a recorded run with edited copies of some files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leakscope.errors import LeakscopeError, Unreadable
from leakscope.files import read_json
from leakscope.findings.judge import Policy, judge_rank, judge_together
from leakscope.findings.model import Findings
from leakscope.fix.files import SourceFiles
from leakscope.launch import again
from leakscope.launch.repeat import LaunchRecord
from leakscope.overlay import write_overlay
from leakscope.run.model import Run
from leakscope.run.reader import open_run, read_each
from leakscope.run.writer import make_private, write_json

_GRACE_S = 10.0
"""Seconds that a run has to end after it was terminated."""


class TooSlow(Exception):
    """A run took longer than it may."""


@dataclass(frozen=True)
class Evidence:
    """What one repetition of a run shows."""

    run: Run
    findings: Findings
    status: int
    """Exit status of the script."""
    output: tuple[tuple[str, ...], ...]
    """Lines on stdout of each rank."""
    seconds: float

    @property
    def error(self) -> str:
        """The error that the script ended with, and its place; "" without one."""
        for rank in self.run.ranks:
            if rank.ended.error:
                return f"{rank.ended.error} at {rank.ended.at}" if rank.ended.at else rank.ended.error
        return f"exit status {self.status}" if self.status else ""


@dataclass(frozen=True)
class Repeater:
    """Repeats one run, in its working directory and environment."""

    original: Run
    launch: LaunchRecord
    files: SourceFiles
    work: Path
    """The folder for the repetitions."""
    steps: int | None
    """The step after which a repetition stops; None if the script runs to its end."""

    def run(self, name: str, texts: Mapping[str, str], limit_s: float) -> Evidence:
        """Repeat the run once.

        Args:
            name: Name of the folder of this repetition, below `work`.
            texts: File name to edited text.
            limit_s: Seconds after which it is ended.

        Raises:
            TooSlow: It took longer.
            LeakscopeError: It could not be started or read.

        """
        folder = (self.work / name).resolve()
        shutil.rmtree(folder, ignore_errors=True)
        make_private(folder)
        options = replace(
            self.launch.options_for(self.original.command, folder),
            steps=self.steps, lifetimes=False, prove=False, checksums=True,
        )  # fmt: skip
        write_json(folder / again.NAME, {"words": options.to_words()})
        if texts:
            write_overlay(str(folder), self.files.write_copies(texts, folder))
        began = time.monotonic()
        self._run(folder, limit_s)
        seconds = time.monotonic() - began
        result = read_json(folder / again.NAME)
        if "status" not in result:
            raise LeakscopeError(f"the run cannot be repeated: {result.get('error', 'leakscope was ended')}")
        run, findings = self._judged(folder)
        return Evidence(run, findings, result["status"], _output(folder, options.ranks), seconds)

    def _run(self, folder: Path, limit_s: float) -> None:
        environment, _ = self.launch.variables()
        environment.setdefault("PYTHONHASHSEED", "0")
        command = [self.launch.python, *self.launch.flags, str(Path(again.__file__).resolve()), str(folder)]
        with open(folder / "stdout.txt", "wb") as out, open(folder / "stderr.txt", "wb") as err:
            try:
                child = subprocess.Popen(
                    command, cwd=self.launch.folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                place = error.filename or command[0]
                raise LeakscopeError(f"the run cannot be repeated: {place}: {error.strerror}") from None
            try:
                child.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise TooSlow from None
            finally:
                _end(child)

    def _judged(self, folder: Path) -> tuple[Run, Findings]:
        opened = open_run(folder)
        as_original = replace(opened.run, suppressions=self.original.suppressions)
        run, ranks = read_each(replace(opened, run=as_original), judge_rank)
        return run, judge_together(run, ranks, Policy())


def _end(child: subprocess.Popen[Any]) -> None:
    """End a process and all that it has started in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
            return


def _output(folder: Path, ranks: int) -> tuple[tuple[str, ...], ...]:
    """Lines on stdout of each rank; those of a single one go to the launcher's."""
    files = [folder / "logs" / f"rank_{rank:04d}.stdout.log" for rank in range(ranks)]
    return tuple(_lines(file) for file in (files if ranks > 1 else [folder / "stdout.txt"]))


def _lines(file: Path) -> tuple[str, ...]:
    try:
        return tuple(file.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return ()


def read_launch(folder: Path) -> LaunchRecord:
    """How a recorded run was started. Raises LeakscopeError if that was not recorded, or its folder is gone."""
    try:
        header = read_json(folder / "run.json")
    except Unreadable as error:
        raise LeakscopeError(f"{folder} is not a leakscope run: {error}") from None
    launch = LaunchRecord.from_json(header.get("launch"))
    if not os.path.isdir(launch.folder):
        raise LeakscopeError(f"the run cannot be repeated: its working directory {launch.folder} is gone")
    return launch


def steps_to_repeat(run: Run, options: Mapping[str, Any], longest_s: float) -> int | None:
    """The step after which repetitions stop; None for the end of the script.

    Args:
        run: The recorded run.
        options: The options it was recorded with.
        longest_s: Seconds that a recording may have taken to be repeated whole.

    """
    given = options.get("steps")
    if type(given) is int:
        return given
    counts = [len(rank.steps) for rank in run.ranks]
    fewest = min(counts, default=0)
    seconds = max(((rank.steps[-1].began or 0.0) for rank in run.ranks if rank.steps), default=0.0)
    failed = any(rank.ended.status for rank in run.ranks)
    if not failed and seconds <= longest_s:
        return None
    return max(min(fewest - 1, run.warmup + _ENOUGH_STEPS), 1)


_ENOUGH_STEPS = 40
"""Steps after warm-up that show growth and whether it is gone."""
