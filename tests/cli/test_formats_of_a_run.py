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
TINY = """
class Tiny:
    name, suffix = "tiny", ".tiny"

    def render(self, run, findings):
        return f"{findings.verdict} of {run.command[0]}"

TINY = Tiny()
"""


def install_tiny(folder: Path) -> None:
    """A package that adds a format, as an installer leaves it."""
    about = folder / "tiny_format-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny_format\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[leakscope.formats]\ntiny = tiny_format:TINY\n")
    (folder / "tiny_format.py").write_text(TINY)


def test_every_format_of_one_run(leakscope_process: Command, script: Write, tmp_path: Path) -> None:
    (tmp_path / "my project").mkdir()
    (tmp_path / ".git").mkdir()
    script(GROW, "my project/train it.py")
    install_tiny(tmp_path / "site")
    files = {name: f"out.{name}" for name in ("html", "markdown", "sarif", "trace", "tiny")}
    files["junit"] = "run/out.xml"  # in the folder of the run, which is not there yet
    asked = [word for name, file in files.items() for word in ("--as", f"{name}={file}")]
    done = leakscope_process(
        "run", "-o", "run", "--no-lifetimes", *asked, "--as", "json", "my project/train it.py",
        env={"PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    assert done.returncode == 23, done.stderr
    (leak,) = json.loads(done.stdout)["findings"]
    assert "the script's own words" in done.stderr and "leakscope: sarif: out.sarif" in done.stderr
    assert leak["suggestion"] is None or leak["suggestion"]["where"].startswith("my project/train it.py:")
    assert leak["cut"]["references"][0]["added_at"] == ["my project/train it.py:11"]

    told = {name: (tmp_path / file).read_text(encoding="utf-8") for name, file in files.items()}
    assert told["tiny"] == "leaks of my project/train it.py"
    sarif = json.loads(told["sarif"])
    problems = [
        *sarif_rules.problems(sarif),
        *junit_rules.problems(told["junit"]),
        *markdown_rules.problems(told["markdown"]),
        *trace_rules.problems(json.loads(told["trace"])),
    ]
    assert problems == []
    artifacts = [place["physicalLocation"]["artifactLocation"] for place in sarif_rules.locations(sarif)]
    assert {"uri": "my%20project/train%20it.py", "uriBaseId": "SRCROOT"} in artifacts
    assert "kept.append(torch.randn(256, 256))" in told["markdown"] and "kept.append" in told["html"]
    text = leakscope_process("report", "run").stdout
    assert "kept.append(torch.randn(256, 256))" in text and "my project/train it.py:11" in " ".join(text.split())
