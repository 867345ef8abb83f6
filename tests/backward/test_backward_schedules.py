"""torch's pipeline schedules compute correct gradients on real ranks with this backward installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import schedule_ranks
from support.commands.preloaded import Copies

LIMIT_SECONDS = 300


@pytest.mark.parametrize("world", [2, 4])
def test_every_schedule_against_one_process(world: int, copies: Copies, tmp_path: Path) -> None:
    words = [str(world), str(tmp_path / "meet")]
    done = copies.run(words, tmp_path, dict(os.environ), LIMIT_SECONDS, schedule_ranks.__file__)
    assert done.returncode == 0, done.stderr
