"""Each rank of a run records the checksums of its own training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leakscope.findings import judge
from leakscope.launch import launch
from leakscope.options import Options, When
from leakscope.run.model import Run
from leakscope.run.reader import read_run
from leakscope.verdict import Verdict

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("launches_copies")]

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), gradient_as_bucket_view=True)
optimizer = torch.optim.Adam(net.parameters())
kept = []
for step in range(8):
    x = torch.randn(4, 8)
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(loss.detach() if FIXED else loss)
dist.destroy_process_group()
"""


def recorded(folder: Path, script: Path) -> Run:
    plan = {"gc_diff": When.NEVER, "ranks": 2, "checksums": True, "steps": 6}
    assert launch(Options.of({"script": str(script), "folder": folder, **plan})).status == 0
    return read_run(folder)


def test_each_rank_records_its_training_and_a_fix_changes_none(script: Callable[..., Path], tmp_path: Path) -> None:
    runs = [recorded(tmp_path / str(fixed), script(f"FIXED = {fixed}" + SCRIPT)) for fixed in (False, True)]
    assert [judge(run).verdict for run in runs] == [Verdict.LEAKS, Verdict.CLEAN]
    leaking, fixed = ([rank.training for rank in run.ranks] for run in runs)
    assert leaking == fixed and [len(rows) for rows in fixed] == [6, 6]
    first, second = fixed
    # the ranks have the same parameters and gradients, and losses of their own
    assert [(row.parameters, row.gradients) for row in first] == [(row.parameters, row.gradients) for row in second]
    assert all(row.tensors == 8 and not row.skipped for rows in fixed for row in rows)
    assert not {row.losses for row in first} & {row.losses for row in second}
    assert not any("checksum" in note for run in runs for rank in run.ranks for note in rank.notes)
