"""How long are text and page of many ranks, and what does making them cost?

    python benchmarks/rendering.py FOLDER...

For each folder of a recorded run: its ranks, then for text, page and JSON the lines, the MB, and the CPU time as a
median of several, in seconds and as a multiple of one `json.loads` of what the run's `findings.json` holds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from leakscope_cli.shared import read_and_judge

from leakscope.report import FORMATS, load

ROUNDS = 3
TOLD = ("text", "html", "json")
MOST = {64: (200, 0.6), 1024: (200, 5.0)}
"""Ranks to the lines of text and the MB of the page that they may have at the most."""


def measured(folder: Path) -> None:
    """Print a line for each format."""
    run, findings = read_and_judge(folder)
    data = FORMATS["json"](run, findings)
    peer = median(timed(lambda: json.loads(data))[0] for _ in range(ROUNDS))
    for name in TOLD:
        rounds = [timed(partial(FORMATS[name], run, findings)) for _ in range(ROUNDS)]
        seconds, text = median(second for second, _ in rounds), str(rounds[0][1])
        size = len(text.encode()) / 1e6
        lines, most = MOST.get(len(run.ranks), (None, None))
        over = (name == "text" and lines and text.count("\n") > lines) or (name == "html" and most and size > most)
        told = f"{text.count(chr(10)):7} lines {size:8.3f} MB {seconds:7.2f} s x{seconds / peer:.0f}"
        print(f"{len(run.ranks):5} ranks {name:5} {told}{'  too much' if over else ''}", flush=True)


def timed(call: Callable[[], object]) -> tuple[float, object]:
    """(seconds of CPU, what it returned)."""
    start = time.process_time()
    made = call()
    return time.process_time() - start, made


if __name__ == "__main__":
    load()
    for folder in sys.argv[1:]:
        measured(Path(folder))
