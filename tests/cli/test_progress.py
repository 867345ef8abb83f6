"""The progress line shows the step, memory and number of snapshots of a run."""

from __future__ import annotations

import io
import json
import sys
import threading
from pathlib import Path

import pytest
from leakscope_cli.console import ProgressReader, RunProgress, poll_progress, progress

from leakscope.options import Options

MIB = 1 << 20


def append(folder: Path, rank: int, *counted: int | None, begin: int = 1, end: str = "\n") -> None:
    of_rank = folder / f"rank_{rank:04d}"
    of_rank.mkdir(exist_ok=True)
    lines = [json.dumps({"number": n, "counted_bytes": size}) for n, size in enumerate(counted, begin)]
    with (of_rank / "steps.jsonl").open("a") as steps:
        steps.write("\n".join(lines) + end)


@pytest.mark.parametrize(
    ("now", "reported"),
    [
        (
            RunProgress(1240, int(3.2 * 1024) * MIB, 1.2 * MIB, 4),
            "step 1,240, 3.20 GiB counted (+1.20 MiB a step), 4 snapshots",
        ),
        (RunProgress(3, 5 * MIB, None, 1), "step 3, 5.00 MiB counted, 1 snapshot"),
        (RunProgress(9, 5 * MIB, -2.0 * MIB, 2, 8), "step 9, 5.00 MiB counted at most (-2.00 MiB a step), 2 snapshots"),
        (RunProgress(9, None, None, 0), "step 9, 0 snapshots"),
        (RunProgress(9, None, None, 2, steps=4000), "step 9 of 4,000, 2 snapshots"),
    ],
)
def test_a_line_says_step_memory_and_looks(now: RunProgress, reported: str) -> None:
    assert str(now) == reported


def test_only_what_is_new_is_read_and_a_line_that_is_being_written_is_left(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path, warmup=2)
    assert reader.read() == RunProgress()
    append(tmp_path, 0, 50 * MIB, 60 * MIB)
    assert reader.read() == RunProgress(2, 60 * MIB, None)
    append(tmp_path, 0, 62 * MIB, 64 * MIB, begin=3)
    assert reader.read() == RunProgress(4, 64 * MIB, 2 * MIB), "warm-up is no growth"
    append(tmp_path, 0, 99 * MIB, begin=5, end="")
    (tmp_path / "rank_0000" / "heap_step_000003.json").touch()
    assert reader.read() == RunProgress(4, 64 * MIB, 2 * MIB, snapshots=1)
    append(tmp_path, 0, end="\n")
    assert reader.read().step == 5


def test_many_ranks_are_told_by_the_one_that_has_most(tmp_path: Path) -> None:
    append(tmp_path, 0, *(5 * MIB,) * 4)
    append(tmp_path, 1, *(MIB * n for n in range(1, 20)))
    append(tmp_path, 2, None)
    assert ProgressReader(tmp_path, warmup=2).read() == RunProgress(19, 19 * MIB, MIB, ranks=3)


def test_rows_that_count_nothing_or_are_none_are_left(tmp_path: Path) -> None:
    append(tmp_path, 0, None, None, None)
    (tmp_path / "rank_0000" / "steps.jsonl").open("a").write('nothing\n{"number": "x"}\n7\n')
    assert ProgressReader(tmp_path, warmup=2).read() == RunProgress(6)


def test_it_is_told_until_it_is_over(tmp_path: Path) -> None:
    append(tmp_path, 0, MIB)
    over, reported = threading.Event(), []

    def tell(now: RunProgress) -> None:
        reported.append(now)
        append(tmp_path, 0, MIB, begin=2)
        if len(reported) == 3:
            over.set()

    poll_progress(ProgressReader(tmp_path, 2), over, 0.001, tell)
    assert [now.step for now in reported] == [1, 2, 3]


class Heard(io.StringIO):
    """What is no terminal, and says when it was written."""

    def __init__(self) -> None:
        super().__init__()
        self.was_written = threading.Event()

    def write(self, text: str) -> int:
        self.was_written.set()
        return super().write(text)


@pytest.mark.parametrize("quiet", [False, True])
def test_where_there_is_no_terminal_it_is_a_line_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    append(tmp_path, 0, *(MIB,) * 4)
    heard = Heard()
    monkeypatch.setattr(sys, "stderr", heard)
    with progress(Options(script="train.py", folder=tmp_path, quiet=quiet), every=0.001):
        assert heard.was_written.wait(0.05 if quiet else 20) != quiet
    assert set(heard.getvalue().splitlines()) == (
        set() if quiet else {"[leakscope] step 4, 1.00 MiB counted (+0 B a step), 0 snapshots"}
    )


class Screen(Heard):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("ranks", "term", "has_bar"), [(1, "xterm", False), (2, "xterm", True), (2, "dumb", False)])
def test_a_bar_is_drawn_where_nobody_prints_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, term: str, has_bar: bool
) -> None:
    append(tmp_path, 0, *(MIB,) * 4)
    screen = Screen()
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", Screen())
    with progress(Options(script="train.py", folder=tmp_path, ranks=ranks), every=0.001):
        assert screen.was_written.wait(20)
    shown = screen.getvalue()
    assert ("[leakscope] step 4, " in shown) != has_bar and ("\x1b[?25l" in shown) == has_bar
