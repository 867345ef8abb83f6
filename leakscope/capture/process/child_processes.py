"""Does the script start processes of its own that are not followed? The report has to say so."""

from __future__ import annotations

import multiprocessing.process
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from leakscope.capture.process.patches import Patches
from leakscope.capture.source.user_frames import users_line
from leakscope.capture.torch_private import COMPILE_WORKERS, LOADER_WORKERS
from leakscope.originals import os
from leakscope.record.rows.clock import StartedProcess

_MAX_NOTED = 64
"""Processes that are noted, chosen: a pool may start one for each of thousands of tasks."""


class OwnProcesses:
    """Counts the Python processes that the script starts and that are not followed; workers of a data loader are not
    among them.
    """

    def __init__(
        self, note: Callable[[StartedProcess], object], followed: Callable[[str, Sequence[str]], bool] | None = None
    ) -> None:
        """`followed` says whether a program with these words will be; None where none is."""
        self.count = 0
        self._followed = followed
        self._note_it = note

    def install(self, patches: Patches) -> None:
        """Watch `multiprocessing` and `subprocess`."""
        patches.call_before(multiprocessing.process.BaseProcess, "start", self._of_multiprocessing)
        patches.call_before(subprocess.Popen, "__init__", self._of_subprocess)

    def _of_multiprocessing(self, process: Any, *_: Any, **__: Any) -> None:
        if self._followed is not None:
            return
        target = getattr(process, "_target", None)
        if getattr(target, "__module__", "") != LOADER_WORKERS:
            self._note(_through(process))

    def _of_subprocess(self, _: Any, args: Any = None, *__: Any, **given: Any) -> None:
        words = [str(word) for word in (args if isinstance(args, (list, tuple)) else str(args).split())]
        if not words or not _starts_python(words):
            return
        program = str(given.get("executable") or words[0])
        if given.get("shell") or self._followed is None or not self._followed(program, words):
            self._note("subprocess")

    def _note(self, through: str) -> None:
        self.count += 1
        if self.count <= _MAX_NOTED:
            self._note_it(StartedProcess(through, users_line(sys._getframe(2))))


def _through(process: Any) -> str:
    """`torch.multiprocessing.spawn`, or the module that starts processes where nothing else is known."""
    target = getattr(process, "_target", None)
    of_spawn = getattr(target, "__module__", "") == "torch.multiprocessing.spawn"
    return "torch.multiprocessing.spawn" if of_spawn else "multiprocessing"


def _starts_python(words: Sequence[str]) -> bool:
    if any("multiprocessing.resource_tracker" in word or COMPILE_WORKERS in word for word in words):
        return False
    program = os.path.basename(words[0])
    return (
        words[0] == sys.executable or program.startswith("python") or program in ("torchrun", "accelerate", "deepspeed")
    )
