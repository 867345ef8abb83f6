"""What does leakscope cost? Wall time of one training with and without it, in turn, as a ratio.

`python benchmarks/overhead.py` trains a small transformer of about 60 ms a step on the CPU, for at least 60 s each way.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 2
SECONDS = 35.0
"""Length of one training; two of them each way make the 60 s."""


def train(steps: int) -> None:
    """A two-layer encoder on random tokens; prints the seconds that `steps` steps took."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    embedding = nn.Embedding(1000, 128)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 2)
    head = nn.Linear(128, 1000)
    model = nn.Sequential(embedding, encoder, head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    began = time.perf_counter()
    for _ in range(steps):
        tokens = torch.randint(0, 1000, (8, 64))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(time.perf_counter() - began)


def timed(command: list[str]) -> tuple[float, float]:
    """(seconds of the whole command, seconds of its training loop)."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 23):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return seconds, float(done.stdout.split()[0])


def main() -> None:
    this = str(Path(__file__).resolve())
    _, loop = timed([sys.executable, this, "100"])
    steps = max(100, round(SECONDS / (loop / 100)))
    print(f"{steps} steps of {loop * 10:.0f} ms, {ROUNDS} times each way")
    plain, watched = [0.0, 0.0], [0.0, 0.0]
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            without = timed([sys.executable, this, str(steps)])
            run = [sys.executable, "-m", "leakscope", "run", "-q", "-o", f"{folder}/run", this, str(steps)]
            with_it = timed(run)
        print(f"round {number + 1}: {without[0]:.1f} s without, {with_it[0]:.1f} s with")
        plain = [a + b for a, b in zip(plain, without, strict=True)]
        watched = [a + b for a, b in zip(watched, with_it, strict=True)]
    print(f"whole command, report included: {plain[0]:.1f} s -> {watched[0]:.1f} s, x{watched[0] / plain[0]:.3f}")
    print(f"training loop alone:            {plain[1]:.1f} s -> {watched[1]:.1f} s, x{watched[1] / plain[1]:.3f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(int(sys.argv[1]))
    else:
        main()
