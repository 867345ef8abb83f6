"""Verdicts on memory snapshots separate growth from plateaus and report fragmentation and failures."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.snapshots.building import OTHER, TRAIN, annotation, block, event, frame, freed, segment, snapshot, training

from leakscope.errors import LeakscopeError
from leakscope.memory_snapshot.analysis import SnapshotReport, analyse
from leakscope.memory_snapshot.model import Frame, Snapshot
from leakscope.memory_snapshot.sites import site_of
from leakscope.memory_snapshot.verdict import compare, examine, judge_snapshots

Read = Callable[[Any], Snapshot]


@pytest.fixture
def verdict_on(read: Read) -> Callable[[Any], Any]:
    return lambda data: judge_snapshots([analyse(read(data))])


def test_what_each_step_leaves_behind_is_a_leak_with_place_and_bytes(verdict_on: Callable[[Any], Any]) -> None:
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


def test_three_rises_are_needed(verdict_on: Callable[[Any], Any]) -> None:
    assert verdict_on(training(4, keeps=True)).verdict == "leaks"
    judgement = verdict_on(training(3, keeps=True))
    assert judgement.verdict == "inconclusive"
    assert "2 complete steps" in judgement.why


def test_state_made_in_the_first_step_only_is_clean(verdict_on: Callable[[Any], Any]) -> None:
    data = training(6, keeps=False)
    trace = data["device_traces"][0]
    trace.insert(2, event("alloc", 0x77, 8 << 20, 250, OTHER))
    data["segments"].append(segment(block(0x77, 8 << 20, frames=OTHER)))
    assert verdict_on(data).verdict == "clean"


def test_small_growth_is_listed_and_makes_no_verdict(read: Read) -> None:
    data = training(10, keeps=True)
    for item in data["device_traces"][0]:
        item["size"] = min(item["size"], 512)
    for part in data["segments"]:
        part["blocks"][0]["requested_size"] = 512
    report = analyse(read(data))
    assert [grown.bytes_per_step for grown in report.devices[0].growth.growing] == [512]
    assert judge_snapshots([report]).verdict == "clean"


def test_the_first_optimizer_marks_steps_before_other_annotations(read: Read) -> None:
    data = training(6, keeps=True)
    data["external_annotations"] += [annotation("Optimizer.zero_grad#SGD.zero_grad", 50 * n) for n in range(60)]
    data["external_annotations"] += [annotation("Optimizer.step#Later.step", 1 + 10 * n) for n in range(99)]
    growth = analyse(read(data)).devices[0].growth
    assert (growth.marker, growth.steps) == ("Optimizer.step#SGD.step", 5)


def test_numbered_step_annotations_are_one_marker(read: Read) -> None:
    data = training(6, keeps=True)
    data["external_annotations"] = [annotation(f"ProfilerStep#{n}", 1000 * n) for n in range(6)]
    assert analyse(read(data)).devices[0].growth.growing[0].site.where == "train.py:12 step"


def test_without_markers_times_or_history_nothing_is_guessed(verdict_on: Callable[[Any], Any]) -> None:
    unmarked = training(10, keeps=True) | {"external_annotations": []}
    assert "marks no steps" in verdict_on(unmarked).why
    timeless = training(10, keeps=True)
    for item in timeless["device_traces"][0]:
        item.pop("time_us", None)
    assert "carry no times" in verdict_on(timeless).why
    assert "no history" in verdict_on(snapshot([segment(block(1, 512))])).why


def test_out_of_memory_comes_first(verdict_on: Callable[[Any], Any]) -> None:
    data = training(10, keeps=True)
    data["device_traces"][0].append(
        {"action": "oom", "device_free": 5, "size": 1 << 30, "stream": 0, "time_us": 1_760_000_009_900_000}
    )
    judgement = verdict_on(data)
    assert [concern.kind for concern in judgement.concerns] == ["out-of-memory", "growth"]
    assert (judgement.concerns[0].bytes, judgement.concerns[0].alive_bytes) == (1 << 30, 20 << 20)


def test_pending_frees_and_fragmentation_are_noticed(read: Read) -> None:
    waiting = segment(block(0, 64 << 20, "active_pending_free"))
    holes = segment(block(1 << 30, 512), block((1 << 30) + 512, 200 << 20, "inactive"))
    empty = segment(block(2 << 30, 100 << 20, "inactive"))
    report = analyse(read(snapshot([waiting, holes, empty])))
    scraps = report.devices[0].fragmentation
    assert (scraps.stuck_bytes, scraps.releasable_bytes, scraps.largest_stuck_bytes) == (
        200 << 20,
        100 << 20,
        200 << 20,
    )
    assert [concern.kind for concern in judge_snapshots([report]).concerns] == ["pending-frees", "fragmentation"]


def test_pools_are_told_apart(read: Read) -> None:
    parts = [
        segment(block(0, 512)),
        segment(block(1000, 512), pool=(3, 0)),
        segment(block(2000, 512, "inactive"), pool=(0, 2)),
    ]
    pools = analyse(read(snapshot(parts))).devices[0].pools
    assert [(pool.owner, pool.active_bytes) for pool in pools] == [
        ("default", 512), ("MemPool or graph pool handle", 0), ("CUDA graph capture", 512),
    ]  # fmt: skip


def test_block_without_a_stack_takes_that_of_its_event(read: Read) -> None:
    told = analyse(
        read(snapshot([segment(block(1, 512))], [event("alloc", 1, 512, 0, TRAIN), event("alloc", 2, 1), *freed(2, 1)]))
    )
    assert told.devices[0].end_sites[0].site.where == "train.py:12 step"


def written(folder: Path, name: str, data: Any) -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(data))
    return folder / name


def test_files_are_ranks_and_the_one_that_keeps_more_is_named(tmp_path: Path) -> None:
    plain, more = training(10, keeps=False), training(10, keeps=True)
    files = [written(tmp_path, f"rank_{rank:04}/cuda.pickle", more if rank == 2 else plain) for rank in (2, 0, 1)]
    report = examine(files)
    assert [told.rank for told in report.snapshots] == [0, 1, 2]
    assert [told.name for told in report.snapshots] == [f"rank_000{rank}/cuda.pickle" for rank in range(3)]
    growth, excess = report.judgement.concerns
    assert (growth.kind, growth.rank) == ("growth", 2)
    assert (excess.kind, excess.rank, excess.bytes, excess.of_bytes) == ("rank-excess", 2, 20 << 20, 0)


def test_comparing_joins_places_across_shifted_lines(tmp_path: Path) -> None:
    fixed = training(10, keeps=False)
    shifted = [TRAIN[0], frame("/home/me/train.py", 19, "step")]
    for item in fixed["device_traces"][0]:
        if item.get("frames") is TRAIN:
            item["frames"] = shifted
    report = examine(
        [written(tmp_path, "before.pickle", training(10, keeps=True)), written(tmp_path, "after.pickle", fixed)], True
    )
    assert report.comparison is not None
    (change,) = report.comparison.sites
    assert (change.where, change.new_end_bytes - change.base_end_bytes) == ("train.py:12 -> :19 step", -(20 << 20))
    assert report.comparison.end_bytes == -(20 << 20)
    assert report.judgement.verdict == "clean"


def test_comparing_takes_exactly_two(tmp_path: Path) -> None:
    with pytest.raises(LeakscopeError, match="takes two snapshots"):
        examine([written(tmp_path, "one.pickle", training(3, keeps=True))], True)


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
def test_first_user_frame_or_the_best_name_there_is(frames: list[tuple[str, str, int]], where: str, kind: str) -> None:
    site = site_of(tuple(Frame(*one) for one in frames))
    assert (site.where, site.kind) == (where, kind)


def test_lines_are_compared_apart_and_one_that_an_edit_moved_is_found_again(read: Read) -> None:
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
