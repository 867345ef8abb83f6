"""Runs a script again and again, each time with one error of leakscope's own planted; run as a script.

Each run is a fork of this process, which has imported torch. Of each it prints what came of it as a line of JSON.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch  # noqa: F401 - each run begins with it

from leakscope.options import Options
from leakscope.process.guard import Guard
from leakscope.process.user_code import users_sources
from leakscope.run.model import HeapSnapshot
from leakscope.run.rows import Occasion
from support.commands.preloaded import end_as
from support.heap_text import heap_from

ERRORS = (RuntimeError, MemoryError, AttributeError)
"""What is planted, in turn: a script's own `except` may catch any of them."""

IMPORTED = ("leakscope.recorder.recorder", "torch._dynamo", "torch.distributed._functional_collectives")
"""What a run imports beside that."""
LATER = 2
"""Every other entry raises in this one of its calls, the rest in their first."""
SHARE = 12
"""Of the entries one in so many is tried: all of them end in the same guard, and each takes a second."""


class Planted:
    """Replaces `Guard.register`: counts the calls of each entry, and raises in one of them."""

    def __init__(self, name: str = "", nth: int = 0, error: type[BaseException] = RuntimeError) -> None:
        self.calls: Counter[str] = Counter()
        self._name, self._nth, self._error = name, nth, error

    def register(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if name == self._name and self.calls[name] == self._nth:
                raise self._error("planted")
            return function(*args, **kwargs)

        return counted


def run(folder: Path, script: str, options: dict[str, Any], planted: Planted) -> int:
    """Run a rank with this planted in it; gives its status. What it says is in the folder, and what it counted."""
    folder.mkdir(parents=True)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for number, name in enumerate(("stdout", "stderr"), 1):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        words = Options(folder=folder / "run", script=script, **options).to_words()
        Guard.register = planted.register  # type: ignore[method-assign, assignment]
        end_as(lambda: be_the_rank(words, planted))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def be_the_rank(words: list[str], planted: Planted) -> None:
    """What a rank's process does."""
    main, mine = importlib.import_module("leakscope.recorder.__main__").main, os.getpid()
    snapshots = importlib.import_module("leakscope.recorder.snapshots")
    snapshots.take_heap_snapshot, snapshots.inspect_heap = little_snapshot, no_snapshot
    gc.freeze()
    try:
        sys.exit(main(words))
    finally:
        if os.getpid() == mine:
            Path("calls.json").write_text(json.dumps(planted.calls))


def little_snapshot(step: int, occasion: Occasion, *_: Any, **__: Any) -> HeapSnapshot:
    """In the place of half a second's work: what is planted is planted elsewhere."""
    return HeapSnapshot(step, occasion, heap_from("module train -> .x -> storage s 100"), None, 100)


def no_snapshot(*_: Any) -> NoReturn:
    """The same for the peak of a step."""
    raise LookupError("there is no heap snapshot at the peak")


def main(folder: Path, scripts: list[tuple[str, dict[str, Any]]]) -> None:
    """Each script first without a fault; then with one at the first or a later call of a share of its new entries."""
    for module in IMPORTED:
        importlib.import_module(module)
    users_sources()  # asks of every file whether it is the user's, which is then known
    reported: list[dict[str, Any]] = []
    seen: set[str] = set()
    for script, options in scripts:
        alone = folder / f"{len(reported)}"
        reported.append({"script": script, "folder": str(alone), "status": run(alone, script, options, Planted())})
        calls = json.loads((alone / "calls.json").read_text())
        new = sorted(calls.keys() - seen)
        seen |= calls.keys()
        for turn, name in enumerate(new[::SHARE]):
            nth = min(calls[name], 1 + turn % LATER)
            error = ERRORS[turn % len(ERRORS)]
            place = folder / f"{len(reported)}"
            status = run(place, script, options, Planted(name, nth, error))
            reported.append(
                {"script": script, "folder": str(place), "status": status, "name": name, "error": error.__name__}
            )
    (folder / "told.json").write_text(json.dumps(reported))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
