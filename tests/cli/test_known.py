"""Is what is known said to be known: in the run that was told so, and whenever it is told again?"""

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
    said = "no new leak: 1 known leak (2.00 MiB) is suppressed by base/findings.json"
    again = leakscope("run", "-q", "-o", "again", "--baseline", "base", "grow.py", "12")
    assert again.returncode == 0 and said in _flat(again.stdout), again.stdout
    told = leakscope("report", "--leak-exit-code", "23", "again")
    assert told.returncode == 0 and said in _flat(told.stdout)

    (tmp_path / "known.txt").write_text("kept* until 2200-01-01  # issue 12\nview-hold\n")
    told = leakscope("report", "--leak-exit-code", "23", "--suppress", "known.txt", "base")
    assert told.returncode == 0 and "suppressed by known.txt:1 until 2200-01-01: issue 12" in _flat(told.stdout)
    assert "Suppressed, but not found: `view-hold` (known.txt:2)" in _flat(told.stdout)
    (tmp_path / "known.txt").write_text("kept* until 2020-01-01\n")
    assert json.loads((tmp_path / "base" / "run.json").read_text())["started"] > "2020-01-01"
    told = leakscope("report", "--leak-exit-code", "23", "--suppress", "known.txt", "base")
    assert told.returncode == 23 and "No longer suppressed: `kept*`" in _flat(told.stdout)


def _flat(text: str) -> str:
    return " ".join(text.split())
