"""Distributed-autograd contexts left open are reported with the line that opened them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import SAMPLES

pytestmark = pytest.mark.process

Command = Callable[..., "subprocess.CompletedProcess[str]"]
SAMPLE = SAMPLES / "dist_autograd" / "train.py"
WEIGHT = 256 * 256 * 4
"""Bytes of the gradient that every context gathers on each worker."""
ACTIVATION = 64 * 256 * 4
STEPS = 10


def test_contexts_left_open_are_named_with_the_line_that_opened_them(leakscope: Command, tmp_path: Path) -> None:
    lines = SAMPLE.read_text().splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("def microbatch_closed_by_hand("))
    entered = next(k for k in range(start, len(lines)) if "__enter__()" in lines[k]) + 1
    words = ("--leak", "failed-backward", "--steps", STEPS)
    done = leakscope("run", "-q", "--ranks", 2, "-o", tmp_path / "run", SAMPLE, *words, timeout=150)
    assert done.returncode == 23, done.stdout + done.stderr
    assert f"worker0: {STEPS} contexts open" in done.stdout
    (finding,) = [
        f for f in json.loads((tmp_path / "run" / "findings.json").read_text())["findings"] if f["severity"] == "leak"
    ]
    assert (finding["rule"], finding["ranks"]) == ("dist-autograd-context", [0, 1])
    assert f"train.py:{entered} " in finding["title"]
    assert finding["bytes_per_step"] == WEIGHT + 2 * ACTIVATION
    assert finding["cut"]["frees_bytes"] == finding["retained_bytes"]
