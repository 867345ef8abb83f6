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
MICROBATCHES = 8
COUNTED_AT = 5
"""The last step at which the script has counted and leakscope has looked: step 6 ends the run."""

ARGS = "PipelineStage.args_recv_info[i][i].buffer"
GRADS = "PipelineStage.grad_recv_info[i][i].buffer"
PASSED_ON = {ARGS: f"{ARGS} (set_local_fwd_input)", GRADS: f"{GRADS} (set_local_bwd_input)"}
IN_GRAD = f"{ARGS}.grad"
OUTPUTS, CACHE, SENDS = "PipelineStage.output_chunks", "PipelineStage.fwd_cache", "send handles of _step_microbatches()"
BACKWARD_STATE = "PipelineStage.backward_state"


@dataclass(frozen=True)
class Seen:
    """What leakscope told, and what the script counted by itself in the same run."""

    findings: list[dict[str, Any]]
    counted: dict[str, dict[int, int]]
    """Attribute to rank to bytes."""

    def of(self, holder: str) -> dict[str, Any]:
        (found,) = self._all(holder)
        return found

    def _all(self, holder: str) -> list[dict[str, Any]]:
        return [f for f in self.findings if f["title"].startswith(f"torch's {holder} retains ")]

    def names(self, holder: str) -> bool:
        return bool(self._all(holder))

    def bytes(self, holder: str) -> dict[int, int]:
        """Rank to bytes at the counted step."""
        found = self.of(holder)["occurrences"] if self.names(holder) else []
        return {s["rank"]: s["bytes"] for s in found if s["step"] == COUNTED_AT}


def run(
    leakscope: Callable[..., Any], folder: Path, ranks: int, *options: str, ends: tuple[int, str] = (0, "clean")
) -> Seen:
    done = leakscope(
        "run", "--steps", 6, "--ranks", ranks, "--gc-diff", "never", "-q", "-o", folder, *options[:-2], SAMPLE,
        "--count", "--schedule", *options[-2].split(), *options[-1].split(), timeout=300,
    )  # fmt: skip
    assert done.returncode == ends[0], done.stdout + done.stderr
    told = json.loads((folder / "findings.json").read_text())
    assert told["verdict"] == ends[1] and not [u for u in told["unjudged"] if "failed" in u["why"]], told["unjudged"]
    assert [e["kind"] for e in told["run"]["ended"].values()] == ["stopped"] * ranks
    return Seen(told["findings"], _counted(folder, ranks))


def _counted(folder: Path, ranks: int) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for rank in range(ranks):
        text = (folder / "logs" / f"rank_{rank:04d}.stdout.log").read_text()
        (line,) = re.findall(rf"rank {rank}: step {COUNTED_AT}: (stage .*)", text)
        for name, _, size in re.findall(r"stage \d+ ([\w.]+) (\d+) \((\d+) KiB\)", line):
            found[name][rank] += int(size) * 1024
    return found


def check_what_stays(seen: Seen) -> None:
    """What is kept from step to step agrees with the script's own count on every rank, and is torch's fault alone."""
    assert [f for f in seen.findings if f["origin"] != "library" and f["severity"] == "leak"] == []
    for attribute, holder in (("args_recv_info.buffer", ARGS), ("grad_recv_info.buffer", GRADS)):
        received, passed_on = seen.bytes(holder), seen.bytes(PASSED_ON[holder])
        assert {r: received.get(r, 0) + passed_on.get(r, 0) for r in {*received, *passed_on}} == seen.counted[attribute]
        assert "pytorch/pytorch#136380" in seen.of(holder)["advice"]
    # a gradient that the stage before it has taken over is told as that stage's
    in_grad, taken = seen.bytes(IN_GRAD), seen.bytes(PASSED_ON[GRADS])
    assert {r: in_grad.get(r, 0) + taken.get(r, 0) for r in {*in_grad, *taken}} == seen.counted[
        "args_recv_info.buffer.grad"
    ]
    assert seen.bytes(OUTPUTS) == seen.counted["output_chunks"]
    assert "return_outputs=False" in seen.of(OUTPUTS)["advice"] and "#159251" in seen.of(OUTPUTS)["advice"]
    for finding in seen.findings:
        at_peak = finding["rule"] in ("late-release", "idle-memory")
        assert finding["bytes_per_step"] == 0 and finding["severity"] in ("note", *["avoidable"] * at_peak)


def check_sent_outputs(seen: Seen) -> None:
    found = seen.of(CACHE)
    assert (found["rule"], found["origin"]) == ("late-release", "library") and "pytorch/pytorch#128910" in found[
        "advice"
    ]
    assert found["retained_bytes"] % TENSOR == 0 and found["retained_bytes"] > 0


def test_zero_bubble_keeps_gradients_in_its_receive_buffers(leakscope: Callable[..., Any], tmp_path: Path) -> None:
    seen = run(leakscope, tmp_path / "run", 2, "zero-bubble", "")
    check_what_stays(seen)
    check_sent_outputs(seen)
    assert seen.bytes(IN_GRAD) == {0: MICROBATCHES * TENSOR, 1: 2 * MICROBATCHES * TENSOR}
    assert "pytorch/pytorch#164329" in seen.of(IN_GRAD)["advice"]
    assert any(BACKWARD_STATE in f["title"] for f in seen.findings)


def test_a_v_of_four_ranks_keeps_what_one_stage_hands_to_the_next(
    leakscope: Callable[..., Any], tmp_path: Path
) -> None:
    seen = run(leakscope, tmp_path / "run", 4, "zbv", "")
    check_what_stays(seen)
    check_sent_outputs(seen)
    for holder in PASSED_ON.values():
        assert seen.bytes(holder) == {3: MICROBATCHES * TENSOR}
    assert set(seen.of(SENDS)["ranks"]) >= {1, 2, 3}, "on the first rank they may be too little for a line"


def test_hooks_pile_up_on_receive_buffers(leakscope: Callable[..., Any], tmp_path: Path) -> None:
    seen = run(leakscope, tmp_path / "run", 2, "--no-lifetimes", "gpipe", "--hook", ends=(23, "leaks"))
    (found,) = [f for f in seen.findings if f["rule"] == "hook-pileup"]
    assert (found["origin"], found["ranks"]) == ("library", [1]) and "pytorch/pytorch#185331" in found["advice"]
    assert found["bytes_per_step"] == MICROBATCHES * 16 * 1024
    assert {s["step"]: s["bytes"] for s in found["occurrences"]} == {s: s * MICROBATCHES * 16 * 1024 for s in (3, 5, 6)}
    assert seen.bytes(ARGS) == {1: MICROBATCHES * TENSOR}, "the buffers themselves do not grow"
