"""Baselines, suppressions and thresholds apply when a run is recorded, reported again and compared."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

GROW = """
import sys, torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
for _ in range(int(sys.argv[1])):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.randn(256, 256))
"""


def test_what_is_known_stays_known_and_what_was_not_seen_is_not_fixed(
    leakscope: Command, script: Write, tmp_path: Path
) -> None:
    script(GROW, "grow.py")
    script(GROW.replace("    kept.append(torch.randn(256, 256))", "    pass"), "mended.py")
    for folder, name, steps, status in (
        ("base", "grow.py", 12, 23),
        ("short", "grow.py", 3, 0),
        ("mended", "mended.py", 12, 0),
    ):
        assert leakscope("run", "-q", "-o", folder, name, steps).returncode == status, folder
    again = leakscope("run", "-q", "-o", "again", "--baseline", "base", "grow.py", 12)
    assert again.returncode == 0, again.stdout

    def reported(run: str, *options: object) -> Any:
        done = leakscope("report", "--leak-exit-code", 23, "--as", "json", *options, run)
        data = json.loads(done.stdout)
        assert (done.returncode == 23) is (data["verdict"] == "leaks")
        return data

    (known,) = reported("again")["suppressed"]
    assert known["suppressed_by"]["file"].endswith("findings.json")
    assert reported("base", "--baseline", "again")["verdict"] == "clean", "what was suppressed there is known here"

    (tmp_path / "known.txt").write_text("kept* until 2200-01-01  # issue 12\nview-hold\n")
    reported_ones = reported("base", "--suppress", "known.txt")
    by = reported_ones["suppressed"][0]["suppressed_by"]
    assert (by["reason"], by["until"], by["line"]) == ("issue 12", "2200-01-01", 1)
    assert [unused["pattern"] for unused in reported_ones["unused_suppressions"]] == ["view-hold"]
    (tmp_path / "known.txt").write_text("kept* until 2020-01-01\n")
    reported_ones = reported("base", "--suppress", "known.txt")
    assert reported_ones["verdict"] == "leaks" and [
        one["pattern"] for one in reported_ones["expired_suppressions"]
    ] == ["kept*"]

    for options, verdict in (((), "leaks"), (("--horizon", 1), "clean"), (("--min-bytes", "1 MB"), "clean")):
        assert reported("base", *options)["verdict"] == verdict, options
        status = leakscope("compare", *options, "mended", "base").returncode
        assert status == (23 if verdict == "leaks" else 0), options
    unclear = leakscope("compare", "base", "short")
    assert unclear.returncode == 2 and unclear.stderr.count("\n") == 1
    compared = json.loads(leakscope("compare", "--as", "json", "base", "mended").stdout)
    assert compared["counts"]["fixed"] == 1 and compared["exit_status"] == 0
    assert leakscope("compare", "short", "base").returncode == 2
