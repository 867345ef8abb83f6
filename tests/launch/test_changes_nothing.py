"""What the script computes and finds is bit for bit what it is under python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands.recorded_runs import Runs

from leakscope.launch import launch
from leakscope.options import Options
from leakscope.run.reader import read_run

pytestmark = pytest.mark.process

SCRIPT = """
import gc, hashlib, random, signal, sys, threading
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)
net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
first = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
for _ in range(11):
    loss = net(torch.randn(16, 32)).pow(2).mean()
    loss.backward()
    optimizer.step()
    first.step()
    grads = [p.grad.sum().item().hex() for p in net.parameters()]
    optimizer.zero_grad()
    print(loss.item().hex(), grads)
print(torch._C._len_torch_dispatch_stack())
print(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(), random.random())
print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), sys.gettrace(), sys.getprofile(), threading.active_count())
print([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)], sys.getswitchinterval())
print(sorted(vars(net[0])), [sorted(vars(p)) for p in net.parameters()], len(optimizer._optimizer_step_post_hooks))
"""


def test_losses_gradients_and_the_process_are_as_without_leakscope(
    script: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script(SCRIPT)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout
    outcome = launch(Options(script=str(path), folder=tmp_path))
    (rank,) = read_run(tmp_path).ranks
    assert outcome.status == 0 and not rank.notes
    assert capfd.readouterr().out == plain
    assert [snapshot.step for snapshot in rank.heap_snapshots if snapshot.occasion != "peak"] == [3, 5, 7, 9, 11], (
        "one step is one call of the first optimizer"
    )
    assert len(rank.steps) == 11
    made = [place for snapshot in rank.heap_snapshots for place in snapshot.heap.made_at.values()]
    assert all(place.startswith("train.py:") for place in made)


LISTENING = """
import sys
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

heard = []

class Listening(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        heard.append(f"{function} of a mode")
        return function(*arguments, **(named or {}))

class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        heard.append(f"{function} of a subclass")
        return super().__torch_function__(function, types, arguments, named or {})

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
net = torch.nn.Linear(16, 4)
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
kept = []
with Listening():
    for _ in range(8):
        batch = torch.randn(8, 16).as_subclass(Own)
        net(batch).pow(2).mean().backward()
        dist.all_reduce(torch.ones(64))
        dist.all_reduce(torch.ones(32), async_op=True).wait()
        kept.append(batch)
        torch.ones(3).tolist(), torch.ones(3).numpy(), torch.ones(3).untyped_storage().resize_(64)
        optimizer.step()
        optimizer.zero_grad()
print(*heard, sep="\\n")
"""


@pytest.mark.usefixtures("launches_copies")
def test_no_mode_and_no_subclass_sees_calls_of_ours(
    script: Callable[[str], Path], tmp_path: Path, runs: Runs, capfd: pytest.CaptureFixture[str]
) -> None:
    path, plain = script(LISTENING), runs.plain(LISTENING).stdout
    launch(Options(script=str(path), folder=tmp_path))
    (rank,) = read_run(tmp_path).ranks
    assert any(snapshot.occasion == "peak" for snapshot in rank.heap_snapshots) and any(
        snapshot.heap.made_at for snapshot in rank.heap_snapshots
    )
    heard = capfd.readouterr().out
    assert [line.split(" at 0x")[0] for line in heard.splitlines()] == [
        line.split(" at 0x")[0] for line in plain.splitlines()
    ]
