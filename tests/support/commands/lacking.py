"""Runs scripts under leakscope in copies of one process, each as if its torch lacked some of what is private to it.

Only leakscope does not find them: torch itself uses most of them. Run as a script, this is the process that is copied;
it answers each line asked with the status of the copy.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
from collections.abc import Sequence
from typing import NoReturn

IMPORTED = (
    "torch",
    "torch._dynamo",
    "numpy.ma",
    "leakscope.run.writer",
    "leakscope.run.reader",
)
"""What a rank imports before the names are hidden; nothing of capture, which binds them."""


def hide(paths: Sequence[str]) -> None:
    """Let leakscope find nothing at these paths."""
    names = importlib.import_module("leakscope.process.torch_compat")
    really = names.at

    def at(path: str) -> object:
        return None if path in paths else really(path)

    names.at = at  # type: ignore[attr-defined]


def be_the_rank(ask: dict[str, object]) -> NoReturn:
    """In the copy: what a rank's process does; or Python alone, where no words are given."""
    os.chdir(str(ask["folder"]))
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{name}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    status = 1
    try:
        if not ask["words"]:
            runpy.run_path(str(ask["script"]), run_name="__main__")
        else:
            hide(ask["hidden"])  # type: ignore[arg-type]
            status = importlib.import_module("leakscope.recorder.__main__").main(ask["words"])
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - as at the end of any main
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        os._exit(status)


def serve() -> None:
    """Answer each line until there are no more."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # looks see what the copies make, and are a hundred times faster
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            be_the_rank(json.loads(line))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
