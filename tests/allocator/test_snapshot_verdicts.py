"""Verdicts on memory snapshots separate growth from plateaus and report fragmentation and failures."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.snapshots.building import block, frame, segment, snapshot, training

from leakscope.memory_snapshot.analysis import SnapshotReport, analyse
from leakscope.memory_snapshot.model import Frame, Snapshot
from leakscope.memory_snapshot.sites import site_of
from leakscope.memory_snapshot.verdict import compare, examine, judge_snapshots

Read = Callable[[Any], Snapshot]


@pytest.fixture
def verdict_on(read: Read) -> Callable[[Any], Any]:
    return lambda data: judge_snapshots([analyse(read(data))])


def test_growth_per_step_is_a_leak_with_site_and_bytes(verdict_on: Callable[[Any], Any]) -> None:
    judgement = verdict_on(training(10, keeps=True))
    (growth,) = judgement.concerns
    assert (judgement.verdict, growth.kind, growth.site.where) == ("leaks", "growth", "train.py:12 step")
    assert (growth.per_step, growth.steps, growth.bytes) == (2 << 20, 9, 20 << 20)


@pytest.mark.parametrize(
    "data", [training(10, keeps=False), training(30, keeps=True, capacity=5)], ids=["freed", "ring of 5"]
)
def test_memory_that_levels_off_is_clean(verdict_on: Callable[[Any], Any], data: Any) -> None:
    judgement = verdict_on(data)
    assert (judgement.verdict, judgement.concerns) == ("clean", ())


def test_without_markers_times_or_history_nothing_is_guessed(verdict_on: Callable[[Any], Any]) -> None:
    unmarked = training(10, keeps=True) | {"external_annotations": []}
    assert verdict_on(unmarked).verdict == "inconclusive"
    timeless = training(10, keeps=True)
    for item in timeless["device_traces"][0]:
        item.pop("time_us", None)
    assert verdict_on(timeless).verdict == "inconclusive"
    assert verdict_on(snapshot([segment(block(1, 512))])).verdict == "inconclusive"


def test_pending_frees_and_fragmentation_are_noticed(read: Read) -> None:
    waiting = segment(block(0, 64 << 20, "active_pending_free"))
    holes = segment(block(1 << 30, 512), block((1 << 30) + 512, 200 << 20, "inactive"))
    empty = segment(block(2 << 30, 100 << 20, "inactive"))
    report = analyse(read(snapshot([waiting, holes, empty])))
    scraps = report.devices[0].fragmentation
    sizes = (scraps.stuck_bytes, scraps.releasable_bytes, scraps.largest_stuck_bytes)
    assert sizes == (200 << 20, 100 << 20, 200 << 20)
    assert [concern.kind for concern in judge_snapshots([report]).concerns] == ["pending-frees", "fragmentation"]


def written(folder: Path, name: str, data: Any) -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(data))
    return folder / name


def test_the_rank_that_keeps_more_is_named(tmp_path: Path) -> None:
    plain, more = training(10, keeps=False), training(10, keeps=True)
    files = [written(tmp_path, f"rank_{rank:04}/cuda.pickle", more if rank == 2 else plain) for rank in (2, 0, 1)]
    report = examine(files)
    assert [told.rank for told in report.snapshots] == [0, 1, 2]
    assert [told.name for told in report.snapshots] == [f"rank_000{rank}/cuda.pickle" for rank in range(3)]
    growth, excess = report.judgement.concerns
    assert (growth.kind, growth.rank) == ("growth", 2)
    assert (excess.kind, excess.rank, excess.bytes, excess.of_bytes) == ("rank-excess", 2, 20 << 20, 0)


@pytest.mark.parametrize(
    ("frames", "where", "kind"),
    [
        ([("f", "??", 0), ("linear", "/v/site-packages/torch/nn/functional.py", 3), ("fit", "C:\\me\\a.py", 9)],
         "a.py:9 fit", "user"),
        ([("norm", "/v/site-packages/einops/einops.py", 4)], "einops/einops.py:4 norm", "package"),
        ([("__torch_dispatch__", "/v/site-packages/leakscope/recorder/dispatching.py", 4), ("fit", "/me/a.py", 9)],
         "a.py:9 fit", "user"),
        ([("run", "/usr/lib/python3.11/threading.py", 5)], "python3.11/threading.py:5 run", "library"),
        ([("cell", "<ipython-input-3-abc>", 1)], "<ipython-input-3-abc>:1 cell", "user"),
        ([("at::native::empty_cuda(x)", "", 0), ("at::native::bmm(a)", "", 0),
          ("torch::autograd::generated::BmmBackward0::apply(x)", "", 0)],
         "autograd BmmBackward0 (aten::bmm)", "native"),
        ([("ncclAlloc(int)", "x.cpp", 0)], "ncclAlloc", "native"),
        ([("??", "??", 0)], "a stack without a known frame", "unknown"),
    ],
)  # fmt: skip
def test_a_site_is_the_first_user_frame_or_the_best(frames: list[tuple[str, str, int]], where: str, kind: str) -> None:
    site = site_of(tuple(Frame(*one) for one in frames))
    assert (site.where, site.kind) == (where, kind)


def test_lines_are_compared_and_moved_lines_matched(read: Read) -> None:
    def made(*lines: tuple[int, int]) -> SnapshotReport:
        frames = [[frame("/me/train.py", line, "step")] for line, _ in lines]
        held = [block(at << 20, lines[at][1], frames=frames[at]) for at in range(len(lines))]
        return analyse(read(snapshot([segment(one) for one in held])))

    def changes(base: SnapshotReport, new: SnapshotReport) -> dict[str, int]:
        return {site.where: site.new_end_bytes - site.base_end_bytes for site in compare(base, new).sites}

    assert changes(made((12, 100), (14, 50)), made((12, 50), (14, 100))) == {
        "train.py:12 step": -50,
        "train.py:14 step": 50,
    }
    assert changes(made((12, 100), (14, 50)), made((12, 100), (16, 80))) == {"train.py:14 -> :16 step": 30}
    assert changes(made((12, 100)), made((14, 60), (16, 80))) == {
        "train.py:12 step": -100,
        "train.py:14 step": 60,
        "train.py:16 step": 80,
    }
