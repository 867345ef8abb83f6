"""Launches with pickled options, and pickles how it ended: a program for `Copies.run`."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.launch import Outcome, launch
from leakscope.options import Options

if TYPE_CHECKING:
    from support.commands.preloaded import Copies

TIMEOUT_S = 120


def by_copies(copies: Copies, folder: Path) -> Callable[[Options], Outcome]:
    """`launch` in a copy of a process that has imported torch, whose ranks are copies too; `folder` is for what passes.

    What it prints comes out of this process.
    """

    def launched(options: Options) -> Outcome:
        request, answer = folder / "options", folder / "outcome"
        request.write_bytes(pickle.dumps(options))
        done = copies.run([str(request), str(answer)], Path.cwd(), dict(os.environ), TIMEOUT_S, __file__)
        os.write(1, done.stdout.encode())
        os.write(2, done.stderr.encode())
        assert done.returncode == 0, done.stderr
        outcome: Outcome = pickle.loads(answer.read_bytes())
        return outcome

    return launched


if __name__ == "__main__":
    request, answer = map(Path, sys.argv[1:])
    answer.write_bytes(pickle.dumps(launch(pickle.loads(request.read_bytes()))))
