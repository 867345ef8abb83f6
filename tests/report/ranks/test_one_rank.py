"""`leakscope report --rank N` prints the full details of one rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from leakscope_cli import main
from support import ROOT

RUN = str(ROOT / "sample_runs/p2p_pipeline/kept-outputs")


def _told(*words: str) -> Result:
    return CliRunner().invoke(main, ["report", RUN, *words])


def test_ranks_are_told_on_demand_again_and_again(tmp_path: Path) -> None:
    told = _told("--rank", "1", "--rank", "0", "--rank", "1")
    assert told.exit_code == 0
    assert [line for line in told.stdout.splitlines() if line.startswith("Rank ")] == [
        "Rank 1 of 2 ranks",
        "Rank 0 of 2 ranks",
    ]
    assert _told("--rank", "0", "-o", str(tmp_path / "rank.txt")).stdout == ""
    assert (tmp_path / "rank.txt").read_text(encoding="utf-8").startswith("Rank 0 of 2 ranks")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rank", "7"], "no rank 7 in this run"),
        (["--rank", "-1"], "no rank -1 in this run"),
        (["--rank", "0", "--as", "json"], "--rank cannot be combined"),
    ],
)
def test_a_rank_that_is_not_there_is_one_sentence(words: list[str], sentence: str) -> None:
    told = _told(*words)
    assert told.exit_code == 2 and told.stdout == ""
    assert sentence in told.stderr.splitlines()[-1]
