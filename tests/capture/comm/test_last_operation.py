"""The last operation of a rank is readable after any exit, and deaths are noted without Python."""

from __future__ import annotations

import gc
import struct
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakscope.comm.operations import Channel, CommFile, CommGroup, LastOperationFile, LiveOperation
from leakscope.comm.tracking import CommStorageRef, DeathRef, OperationLog, TensorRef, moments
from leakscope.run.operations import NAME, SIZE, WAITED, unpack
from leakscope.run.reader import read_run
from leakscope.run.rows import to_json
from leakscope.run.writer import RankFolder, write_run

NO_ROW = (struct.pack("<8s4qdI", b"waits", 1, 1, 1, 1, 0.5, 4) + b"null").ljust(SIZE, b"\0")


def operation(channel: Channel, number: int, line: str) -> LiveOperation:
    channel.nth, channel.microbatch = 7, 2
    made = LiveOperation(number, channel, 5, (line, ""))
    made.issued, made.bytes = 1.25, 4096
    return made


@given(line=st.text(max_size=3000), peer=st.none() | st.integers(0, 10**6), tag=st.none() | st.integers(0, 2**31))
def test_what_was_said_last_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, line: str, peer: int | None, tag: int | None
) -> None:
    path = tmp_path_factory.mktemp("last") / NAME
    last = LastOperationFile(path, 1.0)
    assert unpack(path.read_bytes()) is None
    channel = Channel("send", peer, tag, "default")
    last.update(operation(channel, 3, "a longer line than the next: train.py:1 forward"), WAITED)
    last.update(operation(channel, 4, line), WAITED)
    told = unpack(path.read_bytes())
    last.close()
    rest = {"direction": "send", "peer": peer, "tag": tag, "bytes": 4096, "group": "default", "issued_at": line}
    numbers = {"state": "waited", "newest": False, "id": 4, "nth": 7, "step": 5, "microbatch": 2, "issued": 0.25}
    assert (to_json(told) == {**numbers, **rest}) if told is not None else len(line) > 200
    last.update(operation(channel, 5, line), WAITED)  # another thread that waits on is not disturbed


def test_the_newest_operation_is_marked_until_another_is_told_of(tmp_path: Path) -> None:
    log = OperationLog(CommFile(RankFolder(tmp_path, 0), 0.0), 0.0)
    log._groups._by_name["default"] = CommGroup("default", (0, 1))

    def issue(direction: str) -> LiveOperation:
        issued = log.begin(direction, "default", 1, 0, [], None)
        assert issued is not None, log.why
        return issued

    def told() -> tuple[int, str, bool]:
        last = unpack((tmp_path / "rank_0000" / NAME).read_bytes())
        assert last is not None
        return last.id, last.state, last.newest

    sent, received = issue("send"), issue("recv")
    assert told() == (2, "issued", True)
    log.waiting([received])
    assert told() == (2, "waits", True)
    log.waiting([sent])
    assert told() == (1, "waits", False)
    log.waited([sent])
    assert told() == (1, "waited", False)
    issue("send")
    assert told() == (3, "issued", True)


@pytest.mark.parametrize("left", [b"", b"x", b"\xff" * SIZE, b"waits\0\0\0" + b"\1" * 8 + bytes(SIZE - 16), NO_ROW])
def test_a_file_left_half_written_costs_a_note_at_most(tmp_path: Path, left: bytes) -> None:
    write_run(tmp_path, {"ranks": 1, "command": ["train.py"], "torch": "", "leakscope": ""})
    (tmp_path / "rank_0000").mkdir()
    (tmp_path / "rank_0000" / NAME).write_bytes(left)
    (rank,) = read_run(tmp_path).ranks
    assert rank.final_operation is None


def test_deaths_have_their_moments_in_any_thread_and_in_gc() -> None:
    died_at = moments()
    kept: list[DeathRef] = []

    def let_go(cyclic: bool) -> None:
        for _ in range(200):
            tensor = torch.empty(1)
            kept.append(TensorRef(tensor, died_at.__getitem__))
            kept.append(CommStorageRef(tensor.untyped_storage(), died_at.__getitem__))
            if cyclic:
                tensor.itself = tensor  # type: ignore[attr-defined]

    threads = [threading.Thread(target=let_go, args=(cyclic,)) for cyclic in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert {id(reference) for reference in died_at} == {id(reference) for reference in kept}
    assert all(moment > 0 for moment in died_at.values())
