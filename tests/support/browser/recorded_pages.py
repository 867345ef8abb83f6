"""Pages of recorded runs, each rendered once: leaking, clean, of many ranks, two compared, and of memory snapshots."""

from __future__ import annotations

import functools
import json
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

from leakscope.findings.comparison import Judged, compare
from leakscope.findings.judge import judge
from leakscope.memory_snapshot.verdict import examine
from leakscope.report.compare import comparison_html as comparison_page
from leakscope.report.html.page import render
from leakscope.report.memory_snapshot import snapshot_html
from leakscope.run.reader import read_run
from support import SAMPLES, examples
from support.runs.many_ranks import many
from support.snapshots.building import training

PIPELINE = SAMPLES / "p2p_pipeline"
OF_MANY = (
    ("none", 0), ("none", 1), ("none", 0), ("none", 1),
    ("stage-backward-cycle", 0), ("kept-outputs", 1), ("none", 0), ("param-group-cycle", 1),
)  # fmt: skip
"""(variant, rank) that the ranks of a run of many repeat: most of them clean, some leaking in three ways."""


def many_ranks(folder: Path, count: int) -> Path:
    """A run of `count` ranks, each of them a recorded one of the sample pipeline."""
    folder.mkdir()
    about = json.loads((PIPELINE / "none" / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps(about | {"ranks": count}), encoding="utf-8")
    for number in range(count):
        variant, rank = OF_MANY[number % len(OF_MANY)]
        (folder / f"rank_{number:04d}").symlink_to(PIPELINE / variant / f"rank_{rank:04d}")
    return folder


def _judged(folder: Path) -> Judged:
    run = read_run(folder, snapshots=True)
    return Judged(run, judge(run))


def _of_run(folder: Path) -> str:
    judged = _judged(folder)
    return render(judged.run, judged.findings)


def _fixed() -> str:
    """The leaking run after `leakscope fix`."""
    judged = _judged(PIPELINE / "stage-backward-cycle")
    fix = examples.fix()
    verified = replace(fix.leaks[1], fingerprint=judged.findings.leaks[0].fingerprint)
    return render(replace(judged.run, fix=replace(fix, leaks=(verified, fix.leaks[0]))), judged.findings)


def _of_comparison() -> str:
    return comparison_page(compare(_judged(PIPELINE / "kept-outputs"), _judged(PIPELINE / "stage-backward-cycle")))


def _of_many(count: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return _of_run(many_ranks(Path(folder) / "run", count))


def _of_snapshot() -> str:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"rank{rank}.pickle" for rank in range(2)]
        for file in files:
            file.write_bytes(pickle.dumps(training(10, keeps=True)))
        return snapshot_html(examine(files))


MAKERS = {
    "leaking": lambda: _of_run(PIPELINE / "stage-backward-cycle"),
    "fixed": _fixed,
    "clean": lambda: _of_run(PIPELINE / "none"),
    "8 ranks": lambda: _of_many(8),
    "64 ranks": lambda: render(*many(64)),
    "comparison": _of_comparison,
    "snapshot": _of_snapshot,
}


@functools.cache
def page(name: str) -> str:
    """The text of the page of that name, one of MAKERS."""
    return MAKERS[name]()
