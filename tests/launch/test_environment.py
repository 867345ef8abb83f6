"""Outside launchers are recognized, the store listens on the loopback only, paths are relative to a repository."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch.distributed as dist

from leakscope.errors import LaunchFailed
from leakscope.launch.elastic import loopback_store
from leakscope.launch.start import ExternalLauncher, in_repository, outside_launcher


@pytest.mark.parametrize(
    ("environment", "outside"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, ExternalLauncher(1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"WORLD_SIZE": "4"}, None),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, ExternalLauncher(3, 4)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, None),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, ExternalLauncher(3, 4)),
    ],
    ids=str,
)
def test_the_launcher_is_known_by_its_variables(
    environment: Mapping[str, str], outside: ExternalLauncher | None
) -> None:
    assert outside_launcher(environment) == outside


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "two", "WORLD_SIZE": "4"},
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "²", "WORLD_SIZE": "4"},
        {"PMI_RANK": "0", "PMI_SIZE": "many"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "", "SLURM_STEP_ID": "0", "RANK": "1", "WORLD_SIZE": "1"},
    ],
    ids=str,
)
def test_invalid_rank_numbers_are_refused(environment: Mapping[str, str]) -> None:
    with pytest.raises(LaunchFailed, match="not a valid rank"):
        outside_launcher(environment)


def test_the_store_listens_on_the_loopback_alone() -> None:
    store, port = loopback_store()
    other = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    other.set("seen", "yes")
    assert store.get("seen") == b"yes"
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    heard = [row[1] for row in rows if row[3] == "0A"]
    here = [address.partition(":")[0] for address in heard if int(address.rpartition(":")[2], 16) == port]
    assert [socket.inet_ntoa(bytes.fromhex(address)[::-1]) for address in here] == ["127.0.0.1"]


def test_paths_are_relative_to_the_nearest_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "outer" / "inner"
    (inner / "work dir").mkdir(parents=True)
    (tmp_path / "outer" / ".git").mkdir()
    monkeypatch.chdir(inner / "work dir")
    assert in_repository("train.py") == {"folder": "inner/work dir", "script": "inner/work dir/train.py"}
    assert in_repository("") == {"folder": "inner/work dir"}
    (inner / ".git").write_text("gitdir: elsewhere")
    assert in_repository("../train.py") == {"folder": "work dir", "script": "train.py"}
    monkeypatch.chdir(tmp_path)
    assert in_repository("outer/train.py") == {"script": "train.py"}
    monkeypatch.chdir(tmp_path / "outer")
    assert in_repository("train.py") == {"folder": ".", "script": "train.py"}
