"""Operations on torch's backend that sends nothing, and the file of the last one."""

from __future__ import annotations

import gc
import json
import struct
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functions
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore

from leakscope.comm.monitor import CommMonitor
from leakscope.comm.operations import Channel, CommFile, CommGroup, LastOperationFile, LiveOperation
from leakscope.comm.tracking import CommStorageRef, DeathRef, OperationLog, TensorRef, moments
from leakscope.process.patches import Patches
from leakscope.recorder import verify_cut
from leakscope.run.operations import NAME, SIZE, WAITED, unpack
from leakscope.run.reader import read_run
from leakscope.run.rows import to_json
from leakscope.run.writer import RankFolder, write_run

CPU = torch.device("cpu")


class Seen:
    """A watch, and what it has written once it is taken out."""

    def __init__(self, path: Path) -> None:
        self._folder = RankFolder(path, 1)
        self.watch = CommMonitor(self._folder, Patches())

    def rows(self) -> list[dict[str, Any]]:
        self.watch.remove()
        self._folder.close()
        found: dict[int, dict[str, Any]] = {}
        path = self._folder.path / "wire.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            found.setdefault(row["id"], {}).update(row)
        return [found[number] for number in sorted(found)]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    found = Seen(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch puts one of its own there and leaves it
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield found
    found.watch.remove()
    dist.destroy_process_group()


def test_a_coalesced_group_has_one_work_for_all_its_operations(seen: Seen) -> None:
    out, got = torch.ones(3), torch.empty(5)
    with dist.distributed_c10d._coalescing_manager(device=CPU, async_ops=True) as manager:
        dist.isend(out, 0)
        dist.irecv(got, 2, tag=4)
    dist.isend(torch.ones(2), 3).wait()
    held = {id(tensor): (work, name) for work, tensor, name in seen.watch.holds()}
    assert held == {id(out): (manager.works[0], "send buffer"), id(got): (manager.works[0], "recv buffer")}
    manager.wait()
    del manager, out, got, held
    first, second, alone = seen.rows()
    assert [(row["direction"], row["peer"], row["tag"]) for row in (first, second)] == [("send", 0, 0), ("recv", 2, 4)]
    assert first["waited"] == second["waited"] > alone["waited"]
    for row in (first, second, alone):
        assert "dropped" not in row and row["work_died"] >= row["waited"] and row["storage_died"] is not None


def test_peers_in_a_group_are_ranks_of_the_world(seen: Seen) -> None:
    group = dist.new_group([1, 3])
    dist.send(torch.ones(2), group=group, group_dst=1)
    dist.send(torch.ones(2), 3, group=group)
    dist.recv(torch.ones(2), group=group, group_src=1, tag=2)
    dist.isend(torch.ones(2), 3).wait()
    rows = seen.rows()
    assert [row["peer"] for row in rows] == [3, 3, 3, 3]
    assert [row["nth"] for row in rows] == [1, 2, 1, 1]
    assert rows[0]["group"] == rows[1]["group"] == group.group_name and rows[3]["group"] == "default"


class Passing(dist.ProcessGroup):
    """A group written in Python that hands everything to another."""

    def __init__(self, below: dist.ProcessGroup) -> None:
        super().__init__(below.rank(), below.size())
        self.below = below

    def send(self, *arguments: Any) -> Any:
        return self.below.send(*arguments)

    def allreduce(self, *arguments: Any) -> Any:
        return self.below.allreduce(*arguments)


def test_a_group_written_in_python_is_seen_once(seen: Seen) -> None:
    original = Passing.send
    world = dist.group.WORLD
    assert world is not None
    group = Passing(world)
    group.send([torch.ones(2)], 2, 5).wait()
    group.allreduce([torch.ones(4)]).wait()
    world.send([torch.ones(2)], 2, 5).wait()
    rows = seen.rows()
    assert [(row["direction"], row["bytes"], row["waited"] is not None) for row in rows] == [
        ("send", 8, True), ("allreduce", 16, True), ("send", 8, True),
    ]  # fmt: skip
    assert Passing.send is original


def test_operators_keep_their_hash_and_torchscript_finds_them(seen: Seen) -> None:
    operator = torch.ops._c10d_functional.wait_tensor
    hashes = hash(operator), hash(operator.default)

    def waits(tensor: torch.Tensor) -> torch.Tensor:
        return torch.ops._c10d_functional.wait_tensor(tensor)  # type: ignore[no-any-return]

    assert "_c10d_functional::wait_tensor" in str(torch.jit.script(waits).graph)
    seen.watch.remove()
    assert hashes == (hash(operator), hash(operator.default))


def compiled_outcome() -> tuple[list[float], dict[str, int]]:
    """What compiled code answers, and how torch compiled it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    @torch.compile(backend="aot_eager")
    def crossing(tensor: torch.Tensor) -> torch.Tensor:
        total = functions.all_reduce(tensor * 2, "sum", dist.group.WORLD)
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        dist.send(tensor, 2)
        return total + 1

    answers = [float(crossing(torch.ones(4)).sum()) for _ in range(2)]
    counted = torch._dynamo.utils.counters
    return answers, {**counted["stats"], "breaks": sum(counted["graph_break"].values())}


def test_compiled_code_is_the_same_and_seen(seen: Seen) -> None:
    watched = compiled_outcome()
    rows = seen.rows()
    assert watched == compiled_outcome() and watched[1]["unique_graphs"] > 1
    assert [row["direction"] for row in rows].count("all_reduce") == 4
    assert all("test_operations.py" in row["issued_at"] for row in rows)
    assert {row["direction"] for row in rows} == {"all_reduce", "allreduce", "send"}


def test_a_call_that_cannot_be_recorded_is_made_all_the_same(seen: Seen, tmp_path: Path) -> None:
    group = dist.group.WORLD
    assert group is not None
    with pytest.raises(TypeError, match="incompatible function arguments"):
        group.send([torch.ones(2)], 0, [3])  # type: ignore[list-item] # no tag of torch's, and no key of a dict
    dist.isend(torch.ones(2), 3).wait()
    assert [row["peer"] for row in seen.rows()] == [3]
    (note,) = (json.loads(line)["note"] for line in (tmp_path / "rank_0001" / "notes.jsonl").read_text().splitlines())
    assert "TypeError" in note


def test_tensors_that_were_sent_can_be_swapped(seen: Seen) -> None:
    here, there = torch.ones(3), torch.zeros(3)
    dist.isend(here, 0).wait()
    dist.all_reduce(there)
    torch.utils.swap_tensors(here, there)
    assert here.tolist() == [0, 0, 0] and "swap_tensors" in torch.utils.swap_tensors.__name__
    del here, there
    sent, reduced = seen.rows()
    for row in (sent, reduced):  # the storages are followed all the same
        assert row["tensor_died"] is None and row["storage_died"] >= row["waited"]


def test_our_weak_reference_to_a_buffer_does_not_prevent_proof_of_a_cut(seen: Seen) -> None:
    buffer = torch.ones(3)
    dist.isend(buffer, 0).wait()
    assert weakref.getweakrefs(buffer) and not verify_cut._calls_outside(buffer)
    theirs = weakref.ref(buffer, [].append)
    assert verify_cut._calls_outside(buffer)
    del theirs


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
    reported = unpack(path.read_bytes())
    last.close()
    rest = {"direction": "send", "peer": peer, "tag": tag, "bytes": 4096, "group": "default", "issued_at": line}
    numbers = {"state": "waited", "newest": False, "id": 4, "nth": 7, "step": 5, "microbatch": 2, "issued": 0.25}
    assert (to_json(reported) == {**numbers, **rest}) if reported is not None else len(line) > 200
    last.update(operation(channel, 5, line), WAITED)  # another thread that waits on is not disturbed


def test_the_newest_operation_is_marked_until_another_is_told_of(tmp_path: Path) -> None:
    log = OperationLog(CommFile(RankFolder(tmp_path, 0), 0.0), 0.0)
    log._groups._by_name["default"] = CommGroup("default", (0, 1))

    def issue(direction: str) -> LiveOperation:
        issued = log.begin(direction, "default", 1, 0, [], None)
        assert issued is not None, log.why
        return issued

    def reported() -> tuple[int, str, bool]:
        last = unpack((tmp_path / "rank_0000" / NAME).read_bytes())
        assert last is not None
        return last.id, last.state, last.newest

    sent, received = issue("send"), issue("recv")
    assert reported() == (2, "issued", True)
    log.waiting([received])
    assert reported() == (2, "waits", True)
    log.waiting([sent])
    assert reported() == (1, "waits", False)
    log.waited([sent])
    assert reported() == (1, "waited", False)
    issue("send")
    assert reported() == (3, "issued", True)


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
