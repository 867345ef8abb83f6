"""What is told of a watched step, of whom, and when nothing can be: watching itself changes nothing."""

from __future__ import annotations

import gc
import json
import subprocess
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.lived_steps import BIG, KIB, REST, big, idle_bytes, scratch, watched
from torch import Tensor, nn


def test_what_only_a_library_holds_is_not_the_users() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            half = x[:4].clone()
            del x
            scratch()
            return half

    net = Twice()

    def step() -> None:
        net(big())

    lived = watched(step)
    assert lived.avoidable < KIB
    assert [one.by for one in lived.peak.idle if one.row.bytes >= BIG] == ["library"]  # type: ignore[union-attr]
    assert lived.told == []


Pair = namedtuple("Pair", ["first", "second"])


def test_a_class_that_a_call_in_the_script_makes_is_the_users() -> None:
    def step() -> None:
        kept = [Pair(big(), torch.ones(REST // 4))]
        scratch()
        kept[0].second.sum()

    lived = watched(step)
    assert idle_bytes(lived) == [BIG]
    assert lived.avoidable >= BIG


def test_the_module_path_and_the_phase_are_told() -> None:
    net = nn.Sequential(nn.Linear(256, 256), nn.Sequential(nn.ReLU()))

    def step() -> None:
        hidden = net(torch.ones(256, 256))
        hidden.sum()
        scratch()

    lived = watched(step)
    assert lived.peak is not None
    told = [one.row for one in lived.peak.idle if one.row.module == "Sequential.1.0"]
    assert told and told[0].phase == "forward"
    assert "(aten::relu)" in told[0].made_at


def test_an_own_dispatch_mode_is_left_alone() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Own(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Own():
        lived = watched(scratch)
    assert "dispatch mode" in lived.unjudged[0].why
    assert torch._C._len_torch_dispatch_stack() == 0


def test_watching_changes_nothing() -> None:
    def train() -> list[str]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(net.parameters())
        losses: list[str] = []

        def step() -> None:
            optimizer.zero_grad()
            loss = net(torch.randn(8, 32)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())

        run(step)
        return losses

    def plainly(step: Callable[[], None]) -> None:
        for _ in range(3):
            step()

    def watching(step: Callable[[], None]) -> None:
        assert watched(step, times=3).unjudged == ()

    run: Callable[[Callable[[], None]], None] = plainly
    plain = train()
    run = watching
    collecting, hooks = gc.isenabled(), len(nn.modules.module._global_forward_hooks)
    assert train() == plain
    assert (gc.isenabled(), len(nn.modules.module._global_forward_hooks)) == (collecting, hooks)
    assert torch._C._len_torch_dispatch_stack() == 0


COMPILING = """
    import sys
    import torch

    torch.set_num_threads(1)
    backend, first = sys.argv[1], int(sys.argv[2])
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    regions = []
    for step in range(8):
        x = torch.ones(8, 64)
        if step == first:
            regions.append(torch.compile(lambda x: x * 2 + 1, backend=backend))
        for region in regions:
            x = region(x)
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch._dynamo.utils.counters["frames"]["ok"])
"""


def test_compiled_regions_stay_compiled_and_are_counted_as_unseen(
    script: Callable[[str], Path],
    leakscope: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    done = leakscope("run", "-q", "-o", "run", script(COMPILING), "eager", 3)
    assert done.stdout.splitlines()[0] == "1", "what was compiled without leakscope is compiled with it"
    (unjudged,) = json.loads((tmp_path / "run" / "findings.json").read_text())["unjudged"]
    assert unjudged["rule"] == "late-release" and "1 compiled region" in unjudged["why"]
