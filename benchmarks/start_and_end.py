"""What a recorded run adds to a script of two seconds, by phase."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

GOAL = 1.5
"""Most seconds of the processor that starting and ending may add to a rank."""
THIS = str(Path(__file__).resolve())
PHASES = (
    "rank: import",
    "rank: looks",
    "rank: writing",
    "rank: steps",
    "rank: end",
    "launcher: start",
    "launcher: import",
    "judging",
    "page",
)
COMMANDS = (
    "import leakscope",
    "leakscope --help",
    "leakscope --version",
    "leakscope run --help",
    "leakscope report RUN",
)


def train(steps: int) -> None:
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        inputs = torch.randn(512, 512)
        optimizer.zero_grad()
        ((model(inputs) - inputs) ** 2).mean().backward()
        optimizer.step()


class Clock:
    """Seconds of the processor by phase; a phase inside another one is taken from that."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._inner = [0.0]

    def around(self, owner: Any, name: str, phase: str) -> None:
        """Count each call of a function as a phase."""
        real = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            return self.run(phase, lambda: real(*args, **kwargs))

        setattr(owner, name, timed)

    def run(self, phase: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        self._inner.append(0.0)
        try:
            return work()
        finally:
            took = time.process_time() - began
            self.phases[phase] = self.phases.get(phase, 0.0) + took - self._inner.pop()
            self._inner[-1] += took


def rank(options: str) -> int:
    """As `python -m leakscope.recorder`, and leaves its phases in the run's folder."""
    clock = Clock()
    from leakscope.recorder import __main__ as capture

    def begin(of: Any) -> None:
        from leakscope.recorder import recorder, snapshots
        from leakscope.run.writer import RankFolder

        clock.around(snapshots.SnapshotTaker, "take", "rank: looks")
        clock.around(RankFolder, "write_snapshot", "rank: writing")
        clock.around(recorder.Recorder, "boundary", "rank: steps")
        clock.around(recorder.Recorder, "finish", "rank: end")
        real(of)

    real = capture._Rank.begin
    capture._Rank.begin = lambda of: clock.run("rank: import", lambda: begin(of))  # type: ignore[method-assign]
    try:
        return capture.main([options])
    finally:
        folder = Path(json.loads(options)["folder"])
        (folder / f"phases_{os.environ.get('RANK', '0')}.json").write_text(json.dumps(clock.phases))


def launcher(arguments: list[str]) -> None:
    """As `leakscope run`, and leaves its phases beside the ranks'."""
    clock = Clock()
    from leakscope_cli import main, run

    from leakscope import report
    from leakscope.launch import start

    clock.around(run, "_import_what_judges", "launcher: import")
    clock.around(run, "read_and_judge", "judging")
    clock.around(report, "write", "page")
    command = start.rank_command
    start.rank_command = lambda options: [sys.executable, THIS, "--rank", command(options)[-1]]
    try:
        main(arguments)
    finally:
        clock.phases["launcher: start"] = time.process_time() - sum(clock.phases.values())
        folder = Path(arguments[arguments.index("-o") + 1])
        (folder / "phases_launcher.json").write_text(json.dumps(clock.phases))


def processor(command: list[str]) -> float:
    """Seconds of the processor that a command took with all it started."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 23):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def added(ranks: int, steps: int, folder: str) -> tuple[dict[str, float], float]:
    """Seconds that a rank more than plain took, in all and by phase; and those of a plain rank."""
    script = [THIS, "--train", str(steps)]
    several = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    plain = processor([sys.executable, *several, *script])
    run = ["run", "-q", "-o", f"{folder}/run", "-f", "--ranks", str(ranks), *script]
    taken = {"in all": (processor([sys.executable, THIS, "--launcher", *run]) - plain) / ranks}
    for path in Path(folder, "run").glob("phases_*.json"):
        for phase, seconds in json.loads(path.read_text()).items():
            taken[phase] = taken.get(phase, 0.0) + seconds / ranks
    if ranks == 1 and importlib.util.find_spec("memray"):
        memray = [sys.executable, "-m", "memray", "run", "-q", "-f", "-o", f"{folder}/memray.bin", *script]
        taken["memray run"] = processor(memray) - plain
    return taken, plain / ranks


def commands(rounds: int, run: str) -> None:
    """Seconds that each of the quick commands took, those of an empty Python taken off."""
    empty = median(processor([sys.executable, "-c", "pass"]) for _ in range(rounds))
    for name in COMMANDS:
        program, *words = name.replace("RUN", run).split()
        command = ["-c", name] if program == "import" else ["-m", program, *words]
        seconds = median(processor([sys.executable, *command]) for _ in range(rounds))
        print(f"{name:24s}{seconds - empty:7.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=lambda text: [int(number) for number in text.split(",")], default=[1, 2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            added(ranks, 8, folder)  # what Python compiles is there from here on
            rounds = [added(ranks, options.steps, folder) for _ in range(options.rounds)]
            taken = {name: median(one[name] for one, _ in rounds) for name in rounds[0][0]}
            print(f"{ranks} rank{'s' * (ranks > 1)}, of {median(plain for _, plain in rounds):.2f} s each", flush=True)
            print(f"  leakscope adds a rank   {taken['in all']:6.2f} s   goal: {GOAL} s")
            for phase in PHASES:
                print(f"    {phase:22s}{taken.get(phase, 0.0):6.2f} s")
            if ranks == 1:
                print(
                    f"  memray run adds         {taken['memray run']:6.2f} s"
                    if "memray run" in taken
                    else "  no memray"
                )
        commands(options.rounds, f"{folder}/run")


if __name__ == "__main__":
    WAYS: dict[str, Callable[[], object]] = {
        "--train": lambda: train(int(sys.argv[2])),
        "--rank": lambda: sys.exit(rank(sys.argv[2])),
        "--launcher": lambda: launcher(sys.argv[2:]),
    }
    WAYS.get(sys.argv[1] if len(sys.argv) > 1 else "", main)()
