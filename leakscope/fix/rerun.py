"""Repeats a recorded run with edited copies of some files."""

from __future__ import annotations

import os
import re
import select
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
from leakscope.process.written_files import restore_written_files
from leakscope.run.model import Run
from leakscope.run.reader import open_run, read_each
from leakscope.run.writer import make_private, write_json

_GRACE_S = 10.0
"""Seconds that a killed run has to end."""


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


_PRELOADED = (
    "torch._dynamo",
    "leakscope.recorder.__main__",
    "leakscope.recorder.recorder",
    "leakscope.recorder.training_state",
)
"""What a rank imports first; ranks that are forks of one process import it once."""
_LAUNCHER = ("torch.distributed.launcher.api",)
"""What the launcher of several ranks imports."""
_SET_BEFORE = re.compile(
    r"\benviron\s*(\[[^]]*\]\s*=[^=]|\.(setdefault|update|pop|clear|__setitem__)\b|\|=)"
    r"|\b(putenv|unsetenv|set_start_method|orig_argv|load_dotenv)\b"
)
"""Code that may change what torch reads when it is imported: the ranks of such a script are started anew."""


class Repeater:
    """Repeats one run, in its working directory and environment. Must be closed."""

    def __init__(self, original: Run, launch: LaunchRecord, files: SourceFiles, work: Path, steps: int | None) -> None:
        """Prepare repetitions.

        Args:
            original: The recorded run.
            launch: How it was started.
            files: Its source files.
            work: The folder for the repetitions.
            steps: The step after which a repetition stops; None if the script runs to its end.

        """
        self.original, self.launch, self.files, self.steps = original, launch, files, steps
        self.unrestored: list[str] = []
        """Files that the script has written and that could not be restored."""
        self._work = work
        self._server: subprocess.Popen[str] | None = None
        self._running = 0

    def run(self, name: str, texts: Mapping[str, str], limit_s: float) -> Evidence:
        """Repeat the run once.

        Args:
            name: Name of the folder of this repetition, below the folder for all.
            texts: File name to edited text.
            limit_s: Seconds after which it is ended.

        Raises:
            TooSlow: It took longer.
            LeakscopeError: It could not be started or read.

        """
        folder = (self._work / name).resolve()
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
        try:
            self._wait(folder, options.ranks, limit_s)
        finally:
            self.unrestored += restore_written_files(folder)
        seconds = time.monotonic() - began
        result = read_json(folder / again.NAME)
        if "status" not in result:
            raise LeakscopeError(f"the run cannot be repeated: {result.get('error', 'leakscope was ended')}")
        run, findings = self._judged(folder)
        return Evidence(run, findings, result["status"], _output(folder, options.ranks), seconds)

    def close(self) -> None:
        """End what has been started."""
        if self._running:
            _kill(self._running)
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
            self._server = None

    def _wait(self, folder: Path, ranks: int, limit_s: float) -> None:
        ends = time.monotonic() + limit_s
        if self._server is None:
            self._server = self._start(ranks)
        assert self._server.stdin is not None
        self._server.stdin.write(f"{folder}\n")
        self._server.stdin.flush()
        self._running = int(self._line(self._server, ends))
        try:
            self._line(self._server, ends)
        except TooSlow:
            _kill(self._running)
            self._line(self._server, time.monotonic() + _GRACE_S)
            raise
        finally:
            self._running = 0

    def _start(self, ranks: int) -> subprocess.Popen[str]:
        environment, _ = self.launch.variables()
        environment.setdefault("PYTHONHASHSEED", "0")
        anew = any(_SET_BEFORE.search(text) for text in self.files.texts.values()) or bool(self.files.problems)
        modules = _LAUNCHER if ranks > 1 else () if anew else _PRELOADED
        command = [self.launch.python, *self.launch.flags, str(Path(again.__file__).resolve()), *modules]
        try:
            return subprocess.Popen(
                command, cwd=self.launch.folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            place = error.filename or command[0]
            raise LeakscopeError(f"the run cannot be repeated: {place}: {error.strerror}") from None

    def _line(self, server: subprocess.Popen[str], ends: float) -> str:
        """The next line of the server. Raises TooSlow if it does not come in time."""
        assert server.stdout is not None
        if not select.select([server.stdout], [], [], max(ends - time.monotonic(), 0))[0]:
            raise TooSlow
        line = server.stdout.readline()
        if not line:
            self._server = None  # the next one starts another
            raise LeakscopeError("the run cannot be repeated: its launcher was ended")
        return line

    def _judged(self, folder: Path) -> tuple[Run, Findings]:
        opened = open_run(folder)
        as_original = replace(opened.run, suppressions=self.original.suppressions)
        run, ranks = read_each(replace(opened, run=as_original), judge_rank)
        return run, judge_together(run, ranks, Policy())


def _kill(pid: int) -> None:
    """End a launcher, which is the leader of its session, with its ranks."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _output(folder: Path, ranks: int) -> tuple[tuple[str, ...], ...]:
    """Lines on stdout of each rank; those of a single one go to the launcher's."""
    files = [folder / "logs" / f"rank_{rank:04d}.stdout.log" for rank in range(ranks)]
    return tuple(_lines(file) for file in (files if ranks > 1 else [folder / again.STDOUT]))


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
