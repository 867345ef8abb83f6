"""Does the script start processes of its own? They are not seen, and the report has to say so."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from leakscope.capture.process.forks import in_forked_child
from leakscope.capture.process.patches import Patches


class OwnProcesses:
    """Counts the Python processes that the script starts; workers of a data loader are not among them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._said = say, False
        self._in_forked_child = in_forked_child()

    def install(self, patches: Patches) -> None:
        """Watch `multiprocessing` and `subprocess`."""
        patches.call_before(multiprocessing.process.BaseProcess, "start", self._of_multiprocessing)
        patches.call_before(subprocess.Popen, "__init__", self._of_subprocess)

    def _of_multiprocessing(self, process: Any, *_: Any, **__: Any) -> None:
        target = getattr(process, "_target", None)
        if getattr(target, "__module__", "") != "torch.utils.data._utils.worker":
            self._note("multiprocessing")

    def _of_subprocess(self, _: Any, args: Any = None, *__: Any, **___: Any) -> None:
        words = args if isinstance(args, (list, tuple)) else str(args).split()
        if words and _starts_python([str(word) for word in words]):
            self._note("subprocess")

    def _note(self, how: str) -> None:
        if not self._said and not self._in_forked_child:
            self._said = True
            self._say(
                f"the script started processes of its own through {how}; they are not seen, "
                "start them with --ranks instead"
            )


def _starts_python(words: Sequence[str]) -> bool:
    if any("multiprocessing.resource_tracker" in word or "torch._inductor" in word for word in words):
        return False
    program = os.path.basename(words[0])
    return (
        words[0] == sys.executable or program.startswith("python") or program in ("torchrun", "accelerate", "deepspeed")
    )
