"""Allocator history is recorded from the first use of the device, unless the script records its own."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from support.devices.fake_device import State, device_module, natives

from leakscope.process.patches import Patches
from leakscope.recorder.accelerator import Accelerator, described
from leakscope.recorder.allocator_monitor import ENTRIES, OVER, THEIRS, WAITING, MemoryHistory


class Attached:
    """A history over a fake device, with the notes it made."""

    def __init__(self, wanted: bool = True, **known: object) -> None:
        self.state = State(**known)  # type: ignore[arg-type]
        self.module = device_module(self.state)
        self.device = described("cuda", self.module, (natives(self.state),))
        self.notes: list[str] = []
        self.begun = 0
        self.patches = Patches()
        self.history = MemoryHistory(self.device, wanted, self.notes.append, self._begin)
        self.history.attach(self.patches)

    def _begin(self) -> None:
        self.begun += 1


def test_history_begins_with_the_first_use() -> None:
    unused = Attached()
    unused.patches.take_out()
    assert unused.module._queued_calls == [] and unused.state.calls == []
    at = Attached()
    assert (at.history.state, at.state.calls, at.begun) == (WAITING, [], 0), (
        "a script that uses no device gets no context"
    )
    at.module.use()
    assert at.history.is_ours() and at.begun == 1
    assert at.state.calls == [
        ("record", {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": ENTRIES})
    ]


def test_at_the_end_history_is_off_and_all_is_as_found() -> None:
    at = Attached()
    record = at.device.record
    at.module.use()
    assert at.module.memory._record_memory_history is not record
    at.patches.take_out()
    assert not at.state.recording and at.history.state == OVER
    assert at.module.memory._record_memory_history is record
    assert at.module._queued_calls == []


def test_a_script_that_records_gets_its_own_events_only() -> None:
    at = Attached()
    at.module.use()
    at.state.snapshot["device_traces"] = [["leakscope's"]]
    at.module.memory._record_memory_history(max_entries=7)
    assert at.state.snapshot["device_traces"] == [[]], "ours are gone before theirs begin"
    at.state.snapshot["device_traces"] = [["the script's"]]
    assert at.history.state == THEIRS and not at.history.is_ours()
    assert len(at.notes) == 1
    at.patches.take_out()
    assert at.state.recording and at.state.snapshot["device_traces"] == [["the script's"]]


def test_an_allocator_without_history_is_a_note_and_no_error() -> None:
    at = Attached(refuses="cudaMallocAsync does not yet support recordHistory")
    at.module.use()
    assert at.state.initialized and at.history.state == OVER
    assert len(at.notes) == 1 and "cudaMallocAsync" in at.notes[0]


@pytest.mark.process
def test_a_forked_child_touches_nothing() -> None:
    at = Attached()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        at.module.use()
        at.module.memory._record_memory_history()
        at.patches.take_out()
        os._exit(len(at.state.calls) - 1 + len(at.notes) + at.begun)
    assert os.waitpid(child, 0)[1] == 0, "one call, the child's own"


def test_the_calls_of_torch_are_found_on_each_backend() -> None:
    cuda = described("cuda", torch.cuda, (torch._C,))
    assert cuda.record is torch.cuda.memory._record_memory_history
    assert cuda.segments is not None
    assert cuda.record_arguments(5) == {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": 5}
    assert cuda.queue is torch.cuda._queued_calls
    xpu = described("xpu", torch.xpu, (torch._C,))
    assert xpu.snapshot is getattr(torch.xpu.memory, "_snapshot", None)
    assert xpu.segments is None, "its listing knows no include_traces"
    assert xpu.record_arguments(5) == {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": 5}
    mtia = described("mtia", torch.mtia, (torch._C,))
    assert mtia.record_arguments(5) == {"enabled": "all", "stacks": "python", "max_entries": 5}
    assert all(isinstance(found, Accelerator) for found in (cuda, xpu, mtia))
