"""Rank numbers are assigned to the processes of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.run.processes import MAIN, ProcessInfo, assign_ranks, claim, link, numbered, processes_in, write_who
from leakscope.run.rank_end import ranks_in

pytestmark = pytest.mark.unit


def add(folder: Path, name: str = "", started: float = 0.0, **known: object) -> str:
    name = name or claim(folder)
    write_who(folder / name, ProcessInfo(pid=1, parent=1, started=started, **known))  # type: ignore[arg-type]
    return name


def names(folder: Path) -> dict[int, str]:
    return {number: process.folder.name for number, process in numbered(processes_in(folder)).items()}


def test_the_first_process_is_the_only_rank_where_none_trains(tmp_path: Path) -> None:
    add(tmp_path, MAIN)
    add(tmp_path)
    assert names(tmp_path) == {0: MAIN}


def test_a_restarted_process_is_the_rank(tmp_path: Path) -> None:
    add(tmp_path, MAIN)
    before = [add(tmp_path, started=1.0, rank=rank, world=2, trained=True) for rank in (0, 1)]
    link(tmp_path)
    again = [add(tmp_path, started=2.0, rank=rank, world=2, trained=True) for rank in (1, 0)]
    link(tmp_path)
    assert names(tmp_path) == {0: again[1], 1: again[0]} and (tmp_path / "rank_0000").resolve().name == again[1]
    assignment = assign_ranks(tmp_path)
    assert (assignment.ranks, assignment.main) == (2, None)
    assert ranks_in(tmp_path) == [0, 1] and not (tmp_path / "rank_0000").is_symlink()
    assert all((tmp_path / name).is_dir() for name in before)
    assert "restarted" in (tmp_path / "rank_0000" / "notes.jsonl").read_text()


def test_processes_without_a_number_follow_the_order_of_their_starts(tmp_path: Path) -> None:
    add(tmp_path, MAIN)
    second = add(tmp_path, started=1.0, place=(2,), trained=True)
    first = add(tmp_path, started=2.0, place=(1,), trained=True)
    assert names(tmp_path) == {0: first, 1: second}
    (tmp_path / MAIN / "steps.jsonl").write_text("{}\n")
    assert names(tmp_path) == {0: MAIN, 1: first, 2: second}
