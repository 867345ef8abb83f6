"""Runs the tests that inspect their own process, each file in a process of its own.

    python tests/inspect_lane.py [--beside N] [PYTEST OPTION...]

A heap snapshot describes all live objects of its process, which are far more in one that has collected and run the
whole suite. The processes are forked from one that has imported pytest and torch. Prints the output of pytest for
files that fail, the seconds of each, and a line with the sums; exits with 1 if a test failed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ("-m", "inspect", "-o", "addopts=", "--import-mode=importlib", "-p", "no:asyncio", "-p", "no:anyio")
IMPORTED = (
    "numpy",
    "torch",
    "torch.distributed",
    "leakscope.findings",
    "leakscope.launch",
    "xdist.plugin",
    "hypothesis",
)
"""What every file would import. Not `torch._dynamo`: it nearly doubles the heap, and with it the cost of a snapshot."""
MAY_BE = re.compile(
    r"leakscope\.heap(\.snapshot|\.sweep| import)|leakscope\.recorder\.(recorder|lifetimes\.)|"
    r"leakscope\.(integrations|profiler|testing)|leakscope import .*(profiler|testing)|"
    r"^import leakscope|corpus\.case|heap_readers|lived_steps|native_fuzz|no_tensor_leaks|mark\.inspect",
    re.MULTILINE,
)
"""Text without which a file has no test of the lane: see `INSPECTING` in conftest.py, which decides."""
SLOWEST = 10
"""Files listed with their time at the end."""
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")
STATUS = pytest.StashKey[int]()


@dataclass(frozen=True)
class Running:
    """A file whose tests run."""

    file: Path
    began: float
    output: IO[str]


def files() -> list[Path]:
    """The files that may have tests of the lane; those that start processes first, the longest of each kind first."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    chosen = [path for path in texts if MAY_BE.search(texts[path])]
    return sorted(chosen, key=lambda path: ("mark.process" in texts[path], len(texts[path])), reverse=True)


class EndsAtOnce:
    """A plugin that ends the process once pytest has reported: what pytest does then is to collect garbage."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self, config: pytest.Config) -> NoReturn:
        """End with the status of the session; 4 if there was none, as pytest has it for a wrong option."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(config.stash.get(STATUS, pytest.ExitCode.USAGE_ERROR)))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Note the status."""
        session.config.stash[STATUS] = exitstatus


def run_tests(file: Path, options: Sequence[str], output: int) -> NoReturn:
    """In the forked process: run pytest on one file."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["pytest", *OPTIONS, *options, str(file.relative_to(ROOT))]
    try:
        pytest.main(sys.argv[1:], [EndsAtOnce()])
    finally:
        os._exit(pytest.ExitCode.INTERNAL_ERROR)


def main() -> int:
    """Run the lane."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=int, default=os.cpu_count() or 1, help="processes at once")
    arguments, options = parser.parse_known_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    sys.path[0] = str(ROOT)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    sums: Counter[str] = Counter()
    times: list[tuple[float, Path]] = []
    bad = False
    waiting = files()
    running: dict[int, Running] = {}
    while waiting or running:
        while waiting and len(running) < arguments.beside:
            started = Running(waiting.pop(0), time.monotonic(), tempfile.TemporaryFile("w+", encoding="utf-8"))  # noqa: SIM115 - closed below
            sys.stdout.flush()
            if not (process := os.fork()):
                run_tests(started.file, options, started.output.fileno())
            running[process] = started
        process, code = os.wait()
        ended, status = running.pop(process), os.waitstatus_to_exitcode(code)
        ended.output.seek(0)
        text, seconds = ended.output.read(), time.monotonic() - ended.began
        ended.output.close()
        if status == pytest.ExitCode.NO_TESTS_COLLECTED:
            continue
        bad |= status != 0
        sums.update({outcome: int(count) for count, outcome in COUNT.findall((text.splitlines() or [""])[-1])})
        times.append((seconds, ended.file))
        sys.stdout.write(text if status else f"{ended.file.relative_to(ROOT)}: {seconds:.0f} s\n")
    for seconds, file in sorted(times, reverse=True)[:SLOWEST]:
        sys.stdout.write(f"{seconds:6.0f} s  {file.relative_to(ROOT)}\n")
    others = [f"{sums[name]} {name}" for name in ("errors", "error", "skipped", "xfailed", "xpassed") if sums[name]]
    sys.stdout.write(", ".join([f"{sums['passed']} passed", f"{sums['failed']} failed", *others]) + "\n")
    return 1 if bad or not times else 0


if __name__ == "__main__":
    sys.exit(main())
