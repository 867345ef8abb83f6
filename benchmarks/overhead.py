"""The overhead of a recorded training beside the plain one and beside other profilers."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

GOAL = 1.02
"""Most that the loop may cost with default options, as a ratio to a plain one of 1,000 steps."""
PROFILED_SHARE = 0.05
"""Share of the steps that torch.profiler is given: it keeps each event, and would run out of memory."""
THIS = str(Path(__file__).resolve())


def training_step() -> Callable[[], None]:
    """One step of a two-layer encoder on random tokens."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 2)
    model = nn.Sequential(nn.Embedding(1000, 128), encoder, nn.Linear(128, 1000))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        tokens = torch.randint(0, 1000, (8, 64))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def train(steps: int, way: str) -> None:
    """Prints what the loop took, in seconds of the clock and of the processor."""
    step = training_step()
    began, at_work = time.perf_counter(), time.process_time()
    if way == "torch.profiler":
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True):
            for _ in range(steps):
                step()
    else:
        for _ in range(steps):
            step()
            if way == "gc.collect":
                gc.collect()
    print(time.perf_counter() - began, time.process_time() - at_work)


@dataclass(frozen=True)
class Took:
    """Seconds of one training."""

    loop: float
    loop_cpu: float
    command: float
    command_cpu: float


def command(way: str, steps: int, folder: str) -> list[str]:
    """How a training runs that way."""
    python, script = sys.executable, [THIS, "--train", way, "--steps", str(steps)]
    if way == "leakscope":
        return [python, "-m", "leakscope", "run", "-q", "-o", f"{folder}/run", *script]
    if way.startswith("memray"):
        native = ["--native"] if way.endswith("native") else []
        return [python, "-m", "memray", "run", "-q", *native, "-o", f"{folder}/memray.bin", *script]
    return [python, *script]


def took(way: str, steps: int) -> Took:
    """One training, with all the processes that it starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command(way, steps, folder), capture_output=True, text=True, check=False)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    if done.returncode not in (0, 23):
        raise SystemExit(f"{way} failed:\n{done.stderr}")
    loop, loop_cpu = map(float, done.stdout.split()[:2])
    return Took(loop, loop_cpu, seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def steps_of(way: str, steps: int) -> int:
    return max(20, round(steps * PROFILED_SHARE)) if way == "torch.profiler" else steps


WAYS = ("leakscope", "memray", "memray native", "gc.collect", "torch.profiler")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", type=lambda text: text.split(","), default=WAYS)
    parser.add_argument("--train", default="")
    options = parser.parse_args()
    if options.train:
        train(options.steps, options.train)
        return
    there = [
        way
        for way in WAYS
        if way in options.only and (way.split()[0] != "memray" or importlib.util.find_spec("memray"))
    ]
    ratios: dict[str, list[tuple[float, ...]]] = {way: [] for way in there}
    for number in range(options.rounds):
        plain = took("plain", options.steps)
        print(
            f"round {number + 1}: {options.steps} plain steps of {plain.loop / options.steps * 1e3:.1f} ms, "
            f"{plain.loop_cpu / options.steps * 1e3:.1f} ms of the processor",
            flush=True,
        )
        for way in there:
            steps = steps_of(way, options.steps)
            seen = took(way, steps)
            alike = plain if steps == options.steps else took("plain", steps)
            ratios[way].append(tuple(a / b for a, b in zip(astuple(seen), astuple(alike), strict=True)))
    print(f"{'':16s}{'loop':>9s}{'its CPU':>9s}{'command':>9s}{'its CPU':>9s}")
    for way in options.only:
        columns = zip(*ratios[way], strict=True) if way in ratios else ()
        shown = "".join(f"   x{median(column):.3f}" for column in columns) or "   not installed"
        print(f"{way:16s}{shown}" + (f"   goal: loop x{GOAL}" if way == "leakscope" else ""))


if __name__ == "__main__":
    main()
