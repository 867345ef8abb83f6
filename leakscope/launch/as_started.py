"""With which flags was this Python started? The ranks are started with the same: `python -O -m leakscope run`."""

from __future__ import annotations

import subprocess
import sys


def interpreter_flags() -> list[str]:
    """What stood between `python` and `-m leakscope`, as `-O`, `-X dev` or `-W error`.

    Where the command line shows no such place, what is known of them, as `multiprocessing` does for its processes.
    """
    words = sys.argv[1:]
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(words)]
    if sys.orig_argv[len(before) + 1 :] == words:
        if before[-2:] == ["-m", "leakscope"]:
            return before[:-2]
        if before[-1:] == sys.argv[:1]:  # the console script, whose first line may have some
            return before[:-1]
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return]
