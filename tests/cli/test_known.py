"""Baselines and suppression files apply when a run is recorded and when it is reported again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

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


def test_a_known_leak_stays_known_when_the_run_is_told_again(leakscope: Command, script: Write, tmp_path: Path) -> None:
    script(GROW, "grow.py")
    base = leakscope("run", "-q", "-o", "base", "grow.py", "12")
    assert base.returncode == 23, base.stderr
    said = "no new leaks: 1 known leak (2.00 MiB) suppressed by base/findings.json"
    again = leakscope("run", "-q", "-o", "again", "--baseline", "base", "grow.py", "12")
    assert again.returncode == 0 and said in _flat(again.stdout), again.stdout
    assert again.stdout.splitlines()[-1] == "Verdict: CLEAN: no new leak, 1 known leak suppressed (exit status 0)"
    told = leakscope("report", "--leak-exit-code", "23", "again")
    assert told.returncode == 0 and said in _flat(told.stdout)

    chained = leakscope("report", "--leak-exit-code", "23", "--baseline", "again", "base")
    assert chained.returncode == 0, "what was suppressed there is known here"

    (tmp_path / "known.txt").write_text("kept* until 2200-01-01  # issue 12\nview-hold\n")
    told = leakscope("report", "--leak-exit-code", "23", "--suppress", "known.txt", "base")
    assert told.returncode == 0 and "suppressed by known.txt:1 until 2200-01-01: issue 12" in _flat(told.stdout)
    assert "Unused suppressions: `view-hold` (known.txt:2)" in _flat(told.stdout)
    (tmp_path / "known.txt").write_text("kept* until 2020-01-01\n")
    assert json.loads((tmp_path / "base" / "run.json").read_text())["started"] > "2020-01-01"
    told = leakscope("report", "--leak-exit-code", "23", "--suppress", "known.txt", "base")
    assert told.returncode == 23 and "Expired suppressions: `kept*`" in _flat(told.stdout)

    for options, verdict in (((), "leaks"), (("--horizon", 1), "clean"), (("--min-bytes", "1 MB"), "clean")):
        judged = json.loads(leakscope("report", "--as", "json", *options, "base").stdout)
        assert judged["verdict"] == verdict, "thresholds stand in place of the run's"


def test_what_was_not_seen_is_not_fixed(leakscope: Command, script: Write, tmp_path: Path) -> None:
    script(GROW, "grow.py")
    script(GROW.replace("    kept", "    if _ == 5: raise RuntimeError\n    kept"), "broken.py")
    script(GROW.replace("    kept.append(torch.randn(256, 256))", "    pass"), "mended.py")
    (tmp_path / "faster").mkdir()
    script(GROW.replace("256, 256", "256, 512"), "faster/grow.py")
    for folder, name, steps, status in (
        ("base", "grow.py", 12, 23), ("short", "grow.py", 3, 0), ("broken", "broken.py", 12, 1),
        ("mended", "mended.py", 12, 0), ("faster", "faster/grow.py", 12, 23),
    ):  # fmt: skip
        assert leakscope("run", "-q", "-o", f"runs/{folder}", name, steps).returncode == status, folder
    for options, status in (((), 23), (("--horizon", 1), 0), (("--min-bytes", "1 MB"), 0)):
        assert leakscope("compare", *options, "runs/mended", "runs/base").returncode == status, options
    told = {
        other: leakscope("compare", "runs/base", f"runs/{other}") for other in ("short", "broken", "mended", "faster")
    }
    assert {name: done.returncode for name, done in told.items()} == {
        "short": 2, "broken": 2, "mended": 0, "faster": 23,
    }  # fmt: skip
    for name in ("short", "broken"):
        assert told[name].stderr.startswith("leakscope: NEW ") and told[name].stderr.count("\n") == 1
        assert "\nFixed (" not in told[name].stdout and "(exit status 2)" in told[name].stdout
    assert "no new or worse leaks: 1 fixed" in told["mended"].stdout
    assert "- 256.00 KiB -> 512.00 KiB a step: kept gains" in told["faster"].stdout
    assert "at faster/grow.py:10" in told["faster"].stdout
    assert leakscope("compare", "runs/short", "runs/base").returncode == 2
    assert leakscope("compare", "--worse", "2.5", "runs/base", "runs/faster").returncode == 0
    page = leakscope("compare", "runs/base", "runs/faster", "--as", "html", "-o", "page.html")
    assert page.returncode == 23 and "Leaks: 1 worse" in (tmp_path / "page.html").read_text()


def _flat(text: str) -> str:
    return " ".join(text.split())
