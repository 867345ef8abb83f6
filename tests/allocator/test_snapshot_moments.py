"""Categories, streams, pools and regions add up to the memory alive at an event."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from leakscope_cli import main
from support.snapshots.building import annotation, block, event, frame, freed, segment, snapshot

from leakscope.memory_snapshot.analysis import DeviceReport, analyse
from leakscope.memory_snapshot.model import Snapshot

Read = Callable[[Any], Snapshot]
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
    assert [(told.pool, told.peak_bytes) for told in device.pools] == [((1, 0), 612)]
    assert [(region.name, region.times, region.peak_bytes, region.left_bytes) for region in device.regions] == [
        ("block N", 2, 552, -40)
    ]
    assert device.regions[0].peak_event == 4
    assert device.region_categories == ({"unknown": 552},)


def test_an_event_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(one_of_each()))
    for event_number, status, text in (("3", 0, "after event 3: 15 B alive"), ("6", 2, "no event 6")):
        done = CliRunner().invoke(main, ["snapshot", "--at", event_number, str(path)])
        assert done.exit_code == status and text in done.output
