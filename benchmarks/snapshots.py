"""The time to read a memory snapshot of a million events, beside torch's own viewer."""

from __future__ import annotations

import argparse
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
SECONDS, BYTES = 10.0, 1_500_000_000

_ANALYSE = """
import sys
from pathlib import Path
from leakscope.memory_snapshot import examine
from leakscope.report.memory_snapshot import snapshot_text
print(snapshot_text(examine([Path(sys.argv[1])])).splitlines()[0])
"""


@dataclass(frozen=True)
class Measured:
    """One process that ran to its end."""

    seconds: float
    cpu_seconds: float
    """User and system time, which other work on the machine disturbs less."""
    peak_bytes: int
    first_line: str


def synthetic_snapshot(events: int, stacks: int = 2000, seed: int = 7) -> dict[str, Any]:
    """A snapshot of at least `events` events: 3 events for each of 400 allocations a step, one kept each step (a
    leak).
    """
    choose = random.Random(seed)
    frames = _frames(choose, stacks)
    actions = ("alloc", "free_requested", "free_completed")
    trace: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    kept: list[tuple[int, int, int]] = []
    shape = [(choose.randrange(1, 5000) * 512 - choose.randrange(512), choose.randrange(stacks)) for _ in range(400)]
    base, clock = 0x7F0000000000, 1_760_000_000_000_000
    while len(trace) < events:
        step = len(kept)
        notes += [
            {"stage": stage, "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": clock}
            for stage in ("START", "END")
        ]
        leaked = (base + (1 << 40) + step * (1 << 20), 1 << 20, 0)
        kept.append(leaked)
        for number, (address, size, stack) in enumerate(
            [leaked, *((base + i * (4 << 20), *made) for i, made in enumerate(shape))]
        ):
            for action in actions[: 1 if number == 0 else 3]:
                clock += choose.randrange(3, 40)
                event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": clock}
                trace.append(
                    {**event, "compile_context": b"N/A".decode(), "user_metadata": "", "frames": frames[stack]}
                )
    blocks = [
        {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames[stack]}
        for address, size, stack in kept
    ]
    total = len(kept) << 20
    segment = {
        "device": 0, "address": base + (1 << 40), "total_size": total, "allocated_size": total,
        "active_size": total, "requested_size": total, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip
    return {"segments": [segment], "device_traces": [trace], "allocator_settings": {}, "external_annotations": notes}


def _frames(choose: random.Random, stacks: int) -> list[list[dict[str, Any]]]:
    pool = [{"name": f"function_{i}", "filename": f"/home/me/model/layer_{i % 60}.py", "line": i} for i in range(900)]
    return [[pool[0] if stack == 0 else choose.choice(pool), *choose.choices(pool, k=24)] for stack in range(stacks)]


def run_measured(command: list[str], output: Path) -> Measured:
    """Run `command`; peak memory is that of the process itself, as wait4 tells it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = time.perf_counter()
    with output.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    with output.open(errors="replace") as reported:
        first = reported.readline().strip()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {first} ...")
    return Measured(
        seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), first
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="keep the snapshot in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = options.keep or Path(folder) / "snapshot.pickle"
        snapshot = synthetic_snapshot(options.events)
        events = len(snapshot["device_traces"][0])
        file.write_bytes(pickle.dumps(snapshot))
        del snapshot
        print(f"{events:,} events, {file.stat().st_size / 1e6:.0f} MB")
        page = str(Path(folder) / "out")
        ours = run_measured([sys.executable, "-c", _ANALYSE, str(file)], Path(folder) / "told")
        print(
            f"{'leakscope snapshot':<28} {ours.seconds:6.1f} s {ours.cpu_seconds:6.1f} s cpu "
            f"{ours.peak_bytes / 1e6:7.0f} MB    {ours.first_line}"
        )
        for name in ("trace_plot", "segment_plot", "trace", "stats", "memory", "segments"):
            reported = [] if name in ("stats", "trace") else ["-o", page]
            command = [sys.executable, "-m", "torch.cuda._memory_viz", name, str(file), *reported]
            try:
                peer = run_measured(command, Path(folder) / "told")
            except RuntimeError:
                print(f"{'_memory_viz ' + name:<28} failed on this machine (it downloads the script it draws with)")
                continue
            print(
                f"{'_memory_viz ' + name:<28} {peer.seconds:6.1f} s {peer.cpu_seconds:6.1f} s cpu "
                f"{peer.peak_bytes / 1e6:7.0f} MB "
                f"   x{peer.seconds / ours.seconds:.2f} time, x{peer.cpu_seconds / ours.cpu_seconds:.2f} cpu, "
                f"x{peer.peak_bytes / ours.peak_bytes:.2f} memory"
            )
    return int(ours.seconds > SECONDS or ours.peak_bytes > BYTES)


if __name__ == "__main__":
    sys.exit(main())
