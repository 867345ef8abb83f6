"""The kernel's count of processes ended for lack of memory is parsed."""

from __future__ import annotations

from pathlib import Path

from leakscope.launch.outcome import processes_ended


def test_processes_that_the_system_ended_are_counted(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgfault 12\noom_kill 3\noom_kill_other 9\n")
    assert processes_ended(vmstat) == 3


def test_a_system_that_does_not_count_has_ended_none(tmp_path: Path) -> None:
    assert processes_ended(tmp_path / "none") == 0
