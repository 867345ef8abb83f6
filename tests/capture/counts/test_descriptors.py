"""Open descriptors, shared and pinned memory are counted by type without side effects."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch

from leakscope.process.torch_compat import pinned_bytes
from leakscope.recorder.process_counters import open_descriptors, shared_memory

NOWHERE = "/nowhere/"


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def more(before: dict[str, int] | None, own: str = NOWHERE) -> dict[str, int]:
    now = open_descriptors(own)
    assert now is not None and before is not None
    return {kind: count - before.get(kind, 0) for kind, count in now.items() if count != before.get(kind, 0)}


def test_each_kind_has_a_name_of_its_own(opened: ExitStack, tmp_path: Path) -> None:
    listening = opened.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
    before = open_descriptors(NOWHERE)
    for number in range(3):
        opened.enter_context((tmp_path / f"part_{number}.log").open("w"))
    for _ in range(2):
        opened.enter_context((tmp_path / "same.csv").open("w"))
    for end in os.pipe():
        opened.callback(os.close, end)
    host, port = listening.getsockname()
    opened.enter_context(closing(socket.create_connection((host, port))))
    opened.enter_context(closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
    for pair in socket.socketpair():
        opened.enter_context(closing(pair))
    event = os.eventfd(0)
    opened.callback(os.close, event)
    assert more(before) == {
        f"{tmp_path}/*.log": 3,
        f"{tmp_path}/same.csv": 2,
        "pipe": 2,
        f"socket to {host}:{port}": 1,
        "datagram socket": 1,
        "unix socket": 2,
        "eventfd": 1,
    }
    assert more(before, own=f"{tmp_path}/").keys() == more(before).keys() - {
        f"{tmp_path}/*.log",
        f"{tmp_path}/same.csv",
    }


def test_counting_leaves_nothing_open_and_no_socket_is_another_after_it(opened: ExitStack) -> None:
    listening = opened.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
    client = opened.enter_context(closing(socket.create_connection(listening.getsockname())))
    server = opened.enter_context(closing(listening.accept()[0]))
    client.setblocking(False)
    numbers = os.listdir("/proc/self/fd")
    open_descriptors(NOWHERE)
    assert os.listdir("/proc/self/fd") == numbers
    assert client.getblocking() is False
    server.sendall(b"still there")
    client.setblocking(True)
    assert client.recv(11) == b"still there"


def test_segments_are_counted_by_what_is_mapped(opened: ExitStack) -> None:
    import mmap

    before = shared_memory()
    path = f"/dev/shm/leakscope_test_{os.getpid()}"
    with open(path, "wb+") as file:
        opened.callback(os.unlink, path)
        file.truncate(1 << 16)
        opened.enter_context(closing(mmap.mmap(file.fileno(), 1 << 16)))
    now = shared_memory()
    assert before is not None and now is not None
    assert (now.segments - before.segments, now.bytes - before.bytes) == (1, 1 << 16)


def test_pinned_memory_kept_for_reuse_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"active_bytes.current": 4096, "allocated_bytes.current": 1 << 20}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: stats, raising=False)
    assert pinned_bytes() == 4096
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert pinned_bytes() is None
