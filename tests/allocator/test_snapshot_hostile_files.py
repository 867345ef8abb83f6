"""Hostile memory snapshots are rejected without executing code, crashing or exhausting memory."""

from __future__ import annotations

import io
import os
import pickle
import struct
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.snapshots.building import block, event, freed, segment, training

from leakscope.errors import Unreadable
from leakscope.memory_snapshot._unpickle import BUDGET_PER_BYTE, FREE_BUDGET, PlainUnpickler
from leakscope.memory_snapshot.analysis import analyse
from leakscope.memory_snapshot.reader import read_bytes
from leakscope.memory_snapshot.verdict import SnapshotsReport, compare, judge_snapshots
from leakscope.report.memory_snapshot import snapshot_html, snapshot_json, snapshot_text


class Exploit:
    """Pickles as a call of os.system."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def doubling(depth: int) -> list[Any]:
    """A list of a few objects whose text has 2**depth parts."""
    made: list[Any] = []
    for _ in range(depth):
        made = [made, made]
    return made


HOSTILE = {
    "os.system": pickle.dumps({"segments": [Exploit()]}),
    "instance": b"\x80\x02(ios\nsystem\n.",
    "stack global": b"\x80\x04" + text("os") + text("system") + b"\x93.",
    "persistent id": b"\x80\x02K\x01Q.",
    "huge bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40),
    "huge memo index": b"\x80\x04]r" + struct.pack("<I", 0xFFFFFFFF) + b".",
    "deep lists": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "one-item dictionaries": b"\x80\x04" + text("k") + b"\x94](" + b"}h\x00Ns" * 60_000 + b"e.",
    "doubling tuples as a key": b"\x80\x04)\x94"
    + b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(60)) + b"}h\x3cNs.",
    "colliding keys": b"\x80\x04}("
    + b"".join(b"\x8a\x09" + ((2**61 - 1) * n).to_bytes(9, "little") + b"N" for n in range(2000)) + b"u.",
    "segments that share their blocks": pickle.dumps([segment(*[block(n << 20, 512) for n in range(300)])] * 20_000),
    "devices that share their trace": pickle.dumps({"device_traces": [[event("alloc", 0, 512)] * 50_000] * 200}),
    "doubling lists as a state": pickle.dumps([segment(block(0, 512) | {"state": doubling(60)})]),
    "dictionary in itself": b"\x80\x04}\x94" + text("segments") + b"h\x00s.",
    "stack in itself": b"\x80\x04}" + text("device_traces") + b"]]}\x94("
    + text("action") + b"\x94" + text("alloc") + b"\x94" + text("size") + b"\x94K\x01"
    + text("frames") + b"\x94]\x94h\x05auaas.",
    "text with an astral character": b"\x80\x04X"
    + struct.pack("<I", 1_000_004) + b"a" * 1_000_000 + "\U0001f600".encode() + b".",
}  # fmt: skip


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_pickles_are_refused_cheaply(name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]
    data = HOSTILE[name]
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(Unreadable) as refused:
            read_bytes("x", data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in str(refused.value)
    assert not os.listdir(".")
    assert peak <= (BUDGET_PER_BYTE + 8) * len(data) + 2 * FREE_BUDGET
    assert time.process_time() - started < 15


@pytest.mark.parametrize("name", ["os.system", "stack global", "persistent id"])
def test_the_unpickler_itself_refuses_globals(name: str) -> None:
    with pytest.raises(Unreadable):
        PlainUnpickler(io.BytesIO(HOSTILE[name])).load()


def newest() -> dict[str, Any]:
    """With the fields that torch 2.8 to 2.15 added, a private pool, and a failure."""
    data = training(6, keeps=True)
    for number, item in enumerate(data["device_traces"][0]):
        item |= {
            "compile_context": f"Torch-Compiled Region: {number % 3}/0",
            "user_metadata": "" if number % 2 else f"layer {number}",
            "pool_id": (0, number % 2),
            "forward_frames": [],
        }
    base = 1 << 40
    data["device_traces"][0] += [
        event("segment_alloc", base, 20 << 20, 9000, pool_id=(0, 1)),
        event("alloc", base, 3 << 20, 9100, pool_id=(0, 1)),
        event("oom", 0, 40 << 20, 9200, device_free=1 << 20, pool_id=(0, 1)),
        *freed(base, 3 << 20, 9300),
        event("segment_unmap", base, 20 << 20, 9400, pool_id=(0, 1)),
    ]
    return data


SMALL = [
    pickle.dumps(training(6, keeps=True), 4),
    pickle.dumps(training(6, keeps=True, capacity=2), 2),
    pickle.dumps(newest(), 4),
]


def examined(data: bytes) -> bool:
    """Read and judge `data`; False when it is refused. Anything but a refusal escapes."""
    try:
        report = analyse(read_bytes("x", data))
    except Unreadable as refused:
        assert "\n" not in str(refused)
        return False
    reports = SnapshotsReport((report,), judge_snapshots([report]))
    compare(report, report)
    assert snapshot_text(reports) and snapshot_json(reports) and snapshot_html(reports)
    return True


@pytest.mark.parametrize("which", [1, 2], ids=["protocol 2", "newest fields"])
def test_truncated_anywhere_is_refused(which: int) -> None:
    data = SMALL[which]
    assert examined(data)
    assert not any(examined(data[:length]) for length in range(0, len(data) - 1, 19))


@settings(max_examples=30, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=12))
def test_overwritten_bytes_never_crash(which: int, edits: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL[which])
    for place, value in edits:
        data[place % len(data)] = value
    examined(bytes(data))


OPCODES = [
    b"}", b"]", b"(", b"u", b"e", b"a", b"s", b"\x94", b"h\x00", b"h\x01", b"K\x07", b"N", b"\x86", b"t",
    text("action"), text("segments"), text("device_traces"), b"}\x94(", b")",
]  # fmt: skip


@settings(max_examples=40, deadline=2000)
@given(st.lists(st.sampled_from(OPCODES), max_size=60))
def test_opcodes_in_any_order_never_crash(parts: list[bytes]) -> None:
    examined(b"\x80\x04" + b"".join(parts) + b".")
