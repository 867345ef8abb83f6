"""Reports on killed, failed and hung ranks name which rank waited for which."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from leakscope.run.operations import NAME, SIZE, unpack
from leakscope.run.reader import read_run
from leakscope.run.rows import OperationState

pytestmark = pytest.mark.process

SCRIPT = """
    import sys, time
    import torch, torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, how = dist.get_rank(), sys.argv[1]
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def exchange(step):
        if rank == 0:
            dist.isend(torch.ones(1 << 20), 1).wait()
            return
        if step == 3:
            spoil()
        dist.recv(torch.empty(1 << 20), 0)

    def spoil():
        open("spoiling", "w").close()
        if how == "both":
            dist.recv(torch.empty(3), 0, tag=9)
        while True:
            time.sleep(0.1)

    for step in range(1, 6):
        exchange(step)
        net(torch.ones(1, 8)).sum().backward()
        optimizer.step()
"""


def test_a_hung_rank_and_the_one_that_waits_for_it_are_named(
    script: Callable[[str], Path], leakscope: Callable[..., Any], tmp_path: Path
) -> None:
    done = leakscope("run", "-q", "--ranks", 2, "--hang-timeout", 6, "-o", tmp_path / "run", script(SCRIPT), "never")
    assert done.returncode == 124, done.stdout + done.stderr
    sender = read_run(tmp_path / "run").ranks[0]
    last = sender.final_operation
    assert last is not None and (last.direction, last.peer, last.nth) == ("send", 1, 3)
    spans = {step.number: (step.began or 0.0, (step.began or 0.0) + step.seconds) for step in sender.steps}
    over = [operation for operation in sender.operations if operation.step in spans]
    assert over and all(spans[o.step][0] <= o.issued <= spans[o.step][1] for o in over), "both by one clock"
    ended = json.loads((tmp_path / "run" / "rank_0001" / "ended.json").read_text())
    assert ended["status"] == 124 and any("spoil" in line for line in ended["stack"])


def interrupted(path: Path, folder: Path, how: str) -> tuple[int, str, float]:
    """(status, output, seconds) of a run that gets Ctrl-C once both ranks hang in their third step."""
    command = [sys.executable, "-m", "leakscope", "run", "-q", "--ranks", "2", "-o", str(folder), str(path), how]
    with subprocess.Popen(
        command, cwd=path.parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as running:
        lasts = [folder / f"rank_{rank:04d}" / NAME for rank in (0, 1)]
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not ((path.parent / "spoiling").exists() and hanging(lasts)):
            time.sleep(0.02)
        began = time.monotonic()
        os.killpg(running.pid, signal.SIGINT)
        try:
            output = running.communicate(timeout=60)[0]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    return running.returncode, " ".join(output.split()), time.monotonic() - began


def hanging(lasts: list[Path]) -> bool:
    """Rank 0 waits for its third send to be received; rank 1 waits for something else."""
    if not all(path.exists() and path.stat().st_size == SIZE for path in lasts):
        return False
    sender, receiver = (unpack(path.read_bytes()) for path in lasts)
    if sender is None or receiver is None or (sender.step, sender.state) != (3, OperationState.WAITS):
        return False
    return receiver.state == OperationState.WAITS and receiver.tag == 9


def test_ctrl_c_reports_which_rank_waited_for_which(script: Callable[[str], Path], tmp_path: Path) -> None:
    status, output, seconds = interrupted(script(SCRIPT), tmp_path / "run", "both")
    assert status == 130
    assert seconds < 20  # the launcher alone needs 30 to end two ranks that are stuck in native code
    assert "send #3 to rank 1" in output and "never sent by rank 0: recv #1" in output
    for rank, function in ((0, "exchange"), (1, "spoil")):
        ended = json.loads((tmp_path / "run" / f"rank_{rank:04d}" / "ended.json").read_text())
        assert ended["status"] == 130 and any(function in line for line in ended["stack"]), ended


NEVER_WAITED = """
    import torch, torch.distributed as dist
    import torch.distributed._functional_collectives as functions
    from torch import nn

    dist.init_process_group("gloo")
    net, kept = nn.Linear(8, 8), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(12):
        functions.all_reduce(torch.ones(1 << 16), "sum", dist.group.WORLD)
        functions.all_gather_tensor(torch.ones(1 << 15), 0, dist.group.WORLD)
        kept.append(functions.all_reduce(torch.ones(1 << 14), "sum", dist.group.WORLD))
        net(torch.ones(1, 8)).sum().backward()
        optimizer.step()
"""


def test_results_of_functional_collectives_that_nobody_waits_for_are_a_leak(
    script: Callable[[str], Path], leakscope: Callable[..., Any], tmp_path: Path
) -> None:
    done = leakscope("run", "-q", "--ranks", 2, "--steps", 12, "-o", tmp_path / "run", script(NEVER_WAITED))
    assert done.returncode == 23, done.stdout + done.stderr
    found = json.loads((tmp_path / "run" / "findings.json").read_text())["findings"]
    # torch keeps each Work in a C++ registry: on a busy machine its own memory, too, may be seen to grow
    others = [finding for finding in found if finding["severity"] == "leak" and finding["rule"] != "p2p-buffer"]
    assert {finding["rule"] for finding in others} <= {"native-hold"}
    leaks = [finding for finding in found if finding["severity"] == "leak" and finding["rule"] == "p2p-buffer"]
    assert leaks
    assert all(finding["cut"] is None and finding["ranks"] == [0, 1] for finding in leaks)
    assert sum(finding["bytes_per_step"] for finding in leaks) >= 2 * 4 * ((1 << 16) + (1 << 16) + (1 << 14)) * 0.9
