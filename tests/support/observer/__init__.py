"""Runs a script under python and under leakscope, and compares what each leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SEEDED = "import random, numpy, torch; random.seed(0); numpy.random.seed(0); torch.manual_seed(0)\n"
SITE = Path(__file__).with_name("site")


@dataclass(frozen=True)
class Observed:
    """One run of a script."""

    status: int
    stdout: str
    left: dict[str, Any]
    """What the process had at its end, by name; empty where it did not come to its exit handlers."""


def observe(command: Sequence[str], script: Path, folder: Path, name: str, timeout_s: float) -> Observed:
    """Run a command, and read what the process of the script has left. Raises subprocess.TimeoutExpired."""
    reported = folder / name
    path = os.pathsep.join(part for part in (str(SITE), os.environ.get("PYTHONPATH", "")) if part)
    environment = os.environ | {
        "OBSERVED": str(reported),
        "OBSERVED_SCRIPT": str(script),
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    file = reported.with_name(f"{name}.0")
    return Observed(run.returncode, run.stdout, json.loads(file.read_text()) if file.exists() else {})


def differences(script: Path, arguments: Sequence[str], folder: Path, timeout_s: float = 300.0) -> list[str]:
    """What differs between a script run by python and the same recorded; empty where nothing does.

    Both run a copy, with what lies beside it, that seeds its random numbers first.
    """
    shutil.copytree(script.parent, folder / "scripts")
    script = folder / "scripts" / script.name
    text = script.read_text(encoding="utf-8")
    if "from __future__" not in text:
        script.write_text(_SEEDED + text, encoding="utf-8")
    plain = observe([sys.executable, str(script), *arguments], script, folder, "plain", timeout_s)
    code = (
        "import sys; from pathlib import Path; from leakscope.launch import launch; "
        "from leakscope.options import Options; "
        "o = launch(Options(script=sys.argv[1], arguments=tuple(sys.argv[3:]), folder=Path(sys.argv[2]))); "
        "sys.exit(o.status)"
    )
    recorded = observe(
        [sys.executable, "-c", code, str(script), str(folder / "run"), *arguments],
        script,
        folder,
        "recorded",
        timeout_s,
    )
    found = [] if plain.status == recorded.status else [f"exit status: {plain.status}, recorded {recorded.status}"]
    if plain.stdout != recorded.stdout:
        found.append(f"stdout: {plain.stdout[-200:]!r}, recorded {recorded.stdout[-200:]!r}")
    names = sorted({*plain.left, *recorded.left})
    return found + [
        f"{name}: {plain.left.get(name)}, recorded {recorded.left.get(name)}"
        for name in names
        if plain.left.get(name) != recorded.left.get(name)
    ]
