"""Distributed-autograd contexts left open are reported with the line that opened them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import SAMPLES

pytestmark = pytest.mark.process

Command = Callable[..., "subprocess.CompletedProcess[str]"]
SAMPLE = SAMPLES / "dist_autograd" / "train.py"
WEIGHT = 256 * 256 * 4
"""Bytes of the gradient that every context gathers on each worker."""
ACTIVATION = 64 * 256 * 4
STEPS = 10


def _run(leakscope: Command, folder: Path, leak: str) -> tuple[dict[str, Any], str]:
    done = leakscope("run", "-q", "--ranks", 2, "-o", folder, SAMPLE, "--leak", leak, "--steps", STEPS, timeout=150)
    assert done.returncode in (0, 23), done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "findings.json").read_text())
    assert {end["kind"] for end in found["run"]["ended"].values()} == {"finished"}
    return found, done.stdout


def _line(function: str) -> int:
    """Line on which a function of the sample enters its context."""
    lines = SAMPLE.read_text().splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"def {function}("))
    return next(k for k in range(start, len(lines)) if "__enter__()" in lines[k]) + 1


@pytest.mark.parametrize(
    ("leak", "function", "contexts", "per_step"),
    [
        ("failed-backward", "microbatch_closed_by_hand", STEPS, WEIGHT + 2 * ACTIVATION),
    ],
)
def test_contexts_left_open_are_named_with_the_line_that_opened_them(
    leakscope: Command, tmp_path: Path, leak: str, function: str, contexts: int, per_step: int
) -> None:
    found, said = _run(leakscope, tmp_path / leak, leak)
    assert re.search(rf"worker0: {contexts} contexts open, 0 backward passes running", said)
    (finding,) = [f for f in found["findings"] if f["severity"] == "leak"]
    assert (finding["rule"], finding["ranks"]) == ("dist-autograd-context", [0, 1])
    assert f"train.py:{_line(function)} {function}" in finding["title"]
    assert finding["bytes_per_step"] == per_step
    assert finding["cut"]["frees_bytes"] == finding["retained_bytes"]
