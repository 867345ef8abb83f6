"""Two real ranks over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.comm_examples import Pair


def _pair(folder: Path, watched: str) -> Pair:
    script = Path(__file__).with_name("all_operations.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder / f"store_{watched}"), str(folder), watched],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    told = [process.communicate(timeout=60) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], told[0][1] + told[1][1]
    paths = [folder / f"rank_{rank:04d}" / "wire.jsonl" for rank in (0, 1)]
    lines = [[json.loads(line) for line in p.read_text().splitlines()] if p.exists() else [] for p in paths]
    return Pair((json.loads(told[0][0]), json.loads(told[1][0])), (lines[0], lines[1]))


@pytest.fixture(scope="session")
def all_operations(tmp_path_factory: pytest.TempPathFactory, starts_processes: None) -> Pair:
    return _pair(tmp_path_factory.mktemp("all_operations"), "watched")


@pytest.fixture(scope="session")
def all_operations_unwatched(tmp_path_factory: pytest.TempPathFactory, starts_processes: None) -> Pair:
    return _pair(tmp_path_factory.mktemp("all_operations_unwatched"), "unwatched")
