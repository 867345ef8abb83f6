"""`run` writes each requested format to its file, also for paths with spaces."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from support.formats import junit_rules, markdown_rules, sarif_rules, trace_rules

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

GROW = """
import torch
print("the script's own words")
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
for _ in range(12):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.randn(256, 256))
"""


def test_every_format_of_one_run(leakscope: Command, script: Write, tmp_path: Path) -> None:
    (tmp_path / "my project").mkdir()
    (tmp_path / ".git").mkdir()
    script(GROW, "my project/train it.py")
    files = {name: f"out.{name}" for name in ("html", "markdown", "sarif", "trace")}
    files["junit"] = "run/out.xml"  # in the folder of the run, which is not there yet
    options = [word for name, file in files.items() for word in ("--as", f"{name}={file}")]
    done = leakscope("run", "-o", "run", "--no-lifetimes", *options, "--as", "json", "my project/train it.py")
    assert done.returncode == 23, done.stderr
    (leak,) = json.loads(done.stdout)["findings"]
    assert "the script's own words" in done.stderr and "leakscope: sarif: out.sarif" in done.stderr
    assert leak["fix"] is None
    assert leak["cut"]["references"][0]["added_at"] == ["my project/train it.py:11"]

    reported = {name: (tmp_path / file).read_text(encoding="utf-8") for name, file in files.items()}
    sarif = json.loads(reported["sarif"])
    problems = [
        *sarif_rules.problems(sarif),
        *junit_rules.problems(reported["junit"]),
        *markdown_rules.problems(reported["markdown"]),
        *trace_rules.problems(json.loads(reported["trace"])),
    ]
    assert problems == []
    artifacts = [place["physicalLocation"]["artifactLocation"] for place in sarif_rules.locations(sarif)]
    assert {"uri": "my%20project/train%20it.py", "uriBaseId": "SRCROOT"} in artifacts
    assert "kept.append(torch.randn(256, 256))" in reported["markdown"] and "kept.append" in reported["html"]
    text = leakscope("report", "run").stdout
    assert "kept.append(torch.randn(256, 256))" in text and "my project/train it.py:11" in " ".join(text.split())
