"""All containers and versions of memory snapshots are read; other files are rejected with one sentence."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.snapshots.building import OTHER, TRAIN, block, event, frame, segment, snapshot, training

from leakscope.errors import Unreadable
from leakscope.memory_snapshot.model import Snapshot, Trace
from leakscope.memory_snapshot.reader import read_bytes, read_snapshots
from leakscope.memory_snapshot.verdict import rank_in

Read = Callable[[Any], Snapshot]


def same(one: Snapshot, other: Snapshot) -> bool:
    """Whether both have equal segments, blocks and traces."""
    pairs = [(one.blocks, other.blocks), *zip(one.traces, other.traces, strict=True)]
    numbered = ("stack", "compiled", "metadata", "pool", "texts", "pools")
    fields = [(getattr(a, name), getattr(b, name)) for a, b in pairs for name in vars(a) if name not in numbered]
    stacks = [[one.stacks[i] for i in a.stack] == [other.stacks[i] for i in b.stack] for a, b in pairs]
    names = [named(a) == named(b) for a, b in zip(one.traces, other.traces, strict=True)]
    return one.segments == other.segments and all(stacks + names) and all(np.array_equal(a, b) for a, b in fields)


def named(trace: Trace) -> list[tuple[str, str, tuple[int, int]]]:
    """Compiled region, metadata and pool of each event."""
    columns = (trace.compiled.tolist(), trace.metadata.tolist(), trace.pool.tolist())
    pools = (*trace.pools, (-1, -1))
    return [(trace.texts[a], trace.texts[b], pools[c]) for a, b, c in zip(*columns, strict=True)]


def test_fields_of_newer_torch_are_read_of_each_event(read: Read) -> None:
    trace = training(40, keeps=True, capacity=3)["device_traces"][0]
    for index, item in enumerate(trace):
        item |= {"compile_context": "N/A", "user_metadata": f"note {index % 3}", "pool_id": (0, 300 * (index % 7))}
    (trace_read,) = read(snapshot([], trace)).traces
    assert named(trace_read) == [("", item["user_metadata"], item["pool_id"]) for item in trace]


def test_forward_frames_stand_in_for_a_backward_without_python(read: Read) -> None:
    forward = ['  File "/home/me/net.py", line 31, in forward\n', "    return self.linear(x)\n"]
    reported = read(snapshot([], [event("alloc", 1, 512, frames=[], forward_frames=forward)] * 2))
    assert reported.stacks[reported.traces[0].stack[0]] == (("backward of forward", "/home/me/net.py", 31),)


def test_bare_segment_list_gzip_and_viewer_page(tmp_path: Path) -> None:
    data = training(4, keeps=True)
    plain = pickle.dumps(data)
    (tmp_path / "bare.pickle").write_bytes(pickle.dumps(data["segments"]))
    (tmp_path / "s.pickle.gz").write_bytes(gzip.compress(plain))
    embedded = [{"name": f"rank{n}.pickle", "base64": base64.b64encode(plain + b"\0\0\0").decode()} for n in range(2)]
    (tmp_path / "page.html").write_text(f"\n<script>\nconst local_files = {json.dumps(embedded)}\n</script>")
    assert len(read_snapshots(tmp_path / "bare.pickle")[0].segments) == 4
    expected = read_bytes("s", plain)
    assert same(read_snapshots(tmp_path / "s.pickle.gz")[0], expected)
    pages = read_snapshots(tmp_path / "page.html")
    assert [page.name for page in pages] == ["rank0.pickle", "rank1.pickle"]
    assert all(same(page, expected) for page in pages)


def test_page_written_by_torch_itself_is_read(tmp_path: Path) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    data = training(4, keeps=True)
    (tmp_path / "page.html").write_text(viewer.trace_plot(data))
    assert same(read_snapshots(tmp_path / "page.html")[0], read_bytes("s", pickle.dumps(data)))


def test_cpp_pickler_layout_is_read() -> None:
    """torch's C++ pickler writes protocol 2, numbered memo entries, and one mark around all items of a list."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    alloc = b"}q\x05(" + text("action") + text("alloc") + text("addr") + b"\x8a\x08" + struct.pack("<q", 2**45)
    alloc += text("size") + b"J" + struct.pack("<i", 4096) + b"u"
    data = b"\x80\x02}q\x00(" + text("segments") + b"]" + text("device_traces") + b"](](" + alloc * 1 + b"ee" + b"u."
    (trace,) = read_bytes("a", data).traces
    assert (trace.address[0], trace.size[0]) == (2**45, 4096)


def test_legacy_blocks_take_address_and_stack_from_where_2_0_wrote_them(read: Read) -> None:
    history = [{"addr": 512, "real_size": 900, "frames": TRAIN}, {"addr": 0, "real_size": 7, "frames": OTHER}]
    blocks = [{"size": 512, "state": "inactive"}, {"size": 1024, "state": "active_allocated", "history": history}]
    reported = read(
        [{"device": 0, "address": 0, "total_size": 1536, "stream": 0, "segment_type": "small", "blocks": blocks}]
    )
    assert reported.blocks.address.tolist() == [0, 512]
    assert reported.blocks.requested.tolist() == [512, 900]
    assert reported.stacks[reported.blocks.stack[1]][1].line == 12


WITHOUT_LINE = frame("a.py", "x", "f")  # type: ignore[arg-type]


FOREIGN = {
    "it is empty": b"",
    "neither a pickle": b"hello there",
    "cut short": b'<script>const local_files = [{"name": "a", "base64": "AAAA',
    "gzip data is damaged": gzip.compress(b"\x80\x04N.", mtime=0)[:12],
    "100 times": gzip.compress(bytes(40_000_000), mtime=0),
    "neither segments nor device traces": pickle.dumps({"a": 1}),
    "its segments are of type dict": pickle.dumps({"segments": {"a": 1}}),
    "state is 'on fire'": pickle.dumps([segment(block(0, 512, "on fire"))]),
    "invalid requested_size": pickle.dumps([segment(block(0, 512, requested=2**60))]),
    "invalid size": pickle.dumps({"device_traces": [[event("alloc", 0, size) for size in (1, 2, 3, -1)]]}),
    "line is not a number": pickle.dumps({"device_traces": [[event("alloc", 0, 5, frames=[WITHOUT_LINE])]]}),
}
"""Part of the message to what is in the file."""


@pytest.mark.parametrize("reason", FOREIGN)
def test_foreign_and_damaged_files_are_refused(tmp_path: Path, reason: str) -> None:
    file = tmp_path / "file.pickle"
    file.write_bytes(FOREIGN[reason])
    with pytest.raises(Unreadable) as refused:
        read_snapshots(file)
    assert reason in str(refused.value) and str(file) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank0_memory_snapshot.pickle", 0),
        ("runs/rank_0003/cuda_step_000012.pickle", 3),
        ("snapshot_rank-12.pickle.gz", 12),
        ("mem_r5.pickle", 5),
        ("frank7.pickle", None),
    ],
)
def test_rank_comes_from_the_name(path: str, rank: int | None) -> None:
    assert rank_in(Path(path)) == rank
