"""The time, memory and size of a report of many ranks."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PIPELINE = Path(__file__).resolve().parents[1] / "sample_runs" / "p2p_pipeline"
PATTERN = (
    ("none", 0), ("none", 1), ("none", 0), ("none", 1),
    ("stage-backward-cycle", 0), ("kept-outputs", 1), ("none", 0), ("param-group-cycle", 1),
)  # fmt: skip
"""(variant, rank) that the ranks repeat."""
EVERY = 0.05
"""Seconds between two looks at the memory."""


@dataclass(frozen=True)
class Taken:
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    output: bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="2,64,256")
    parser.add_argument("--as", dest="forms", default="text,html")
    parser.add_argument("--operations", type=int, default=0)
    options = parser.parse_args()
    print(f"{'run':>20} {'form':>5} {'processes':>9} {'CPU s':>6} {'s':>6} {'MiB':>6} {'kB':>7} {'lines':>6}")
    with tempfile.TemporaryDirectory() as scratch:
        runs = {f"{n} ranks": many_ranks(Path(scratch) / n, int(n)) for n in options.ranks.split(",")}
        if options.operations:
            name = f"{options.operations:,} operations"
            runs[name] = many_operations(Path(scratch) / "operations", options.operations)
        for name, folder in runs.items():
            for form in options.forms.split(","):
                for processors in sorted({len(os.sched_getaffinity(0)), 1}, reverse=True):
                    taken = report(folder, form, processors)
                    size, lines = len(taken.output) / 1000, taken.output.count(b"\n")
                    figures = f"{taken.cpu_seconds:6.1f} {taken.seconds:6.1f} {taken.peak_bytes / (1 << 20):6.0f}"
                    print(f"{name:>20} {form:>5} {processors:9} {figures} {size:7.0f} {lines:6}", flush=True)


def many_ranks(folder: Path, count: int) -> Path:
    folder.mkdir()
    about = json.loads((PIPELINE / "none" / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps(about | {"ranks": count}), encoding="utf-8")
    for number in range(count):
        variant, rank = PATTERN[number % len(PATTERN)]
        (folder / f"rank_{number:04d}").symlink_to(PIPELINE / variant / f"rank_{rank:04d}")
    return folder


def many_operations(folder: Path, count: int) -> Path:
    many_ranks(folder, 2)
    (folder / "rank_0000").unlink()
    own = folder / "rank_0000"
    own.mkdir()
    for file in (PIPELINE / "none" / "rank_0000").iterdir():
        if file.name != "wire.jsonl":
            (own / file.name).symlink_to(file)
    recorded = (PIPELINE / "none" / "rank_0000" / "wire.jsonl").read_text(encoding="utf-8").splitlines()
    once = [line for line in map(json.loads, recorded) if "issued" in line]
    steps = max(line["step"] for line in once)
    with (own / "wire.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(count):
            again, line = divmod(number, len(once))
            row = dict(once[line], id=number + 1, step=once[line]["step"] + again * steps)
            row["nth"] += again * len(once)
            row["issued"] += again * 60.0
            stream.write(json.dumps(row) + "\n")
    return folder


def report(folder: Path, form: str, processors: int) -> Taken:
    allowed = sorted(os.sched_getaffinity(0))[:processors]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "leakscope", "report", str(folder), "--as", form]
    with tempfile.TemporaryFile() as reported:
        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, allowed)  # what is started inherits it
        process = subprocess.Popen(command, stdout=reported, env={**os.environ, "OMP_NUM_THREADS": "1"})
        os.sched_setaffinity(0, every)
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(map(own_bytes, family(process.pid))))
            time.sleep(EVERY)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        reported.seek(0)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Taken(time.perf_counter() - begin, cpu, peak, reported.read())


def family(process: int) -> Iterator[int]:
    yield process
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))
    except OSError:  # it has ended meanwhile
        return


def own_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
