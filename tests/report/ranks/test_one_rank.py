"""`leakscope report --rank N` prints the full details of one rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from leakscope_cli import main
from support import ROOT
from support.runs.many_ranks import KILLED, OUTLYING, many

from leakscope.report.text.ranks import render_ranks

RUN = str(ROOT / "sample_runs/p2p_pipeline/kept-outputs")


def _told(*words: str) -> Result:
    return CliRunner().invoke(main, ["report", RUN, *words])


def test_all_of_one_rank_and_nothing_of_the_others() -> None:
    text = render_ranks(*many(64), [8])
    assert text.startswith("Rank 8 of 64 ranks\n=====")
    assert "ranks 0, 16, 24, 32, 40, 48, 56 behaved the same" in text
    assert "leak 1: closure `extract`" in text and "leak 2: `trainer.losses`" in text
    assert "step 3: 387.00 KiB, step 5: 643.00 KiB, step 9: 1.13 MiB, step 11: 1.38 MiB" in text
    assert "rank 8: allocated memory rose" in text and "steps 3 to 5: 3.01 MiB: leak: extract 3.00 MiB" in text
    assert "late-release on rank 8" in text and "no look of the first step" in text
    assert "rank 12" not in text


def test_a_rank_that_stands_out_says_by_what() -> None:
    text = " ".join(render_ranks(*many(16), [KILLED, OUTLYING]).split())
    assert "killed by SIGKILL after 5 steps peers no other rank behaved the same" in text
    assert "holds 900.00 MiB in tensors" in text
    assert text.index(f"Rank {KILLED} of") < text.index(f"Rank {OUTLYING} of")


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
