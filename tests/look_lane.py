"""Runs the tests that look at their own process, each file in a process of its own.

    python tests/look_lane.py [--beside N] [PYTEST OPTION...]

A look describes all that is alive in its process, which is far more in one that has collected and run the whole suite.
Prints what pytest says of files that fail, how long each took, and a line with the sums; ends with 1 where a test
failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-m", "look")
_SLOWEST = 10
"""Files told with their time."""
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")
NO_TESTS = 5
"""Pytest's status where options leave nothing to run."""


def files() -> list[str]:
    """The files with tests of the lane, those with the most tests first."""
    told = subprocess.run([*PYTEST, "--collect-only"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = re.findall(r"^(\S+\.py)::", told.stdout, re.MULTILINE)  # a line of a warning names a test too
    if told.returncode or not names:
        sys.exit(told.stdout + told.stderr)
    return [name for name, _ in Counter(names).most_common()]


def run(file: str, options: Sequence[str]) -> tuple[str, int, float, str]:
    """One file: its name, pytest's status, seconds, and what it said."""
    began = time.monotonic()
    told = subprocess.run(
        [*PYTEST, "-o", "addopts=", "--import-mode=importlib", "-p", "no:asyncio", "-p", "no:anyio", *options, file],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return file, told.returncode, time.monotonic() - began, told.stdout


def main() -> int:
    """Run the lane."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=int, default=os.cpu_count() or 1, help="processes at once")
    arguments, options = parser.parse_known_args()
    sums: Counter[str] = Counter()
    times: list[tuple[float, str]] = []
    bad = False
    with ThreadPoolExecutor(arguments.beside) as pool:
        for file, status, seconds, told in pool.map(lambda each: run(each, options), files()):
            fails = status not in (0, NO_TESTS)
            bad |= fails
            counted = _COUNT.findall(told.splitlines()[-1] if told.strip() else "")
            sums.update({outcome: int(count) for count, outcome in counted})
            times.append((seconds, file))
            sys.stdout.write(told if fails else f"{file}: {seconds:.0f} s\n")
            sys.stdout.flush()
    for seconds, file in sorted(times, reverse=True)[:_SLOWEST]:
        sys.stdout.write(f"{seconds:6.0f} s  {file}\n")
    others = [f"{sums[name]} {name}" for name in ("errors", "error", "skipped", "xfailed", "xpassed") if sums[name]]
    sys.stdout.write(", ".join([f"{sums['passed']} passed", f"{sums['failed']} failed", *others]) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
