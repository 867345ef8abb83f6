"""Everything that can only be seen on a GPU, in one command of at most ten minutes: `make gpu`.

    python benchmarks/gpu/all_parts.py [--device cuda] [--folder gpu_runs] [--only PART,PART] [--seconds 570]

Runs the tests of `tests/capture/device` that need a device, the sample pipeline's variants with two ranks on it, an
allocation that fails, a transformer with and without leakscope, NCCL, a CUDA graph, torch.compile, and the backward's
peaks beside torch's. Prints a table, writes it to FOLDER/table.md beside FOLDER/runs.tar.gz (the pipeline's runs,
small enough for `sample_runs/`), and exits with 1 where a part is not as expected.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = str(Path(__file__).resolve().with_name("scripts.py"))
PIPELINE = str(ROOT / "sample_runs" / "p2p_pipeline" / "train.py")
ALL_SECONDS = 570
"""Seconds for everything; what has not begun by then is left out, and said."""
CLEAN, LEAKS = 0, 23


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    part: str
    output: str
    as_expected: bool


@dataclass(frozen=True)
class Bench:
    """Where the parts run."""

    device: str
    folder: Path
    ends: float
    """On `time.monotonic`."""

    def run(self, words: Sequence[str], at_most: float = 120) -> subprocess.CompletedProcess[str]:
        """A command to its end, or to that of its time: then its status is 124."""
        left = max(min(at_most, self.ends - time.monotonic()), 1)
        try:
            return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 124, "", f"not done after {left:.0f} s")

    def leakscope(self, name: str, words: Sequence[str], options: Sequence[str] = ()) -> tuple[int, str, str]:
        """`leakscope run`: its status, what it found, and all that was printed."""
        folder = self.folder / name
        command = [sys.executable, "-m", "leakscope", "run", "-f", "-o", str(folder), *options, *words]
        done = self.run(command, 200)
        try:
            findings = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return done.returncode, (done.stderr.splitlines() or ["nothing"])[-1], done.stdout
        leaks = [each["title"] for each in findings["findings"] if each["severity"] == "leak"]
        return done.returncode, f"{findings['verdict']}: {'; '.join(leaks) or findings['why']}", done.stdout

    def script(self, part: str, *more: str) -> list[str]:
        """The words of one script."""
        return [SCRIPTS, part, self.device, *more]


def tests(bench: Bench) -> list[Row]:
    """The tests that need a device."""
    beside = ["-n", "4"] if importlib.util.find_spec("xdist") else []
    done = bench.run([sys.executable, "-m", "pytest", *beside, "-m", "device", "tests/capture/device"], 240)
    reported = (done.stdout.strip().splitlines() or [done.stderr])[-1]
    failed = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    ran = " passed" in reported or bench.device == "cpu"
    return [Row("device tests", "; ".join([reported, *failed]), done.returncode == 0 and ran)]


def samples(bench: Bench) -> list[Row]:
    """The sample pipeline, two ranks on one device over gloo."""
    rows = []
    for leak in ("none", "stage-backward-cycle", "param-group-cycle", "kept-outputs"):
        words = [PIPELINE, "--leak", leak, "--device", bench.device]
        status, verdict, _ = bench.leakscope(f"pipeline_{leak}", words, ["--ranks", "2", "--steps", "12"])
        rows.append(Row(f"pipeline, {leak}", verdict, status == (CLEAN if leak == "none" else LEAKS)))
    return rows


def failure(bench: Bench) -> list[Row]:
    """An allocation that fails, and the snapshot's arithmetic of it."""
    if bench.device == "cpu":
        return [Row("out of memory", "only on a GPU: the host's memory would have to be filled", True)]
    status, verdict, reported = bench.leakscope("out_of_memory", bench.script("out_of_memory", "--steps", "4000"))
    done = bench.run([sys.executable, "-m", "leakscope", "snapshot", str(bench.folder / "out_of_memory")])
    arithmetic = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("to be reserved")]
    is_reported = "out of memory" in reported.lower()
    return [
        Row("out of memory", "; ".join([verdict, *arithmetic[:1]]), status == 1 and is_reported and bool(arithmetic))
    ]


def cost(bench: Bench) -> list[Row]:
    """A transformer of 60 steps, plain and under leakscope with what costs."""
    ways: dict[str, Sequence[str] | None] = {
        "plain": None,
        "leakscope": (),
        "--lifetimes": ("--lifetimes",),
        "--snapshot always": ("--snapshot", "always"),
    }
    rows, plain = [], None
    for name, options in ways.items():
        words = bench.script("transformer")
        if options is None:
            output = bench.run([sys.executable, *words]).stdout
        else:
            output = bench.leakscope(f"cost_{name.strip('-').replace(' ', '_')}", words, options)[2]
        figures = next((json.loads(line) for line in output.splitlines() if line.startswith('{"step_ms')), None)
        if figures is None:
            rows.append(Row(f"transformer, {name}", "no figures", False))
            continue
        plain = plain or figures
        ratio = figures["step_ms"] / plain["step_ms"]
        text = f"{figures['step_ms']:.2f} ms a step (x{ratio:.3f}), peak {figures['peak_mib']:.1f} MiB"
        same = figures["loss"] == plain["loss"] and figures["peak_mib"] == plain["peak_mib"]
        rows.append(Row(f"transformer, {name}", text, same))
    return rows


def clean_runs(bench: Bench) -> list[Row]:
    """Trainings without a leak that use what only a GPU has."""
    rows = []
    for part in ("nccl", "graphs", "compiled"):
        if part == "graphs" and bench.device == "cpu":
            continue
        status, verdict, _ = bench.leakscope(part, bench.script(part, "--steps", "20"))
        rows.append(Row(part, verdict, status == CLEAN))
    return rows


def backward(bench: Bench) -> list[Row]:
    """The split backward's peak beside torch's."""
    done = bench.run([sys.executable, *bench.script("backward")])
    if done.returncode:
        return [Row("split backward", (done.stderr.splitlines() or ["failed"])[-1], False)]
    figures = json.loads(done.stdout.splitlines()[-1])
    if not figures["torch_mib"]:
        return [Row("split backward, peak", "only a GPU counts it", bench.device == "cpu")]
    text = f"torch {figures['torch_mib']:.1f} MiB, ours {figures['leakscope_mib']:.1f} MiB (x{figures['ratio']:.2f})"
    return [Row("split backward, peak", text, figures["ratio"] < 1)]


PARTS: dict[str, Callable[[Bench], list[Row]]] = {
    function.__name__: function for function in (samples, failure, cost, clean_runs, backward, tests)
}


def device_name(device: str) -> str:
    """What the device calls itself; raises SystemExit where it is not there."""
    import torch

    if device == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise SystemExit(
            "there is no GPU that this torch can use: install a build of torch with CUDA on a machine with one"
        )
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def main() -> int:
    """Run the parts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the command itself")
    parser.add_argument("--folder", type=Path, default=Path("gpu_runs"))
    parser.add_argument("--seconds", type=float, default=ALL_SECONDS, help="for everything; what is left is left out")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    lines = [device_name(arguments.device), "", "| part | told | as expected |", "|-|-|-|"]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.device, arguments.folder.resolve(), time.monotonic() + arguments.seconds)
    good = True
    for name in arguments.only.split(","):
        began = time.monotonic()
        rows = PARTS[name](bench) if began < bench.ends else [Row(name, "left out: the time is over", False)]
        for row in rows:
            lines.append(f"| {row.part} | {row.output} | {'yes' if row.as_expected else 'NO'} |")
            good &= row.as_expected
        sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s\n")
        (arguments.folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pack(arguments.folder)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if good else 1


def pack(folder: Path) -> None:
    """The sample pipeline's runs as one file, without logs and without what only a reader of allocators wants."""
    with tarfile.open(folder / "runs.tar.gz", "w:gz") as archive:
        for path in sorted(folder.glob("pipeline_*/**/*")):
            if path.is_file() and "logs" not in path.parts and path.suffix != ".pickle":
                archive.add(path, path.relative_to(folder))


if __name__ == "__main__":
    raise SystemExit(main())
