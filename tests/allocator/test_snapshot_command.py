"""`leakscope snapshot` reports the same figures as text, JSON and HTML, and rejects invalid input."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from leakscope_cli import main
from support.snapshots.building import frame, training

from leakscope.memory_snapshot.verdict import examine
from leakscope.report.memory_snapshot import snapshot_html, snapshot_json, snapshot_text


@pytest.fixture
def leaking(tmp_path: Path) -> Path:
    return written(tmp_path / "rank0.pickle", training(10, keeps=True))


def written(path: Path, data: Any) -> Path:
    path.write_bytes(pickle.dumps(data))
    return path


def test_a_run_folder_gives_the_newest_snapshot_of_each_rank(tmp_path: Path) -> None:
    for rank, name in ((0, "cuda_step_000003"), (0, "cuda_step_000012"), (1, "cuda_last_000012")):
        folder = tmp_path / f"rank_{rank:04d}"
        folder.mkdir(exist_ok=True)
        written(folder / f"{name}.pickle", training(10, keeps=rank == 1))
    result = CliRunner().invoke(main, ["snapshot", str(tmp_path), "--as", "json"])
    snapshots = json.loads(result.stdout)["snapshots"]
    assert [(report["rank"], report["name"]) for report in snapshots] == [
        (0, "cuda_step_000012.pickle"),
        (1, "cuda_last_000012.pickle"),
    ]
    (tmp_path / "empty").mkdir()
    refused = CliRunner().invoke(main, ["snapshot", str(tmp_path / "empty")])
    assert refused.exit_code == 2 and "contains no memory snapshot" in refused.stderr


def test_json_holds_the_figures(leaking: Path) -> None:
    report = json.loads(snapshot_json(examine([leaking])))
    device = report["snapshots"][0]["devices"][0]
    assert (report["format"], report["verdict"], report["snapshots"][0]["rank"]) == (1, "leaks", 0)
    assert device["growth"]["growing"][0]["site"]["where"] == "train.py:12 step"
    assert device["peak_bytes"] == max(device["timeline"]["alive"])


def test_page_is_escaped_and_reaches_for_nothing_outside(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>\x1b[31m\u202e'
    data = training(10, keeps=True)
    frames = [frame(f"/home/{evil}.py", 3, evil)]
    for item in data["device_traces"][0]:
        if item["size"] > 512:
            item["frames"] = frames
    for part in data["segments"]:
        part["blocks"][0]["frames"] = frames
    files = [written(tmp_path / name, data) for name in ("rank0<b>.pickle", "rank1.pickle")]
    page = snapshot_html(examine(files))
    assert page.count("<svg") == 3 and "&lt;script&gt;alert" in page
    assert not re.search(r"<script|<b>|\s(src|href|on\w+)=|https?://|\x1b|\u202e", page)
    assert not re.search(r"\x1b|\u202e", snapshot_text(examine(files[1:])))


def test_command_prints_writes_and_refuses(leaking: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    result = runner.invoke(main, ["snapshot", str(leaking)])
    assert (result.exit_code, result.stdout.split(":")[0]) == (0, "leaks")
    result = runner.invoke(main, ["snapshot", str(leaking), "--as", "html", "-o", str(tmp_path / "page.html")])
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    result = runner.invoke(main, ["snapshot", str(leaking), str(leaking), "--compare", "--as", "json"])
    assert json.loads(result.stdout)["comparison"]["sites"] == []
    for wrong in (
        [str(tmp_path / "none")],
        [str(leaking), "--compare"],
        [str(leaking), "-o", str(tmp_path / "no" / "x")],
    ):
        result = runner.invoke(main, ["snapshot", *wrong])
        assert result.exit_code == 2
        assert result.stderr.startswith("leakscope: ") and result.stderr.count("\n") == 1
