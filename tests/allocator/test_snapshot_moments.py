"""Categories, streams, pools and regions add up to the memory alive at an event."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from leakscope_cli import main
from support import ROOT
from support.snapshots.building import annotation, block, event, frame, freed, segment, snapshot

from leakscope.memory_snapshot.analysis import DeviceReport, analyse
from leakscope.memory_snapshot.model import Snapshot
from leakscope.memory_snapshot.peak import categories_of
from leakscope.memory_snapshot.reader import read_bytes, read_snapshots
from leakscope.memory_snapshot.replay import labelled, replay
from leakscope.memory_snapshot.verdict import SnapshotsReport, judge_snapshots
from leakscope.report.memory_snapshot import label_text, snapshot_text

Read = Callable[[Any], Snapshot]
REAL = ROOT.parent / "shared" / "snapshots"
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


def device_of(told: Snapshot, at: int | None = None) -> DeviceReport:
    (device,) = analyse(told, at=at).devices
    return device


def examined(told: Snapshot) -> SnapshotsReport:
    report = analyse(told)
    return SnapshotsReport((report,), judge_snapshots([report]))


def one_of_each() -> dict[str, Any]:
    trace = [event("alloc", 1 << (20 + at), 1 << at, at, frames) for at, frames in enumerate(STACKS.values())]
    held = [segment(block(1 << (20 + at), 1 << at, frames=frames)) for at, frames in enumerate(STACKS.values())]
    return snapshot(held, trace)


def test_each_kind_is_told_by_its_stack(read: Read) -> None:
    assert device_of(read(one_of_each())).peak_categories == {
        kind: 1 << at for at, kind in reversed(list(enumerate(STACKS)))
    }


INIT = frame("/me/net.py", 5, "__init__")


@pytest.mark.parametrize(
    ("kind", "stack"),
    [
        ("parameter", [INIT, frame("/me/train.py", 8, "main")]),
        ("unknown", [frame("/me/net.py", 9, "make_cache"), INIT, frame("/me/train.py", 8, "main")]),
        ("activation", [frame("??", 0, "at::native::cudnn_batch_norm(x)"), *STACKS["activation"]]),
        ("workspace", [frame("??", 0, "at::cuda::getNewWorkspace()"), *STACKS["activation"]]),
        ("activation", [frame("/me/net.py", 9, "make_workspace"), *STACKS["activation"]]),
    ],
)
def test_what_a_function_is_for_counts_and_not_whose_it_is(read: Read, kind: str, stack: list[dict[str, Any]]) -> None:
    assert device_of(read(snapshot([segment(block(64, 8, frames=stack))]))).peak_categories == {kind: 8}


def test_what_the_optimizer_drops_before_the_next_pass_is_no_state(read: Read) -> None:
    state = STACKS["optimizer state"]
    trace = [
        event("alloc", 64, 8, 0, state),
        event("alloc", 128, 4, 1, state),
        *freed(128, 4, 2),
        event("alloc", 256, 2, 3, STACKS["activation"]),
    ]
    held = [segment(block(64, 8, frames=state)), segment(block(256, 2, frames=STACKS["activation"]))]
    moment = device_of(read(snapshot(held, trace)), at=1).moment
    assert moment is not None
    assert moment.categories == {"optimizer state": 8, "workspace": 4}
    assert (moment.alive_bytes, sum(site.bytes for site in moment.sites)) == (12, 12)


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
    assert [(told.pool, told.peak_bytes) for told in device.pools] == [((1, 0), 612)]
    assert [(region.name, region.times, region.peak_bytes, region.left_bytes) for region in device.regions] == [
        ("block N", 2, 552, -40)
    ]
    assert device.regions[0].peak_event == 4
    assert device.region_categories == ({"unknown": 552},)


def test_what_was_made_under_a_label_is_told_beside_the_peak_of_all(read: Read) -> None:
    region = {"compile_context": "Torch-Compiled Region: 0/0"}
    trace = [
        event("alloc", 4096, 100, 1, user_metadata="encoder", compile_context="N/A"),
        event("alloc", 8192, 30, 2, **region),
        *[part | region for part in freed(8192, 30, 3)],
        event("alloc", 8192, 20, 4, **region),
        event("alloc", 9999, 500, 5, compile_context="N/A", user_metadata=""),
        *freed(9999, 500, 6),
    ]
    held = [segment(block(4096, 100)), segment(block(8192, 20))]
    device = device_of(read(snapshot(held, trace)))
    told = [(row.name, row.allocations, row.peak_bytes, row.at_peak_bytes, row.end_bytes) for row in device.labels]
    assert told == [("Torch-Compiled Region: 0/0", 2, 30, 20, 20), ("encoder", 1, 100, 100, 100)]
    assert [label_text(row) for row in device.labels] == ["Torch-Compiled Region: 0/0", "metadata encoder"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["", "a", "b"]), st.booleans()), max_size=25))
def test_each_labels_peak_is_that_of_its_own_bytes_event_by_event(made: Sequence[tuple[int, str, bool]]) -> None:
    trace: list[dict[str, Any]] = []
    waiting: list[tuple[int, int]] = []
    alive: dict[str, list[int]] = {"a": [0], "b": [0]}
    of: dict[int, str] = {}
    for number, (size, label, frees) in enumerate(made):
        address = (number + 1) << 20
        trace.append(event("alloc", address, size, user_metadata=label))
        waiting.append((address, size))
        of[address] = label
        changes = [(label, size)]
        if frees:
            gone, bytes_ = waiting.pop(0)
            trace += freed(gone, bytes_)
            changes.append((of[gone], -bytes_))
        for whose, change in changes:
            if whose:
                alive[whose].append(alive[whose][-1] + change)
    told = read_bytes("made", pickle.dumps(snapshot([segment(block(*each)) for each in waiting], trace)))
    rows = labelled(replay(told, 0), told.traces[0], 0)
    assert {row.name: (row.peak_bytes, row.end_bytes) for row in rows} == {
        name: (max(levels), levels[-1]) for name, levels in alive.items() if len(levels) > 1
    }


def test_the_peak_of_a_pool_that_is_gone_by_the_end_is_told_where_events_name_it(read: Read) -> None:
    pool = {"pool_id": (3, 0)}
    trace = [
        event("segment_alloc", 4096, 2048, 1, **pool),
        event("alloc", 4096, 700, 2, **pool),
        *[part | pool for part in freed(4096, 700, 3)],
        event("segment_free", 4096, 2048, 4, **pool),
        event("alloc", 9 << 20, 5, 5, pool_id=(0, 0)),
    ]
    device = device_of(read(snapshot([segment(block(9 << 20, 5))], trace)))
    assert [(told.pool, told.reserved_bytes, told.peak_bytes) for told in device.pools] == [
        ((0, 0), 5, 5),
        ((3, 0), 0, 700),
    ]


def test_a_pool_has_none_of_what_another_had_at_the_same_addresses(read: Read) -> None:
    default, private = {"pool_id": (0, 0)}, {"pool_id": (0, 1)}
    trace = [
        event("alloc", 4096, 200, 1, **default),
        *[part | default for part in freed(4096, 200, 2)],
        event("alloc", 4096, 20, 3, **private),
    ]
    device = device_of(read(snapshot([segment(block(4096, 20), pool=(0, 1))], trace)))
    assert [(told.pool, told.peak_bytes) for told in device.pools] == [((0, 1), 20)]


def test_what_was_alive_before_a_region_was_alive_in_it(read: Read) -> None:
    trace = [event("alloc", 4096, 100, 10), event("alloc", 8192, 7, 90)]
    notes = [annotation("eval", 40), annotation("eval", 60, "END")]
    device = device_of(read(snapshot([segment(block(4096, 100)), segment(block(8192, 7))], trace, notes=notes)))
    assert [(region.peak_bytes, region.left_bytes) for region in device.regions] == [(100, 0)]


def test_without_a_history_there_is_no_peak_and_kinds_are_those_of_the_end(read: Read) -> None:
    held = [segment(block(1 << (20 + at), 1 << at, frames=frames)) for at, frames in enumerate(STACKS.values())]
    for trace in ([], [event("snapshot", 0, 63)]):
        told = snapshot_text(examined(read(snapshot(held, trace))))
        assert told.startswith("63 B alive: 32 B of ")
        assert "by kind           workspace 32 B, communication 16 B" in told and "at the end\n" in told
        assert "unknown without a history" in told and "alive at the peak" not in told


def test_an_event_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(one_of_each()))
    told = CliRunner().invoke(main, ["snapshot", "--at", "3", str(path)])
    assert (told.exit_code, "after event 3: 15 B alive" in told.output) == (0, True)
    refused = CliRunner().invoke(main, ["snapshot", "--at", "6", str(path)])
    assert (refused.exit_code, "no event 6" in refused.output) == (2, True)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real snapshots are not kept in the repository (../shared/snapshots)")
def test_of_real_files_kinds_add_up_at_every_event() -> None:
    for path in sorted(REAL.glob("*.pickle")):
        (told,) = read_snapshots(path)
        for trace in told.traces:
            played = replay(told, trace.device)
            curves = categories_of(told, played).over(played, told.blocks.requested[played.ghosts])
            assert np.array_equal(sum(curves.values(), np.zeros(played.events, np.int64)), played.curve)
