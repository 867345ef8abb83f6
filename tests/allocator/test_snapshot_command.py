"""`leakscope snapshot` reports the same figures as text, JSON and HTML, and rejects invalid input."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from leakscope_cli import main
from support.snapshots.building import START, block, event, frame, segment, training

from leakscope.memory_snapshot.verdict import examine
from leakscope.report.memory_snapshot import snapshot_html, snapshot_json, snapshot_text


@pytest.fixture
def leaking(tmp_path: Path) -> Path:
    return written(tmp_path / "rank0.pickle", training(10, keeps=True))


def written(path: Path, data: Any) -> Path:
    path.write_bytes(pickle.dumps(data))
    return path


def test_a_runs_folder_stands_for_the_newest_snapshot_of_each_rank(tmp_path: Path) -> None:
    for rank, name in ((0, "cuda_step_000003"), (0, "cuda_step_000012"), (1, "cuda_last_000012")):
        folder = tmp_path / f"rank_{rank:04d}"
        folder.mkdir(exist_ok=True)
        written(folder / f"{name}.pickle", training(10, keeps=rank == 1))
    told = CliRunner().invoke(main, ["snapshot", str(tmp_path), "--as", "json"])
    snapshots = json.loads(told.stdout)["snapshots"]
    assert [(report["rank"], report["name"]) for report in snapshots] == [
        (0, "cuda_step_000012.pickle"),
        (1, "cuda_last_000012.pickle"),
    ]
    (tmp_path / "empty").mkdir()
    refused = CliRunner().invoke(main, ["snapshot", str(tmp_path / "empty")])
    assert refused.exit_code == 2 and "contains no memory snapshot" in refused.stderr


def test_text_opens_with_the_verdict_and_lists_the_places(leaking: Path) -> None:
    text = snapshot_text(examine([leaking]))
    assert text.startswith("leaks: train.py:12 step")
    rows = [line.split() for line in text.splitlines()]
    assert ["20.00", "MiB", "10x", "train.py:12", "step"] in rows
    assert ["2.00", "MiB", "a", "step", "20.00", "MiB", "kept", "9", "steps", "train.py:12", "step"] in rows


def test_json_holds_the_figures(leaking: Path) -> None:
    told = json.loads(snapshot_json(examine([leaking])))
    device = told["snapshots"][0]["devices"][0]
    assert (told["format"], told["verdict"], told["snapshots"][0]["rank"]) == (1, "leaks", 0)
    assert device["growth"]["growing"][0]["site"]["where"] == "train.py:12 step"
    assert device["peak_bytes"] == max(device["timeline"]["alive"])


class Page(HTMLParser):
    """Tags, their attributes and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_page_is_escaped_and_reaches_for_nothing_outside(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>\x1b[31m\u202e'
    data = training(10, keeps=True)
    for item in data["device_traces"][0]:
        if item["size"] > 512:
            item["frames"] = [frame(f"/home/{evil}.py", 3, evil)]
    for part in data["segments"]:
        part["blocks"][0]["frames"] = [frame(f"/home/{evil}.py", 3, evil)]
    text = snapshot_html(
        examine([written(tmp_path / "rank0<b>.pickle", data), written(tmp_path / "rank1.pickle", data)])
    )
    page = Page(text)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert page.tags.count("svg") == 3
    assert not [name for name, value in page.attributes if name in ("src", "href") or name.startswith("on")]
    assert not re.search(r"https?://|\x1b|\u202e", text)
    assert any("alert" in word for word in page.words)
    terminal = snapshot_text(examine([tmp_path / "rank1.pickle"]))
    assert "\x1b" not in terminal
    assert "\u202e" not in terminal


def test_two_are_compared_on_one_axis(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "a.pickle", training(10, keeps=True)),
        written(tmp_path / "b.pickle", training(10, keeps=False)),
    ]
    report = examine(files, comparing=True)
    page = snapshot_html(report)
    first = page[page.index("<svg") : page.index("</svg>")]
    assert first.count('class="curve"') == 2
    assert "-20.00 MiB" in page
    assert "b.pickle against a.pickle: end -20.00 MiB" in snapshot_text(report)
    assert json.loads(snapshot_json(report))["comparison"]["end_bytes"] == -(20 << 20)


def test_moment_of_failure_stands_on_the_page(tmp_path: Path) -> None:
    data = training(10, keeps=True)
    data["device_traces"][0].append(
        {"action": "oom", "device_free": 5, "size": 1 << 30, "stream": 0, "time_us": START + 9_900}
    )
    report = examine([written(tmp_path / "a.pickle", data)])
    assert snapshot_text(report).startswith(
        "leaks: out of memory: an unknown place requested 1.00 GiB with 20.00 MiB alive and 5 B of the device free; "
        "train.py:12 step keeps 2.00 MiB more each step"
    )
    assert 'class="moment failure"' in snapshot_html(report)


def test_kinds_are_drawn_beneath_what_is_alive_and_add_up_to_it(leaking: Path) -> None:
    (device,) = examine([leaking]).snapshots[0].devices
    assert tuple(map(sum, zip(*device.timeline.categories.values(), strict=True))) == device.timeline.alive
    page = snapshot_html(examine([leaking]))
    assert page.count('class="kind"') == len(device.timeline.categories) > 0
    assert page.count("kinds are judged from stacks and life spans") == 1
    assert "peak 20.00 MiB</text>" in page and ">event 0, 0 µs</text>" in page


def test_empty_snapshot_is_told_in_every_form(tmp_path: Path) -> None:
    report = examine([written(tmp_path / "a.pickle", {"segments": [], "device_traces": []})])
    assert snapshot_text(report).startswith("growth inconclusive: the file holds no history of allocations")
    assert "<svg" not in snapshot_html(report)
    assert json.loads(snapshot_json(report))["verdict"] == "inconclusive"


def test_a_trace_without_times_is_drawn_by_event(tmp_path: Path) -> None:
    trace = [event("alloc", number, 512, None) for number in range(2000)]
    blocks = segment(*(block(number, 512) for number in range(2000)))
    report = examine([written(tmp_path / "a.pickle", {"segments": [blocks], "device_traces": [trace]})])
    timeline = report.snapshots[0].devices[0].timeline
    assert (timeline.clock, len(timeline.at), timeline.at[-1], timeline.alive[-1]) == (False, 600, 1999.0, 2000 * 512)
    assert "<svg" in snapshot_html(report)


def test_command_prints_writes_and_refuses(leaking: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    told = runner.invoke(main, ["snapshot", str(leaking)])
    assert (told.exit_code, told.stdout.split(":")[0]) == (0, "leaks")
    told = runner.invoke(main, ["snapshot", str(leaking), "--as", "html", "-o", str(tmp_path / "page.html")])
    assert (told.exit_code, told.stdout) == (0, "")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    told = runner.invoke(main, ["snapshot", str(leaking), str(leaking), "--compare", "--as", "json"])
    assert json.loads(told.stdout)["comparison"]["sites"] == []
    for wrong in (
        [str(tmp_path / "none")],
        [str(leaking), "--compare"],
        [str(leaking), "-o", str(tmp_path / "no" / "x")],
    ):
        told = runner.invoke(main, ["snapshot", *wrong])
        assert told.exit_code == 2
        assert told.stderr.startswith("leakscope: ") and told.stderr.count("\n") == 1


@pytest.mark.process
def test_reading_and_rendering_need_no_torch(leaking: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path;"
        "from leakscope.memory_snapshot import examine;"
        "assert 'jinja2' not in sys.modules; r = examine([Path(sys.argv[1])]);"
        "from leakscope.report.memory_snapshot import snapshot_html; print(len(snapshot_html(r)))"
    )
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(leaking)], capture_output=True, text=True, env=paths, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
