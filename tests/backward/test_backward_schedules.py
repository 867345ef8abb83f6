"""torch's pipeline schedules compute correct gradients on real ranks with this backward installed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch.multiprocessing as mp
from support import schedule_ranks

pytestmark = pytest.mark.process

LIMIT_SECONDS = 100


@pytest.mark.parametrize("world", [2, 4])
def test_every_schedule_against_one_process(world: int, tmp_path: Path) -> None:
    context = mp.spawn(schedule_ranks.run_rank, (world, str(tmp_path / "meet")), nprocs=world, join=False)
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, "the ranks did not finish in time"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
