"""Reads, judges and tells one damaged run after the other, in a process that may be ended.

    python -m support.damage.fuzzing RUN --seed 1 --seconds 30 [--count 1000] [--only 17]

`RUN` is a run's folder, or `small`, or `orphan`, which is that of a launcher that was killed. The same
seed damages the same things in the same order; `--only` takes one.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from shutil import copytree
from tempfile import TemporaryDirectory
from types import FrameType

from leakscope.errors import LeakscopeError
from leakscope.findings import judge
from leakscope.report.formats import OWN
from leakscope.run.reader import read_run
from leakscope.verdict import Verdict
from support.damage.mutations import damage, put_back
from support.damage.small_run import write_small_run

MAX_S = 20.0
"""Seconds for one run; the whole one takes a tenth of one."""
MAX_BYTES = 4 << 30
"""Address space of the process: numpy's and matplotlib's threads reserve one of them."""
PAGES = 12
"""One run in so many is told as a page too, which takes longest."""


@dataclass
class Reported:
    """What came of it."""

    runs: int = 0
    reported: int = 0
    refused: int = 0
    damaged: int = 0
    """Runs of which something was left out."""
    slowest_s: float = 0.0
    peak_bytes: int = 0
    failures: list[str] = field(default_factory=list)


class TooLong(BaseException):
    """It took longer than `MAX_S`."""


@contextmanager
def _limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MAX_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(run: str, seed: int, seconds: float, count: int, only: int | None = None) -> Reported:
    """Damage a run again and again, in so many ways or for so long."""
    reported = Reported()
    end = time.monotonic() + seconds
    with TemporaryDirectory() as name:
        folder = Path(name, "run")
        if run in ("small", "orphan"):
            write_small_run(folder, launcher_ended=run == "small")
        else:
            copytree(run, folder)
        kinds = (".json", ".jsonl", ".bin", ".pickle")
        files = [p for p in folder.rglob("*") if p.suffix in kinds and p.name != "findings.json"]
        whole = {str(p.relative_to(folder)): p.read_bytes() for p in files}
        verdict = judge(read_run(folder, snapshots=True)).verdict
        for number in range(count) if only is None else (only,):
            if time.monotonic() > end:
                break
            done = damage(folder, whole, Random(f"{seed}:{number}"))
            _try(folder, f"{seed}:{number} {done}", verdict, number % PAGES == 0, reported)
            put_back(folder, whole, [text.partition(":")[0] for text in done])
    reported.peak_bytes = peak_bytes()
    return reported


def peak_bytes() -> int:
    """Most memory that this program has had (proc(5)); getrusage counts the one it was forked from too."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _try(folder: Path, done: str, verdict: Verdict, with_page: bool, reported: Reported) -> None:
    """Read, judge and tell one run: nothing but a sentence may come of it."""
    began = time.process_time()
    reported.runs += 1
    try:
        with _limited():
            found = _tell(folder, with_page, reported)
        if {found, verdict} == {Verdict.CLEAN, Verdict.LEAKS}:
            reported.failures.append(f"{found}, not {verdict}: {done}")
    except LeakscopeError as error:
        reported.refused += 1
        if "\n" in str(error) or len(str(error)) > 2000:
            reported.failures.append(f"no sentence: {done}: {error!r:.300}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/leakscope/" in f.filename]
        at = f"{frames[-1].filename.rpartition('/leakscope/')[2]}:{frames[-1].lineno}" if frames else "nowhere"
        reported.failures.append(f"{type(error).__name__} at {at}: {done}: {error!s:.200}")
    reported.slowest_s = max(reported.slowest_s, time.process_time() - began)


def _tell(folder: Path, with_page: bool, reported: Reported) -> Verdict | None:
    """The verdict, where it must not be the opposite one: something was left out, and no look that shows an end."""
    run = read_run(folder, snapshots=True)
    findings = judge(run)
    for form in OWN:
        if with_page or form.name != "html":
            form.render(run, findings).encode()
    reported.reported += 1
    names = [*run.notes, *(name for rank in run.ranks for name in rank.damaged)]
    reported.damaged += bool(names)
    fewer_snapshots = findings.verdict == Verdict.LEAKS and any(name.startswith("heap_") for name in names)
    return None if fewer_snapshots or not names else findings.verdict


def fuzz_apart(run: str, seconds: float, environment: Mapping[str, str]) -> Reported:
    """The same in a process of its own, whose memory is bounded and which may be ended."""
    command = [sys.executable, "-m", "support.damage.fuzzing", run, "--seconds", str(seconds)]
    limit = seconds + 3 * MAX_S
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=True)
    return Reported(**json.loads(answer.stdout))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    reported = fuzz(options.run, options.seed, options.seconds, options.count, options.only)
    json.dump(asdict(reported), sys.stdout)


if __name__ == "__main__":
    main()
