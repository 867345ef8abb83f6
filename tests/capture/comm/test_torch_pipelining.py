"""Memory that torch.distributed.pipelining retains is attributed to torch to the byte."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import SAMPLES

pytestmark = pytest.mark.process

SAMPLE = SAMPLES / "torch_pipelining" / "train.py"
TENSOR = 128 * 1024
"""A boundary tensor of the sample."""
COUNTED_AT = 5
"""The last step at which the script has counted and leakscope has looked: step 6 ends the run."""

ARGS = "PipelineStage.args_recv_info[i][i].buffer"
GRADS = "PipelineStage.grad_recv_info[i][i].buffer"
IN_GRAD = f"{ARGS}.grad"
OUTPUTS, CACHE = "PipelineStage.output_chunks", "PipelineStage.fwd_cache"


@dataclass(frozen=True)
class Seen:
    """The findings, and what the script counted by itself in the same run."""

    findings: list[dict[str, Any]]
    counted: dict[str, dict[int, int]]
    """Attribute to rank to bytes."""

    def of(self, holder: str) -> dict[str, Any]:
        (found,) = [f for f in self.findings if f["title"].startswith(f"torch's {holder} retains ")]
        return found

    def bytes(self, holder: str) -> dict[int, int]:
        """Rank to bytes at the counted step."""
        return {s["rank"]: s["bytes"] for s in self.of(holder)["occurrences"] if s["step"] == COUNTED_AT}


def run(leakscope: Callable[..., Any], folder: Path, status: int, *words: str, options: tuple[str, ...] = ()) -> Seen:
    options = ("--steps", "6", "--ranks", "2", "--gc-diff", "never", "-q", "-o", str(folder), *options)
    done = leakscope("run", *options, SAMPLE, "--count", "--schedule", *words, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    report = json.loads((folder / "findings.json").read_text())
    assert [e["kind"] for e in report["run"]["ended"].values()] == ["stopped"] * 2
    return Seen(report["findings"], _counted(folder, 2))


def _counted(folder: Path, ranks: int) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for rank in range(ranks):
        text = (folder / "logs" / f"rank_{rank:04d}.stdout.log").read_text()
        (line,) = re.findall(rf"rank {rank}: step {COUNTED_AT}: (stage .*)", text)
        for name, _, size in re.findall(r"stage \d+ ([\w.]+) (\d+) \((\d+) KiB\)", line):
            found[name][rank] += int(size) * 1024
    return found


def test_zero_bubble_keeps_gradients_in_its_receive_buffers(leakscope: Callable[..., Any], tmp_path: Path) -> None:
    """What is kept from step to step agrees with the script's own count on every rank, and is torch's fault alone."""
    seen = run(leakscope, tmp_path / "run", 0, "zero-bubble")
    assert [f for f in seen.findings if f["origin"] != "library" and f["severity"] == "leak"] == []
    for holder, attribute, issue in (
        (ARGS, "args_recv_info.buffer", "#136380"),
        (GRADS, "grad_recv_info.buffer", "#136380"),
        (IN_GRAD, "args_recv_info.buffer.grad", "#164329"),
        (OUTPUTS, "output_chunks", "#159251"),
    ):
        assert seen.bytes(holder) == seen.counted[attribute]
        assert issue in seen.of(holder)["advice"]
    for finding in seen.findings:
        at_peak = finding["rule"] in ("late-release", "idle-memory")
        assert finding["bytes_per_step"] == 0 and finding["severity"] in ("note", *["avoidable"] * at_peak)
    sent = seen.of(CACHE)
    assert (sent["rule"], sent["origin"]) == ("late-release", "library") and "#128910" in sent["advice"]
    assert sent["retained_bytes"] % TENSOR == 0 and sent["retained_bytes"] > 0
