"""Verdicts, inferred steps and categories of memory snapshots."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from leakscope_cli import main
from support.snapshots.building import annotation, block, event, frame, freed, segment, snapshot, training

from leakscope.memory_snapshot.analysis import DeviceReport, SnapshotReport, analyse
from leakscope.memory_snapshot.model import Frame, Snapshot
from leakscope.memory_snapshot.sites import site_of
from leakscope.memory_snapshot.verdict import SnapshotVerdict, compare, examine, judge_snapshots

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
    assert [reported.rank for reported in report.snapshots] == [0, 1, 2]
    assert [reported.name for reported in report.snapshots] == [f"rank_000{rank}/cuda.pickle" for rank in range(3)]
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


KIB = 1 << 10
FORWARD = [
    frame("/venv/lib/python3.11/site-packages/torch/nn/functional.py", 7, "linear"),
    frame("/me/net.py", 5, "forward"),
]
LOSS = [frame("/me/train.py", 30, "loss")]
KEPT = [frame("/me/train.py", 41, "remember")]
BACKWARD = [frame("??", 0, "torch::autograd::generated::AddmmBackward0::apply(x)")]
STATE = [frame("/me/my_optimizer.py", 50, "step")]


class Tape:
    """Allocations one after the other, each at an address of its own."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self.alive: dict[int, tuple[int, Any]] = {}

    def make(self, size: int, frames: Any) -> int:
        address = (len(self.trace) + 1) << 24
        self.trace.append(event("alloc", address, size, None, frames))
        self.alive[address] = (size, frames)
        return address

    def drop(self, address: int) -> None:
        self.trace += freed(address, self.alive.pop(address)[0], None)

    def judged(self, read: Read) -> SnapshotVerdict:
        held = [segment(block(address, size, frames=frames)) for address, (size, frames) in self.alive.items()]
        return judge_snapshots([analyse(read(snapshot(held, self.trace)))])


def step(tape: Tape, layers: int, keeps: int, wider: int = 0, through: Sequence[dict[str, Any]] = ()) -> None:
    """A step of training; `keeps` bytes of it stay, and `through` are frames within all of its own."""
    made = [tape.make((64 + wider + layer) * KIB, [*through, *FORWARD]) for layer in range(layers)]
    loss = tape.make(512, [*through, *LOSS])
    for activation in reversed(made):
        gradient = tape.make(64 * KIB + wider, [*through, *BACKWARD])
        tape.drop(activation)
        tape.drop(gradient)
    if keeps:
        tape.make(keeps, [*through, *KEPT])
    tape.drop(loss)


@pytest.mark.parametrize("widths", [(0,), (0, 3, 1, 7, 2)], ids=["the same sizes", "other sizes each step"])
def test_growth_over_repeated_steps_is_a_leak(read: Read, widths: tuple[int, ...]) -> None:
    tape = Tape()
    for number in range(12):
        step(tape, 4, keeps=1 << 20, wider=widths[number % len(widths)])
    judgement = tape.judged(read)
    (growth,) = judgement.concerns
    assert judgement.verdict == "leaks" and growth.site is not None
    assert (growth.site.where, growth.per_step) == ("train.py:41 remember", 1 << 20)


def test_steps_that_keep_nothing_are_clean(read: Read) -> None:
    tape = Tape()
    for _ in range(12):
        step(tape, 4, keeps=0)
    judgement = tape.judged(read)
    assert (judgement.verdict, judgement.concerns) == ("clean", ())


def layers_of_one_forward(tape: Tape) -> None:
    for _ in range(24):
        tape.make(4 << 20, FORWARD)
        tape.drop(tape.make(2 << 20, LOSS))


def states_of_one_optimizer(tape: Tape) -> None:
    for _ in range(24):
        tape.make(4 << 20, STATE)
        tape.drop(tape.make(2 << 20, STATE))


@pytest.mark.parametrize("one", [layers_of_one_forward, states_of_one_optimizer])
def test_repetition_within_one_step_is_no_step(read: Read, one: Callable[[Tape], None]) -> None:
    tape = Tape()
    one(tape)
    judgement = tape.judged(read)
    assert (judgement.verdict, judgement.concerns) == ("inconclusive", ())


TORCH = "/venv/lib/python3.11/site-packages/torch/"
MODULE = frame(f"{TORCH}nn/modules/module.py", 1, "_call_impl")
STACKS = {
    "parameter": [
        frame(f"{TORCH}nn/modules/module.py", 7, "convert"),
        frame(f"{TORCH}nn/modules/module.py", 9, "_apply"),
        frame("/me/train.py", 3, "main"),
    ],
    "activation": [frame("/me/net.py", 5, "forward"), MODULE, frame("/me/train.py", 8, "main")],
    "gradient": [frame("??", 0, "torch::autograd::generated::AddmmBackward0::apply(x)")],
    "optimizer state": [frame(f"{TORCH}optim/adam.py", 5, "_init_group"), frame(f"{TORCH}optim/adam.py", 7, "step")],
    "communication": [
        frame(f"{TORCH}distributed/distributed_c10d.py", 5, "all_gather"),
        frame("/me/net.py", 2, "forward"),
    ],
    "workspace": [frame("??", 0, "at::cuda::getCurrentCUDABlasHandle()"), frame("??", 0, "cublasSetWorkspace")],
}


def device_of(snapshot_read: Snapshot) -> DeviceReport:
    (device,) = analyse(snapshot_read).devices
    return device


def one_of_each() -> dict[str, Any]:
    trace = [event("alloc", 1 << (20 + at), 1 << at, at, frames) for at, frames in enumerate(STACKS.values())]
    held = [segment(block(1 << (20 + at), 1 << at, frames=frames)) for at, frames in enumerate(STACKS.values())]
    return snapshot(held, trace)


def test_each_category_is_recognized_by_its_stack(read: Read) -> None:
    assert device_of(read(one_of_each())).peak_categories == {
        kind: 1 << at for at, kind in reversed(list(enumerate(STACKS)))
    }


def test_streams_pools_and_regions_have_peaks_of_their_own(read: Read) -> None:
    pool = segment(block(4096, 512, "inactive"), block(4608, 512), pool=(1, 0))
    trace = [
        event("alloc", 4096, 100, 10),
        event("alloc", 4608, 512, 20),
        *freed(4096, 100, 30),
        event("alloc", 9000, 40, 40, stream=7),
        *freed(9000, 40, 60),
    ]
    notes = [
        annotation("block 1", 35),
        annotation("block 1", 45, "END"),
        annotation("block 2", 50),
        annotation("block 2", 70, "END"),
    ]
    device = device_of(read(snapshot([pool], trace, notes=notes)))
    assert [(peak.stream, peak.peak_bytes, peak.event) for peak in device.streams] == [(0, 612, 1), (7, 40, 4)]
    assert [(reported.pool, reported.peak_bytes) for reported in device.pools] == [((1, 0), 612)]
    assert [(region.name, region.times, region.peak_bytes, region.left_bytes) for region in device.regions] == [
        ("block N", 2, 552, -40)
    ]
    assert device.regions[0].peak_event == 4
    assert device.region_categories == ({"unknown": 552},)


def test_an_event_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(one_of_each()))
    for event_number, status, text in (("3", 0, "After event 3: 15 B alive"), ("6", 2, "no event 6")):
        done = CliRunner().invoke(main, ["snapshot", "--at", event_number, str(path)])
        assert done.exit_code == status and text in done.output
