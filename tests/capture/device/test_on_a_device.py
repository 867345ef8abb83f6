"""On a device: recorded, joined, let alone, out of memory, and what all of it costs.

The device is CUDA's where there is one, and the fake one in host memory (support/devices/torch_fake), which is loaded
as other makers' backends are. Each runs a script under the command, as nothing that touches a device may stay in the
tests' process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import torch
from support.commands.recorded_runs import Runs
from support.devices.kinds import Kind
from support.pages import PAGES
from support.pages.blocks import blocks_of, commands_of
from support.pages.telling import agree
from support.pages.walk import patch

from leakscope.findings.oom import DeviceLook, device_looks
from leakscope.run.model import Rank
from leakscope.run.reader import read_run
from leakscope.run.rows import Elsewhere, WatchedStep
from leakscope.units import bytes_text

pytestmark = pytest.mark.process

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

TRAIN = """
    import atexit, os, sys
    import torch
    from torch import nn

    def say(*words):
        print(*words, flush=True)

    say("used by import", torch.{name}.is_initialized())
    atexit.register(lambda: say("recording at exit", torch.{name}.is_initialized() and {recording}))
    {before}
    torch.manual_seed(0)
    device = torch.device("{name}", 0)
    net = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    say("recording in use", {recording})
    kept = []

    def forward(batch):
        hidden = net(batch)
        {inside}
        return hidden.square().mean()

    for step in range(12):
        loss = forward(torch.randn(256, 512, device=device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say("loss", loss.item().hex())
    {after}
    say("peak", torch.{name}.max_memory_allocated(), torch.{name}.max_memory_reserved())
"""
"""256 x 512 floats: 512 KiB a hidden."""


def written(device: Kind, before: str = "", inside: str = "", after: str = "") -> str:
    """The training, for one kind of device."""
    text = TRAIN.replace("{before}", before).replace("{inside}", inside).replace("{after}", after)
    return text.replace("{recording}", device.recording).replace("{name}", device.name)


@pytest.fixture
def train(runs: Runs, device: Kind) -> Callable[..., tuple[subprocess.CompletedProcess[str], Path]]:
    """Runs the training under the command; gives what it said and the run's folder."""

    def run(
        *options: str, before: str = "", inside: str = "", after: str = "", env: Mapping[str, str] | None = None
    ) -> tuple[subprocess.CompletedProcess[str], Path]:
        recorded = runs.recorded(
            written(device, before, inside, after), *options, env=tuple({**device.env, **(env or {})}.items())
        )
        return recorded.done, recorded.folder

    return run


Train = Callable[..., tuple["subprocess.CompletedProcess[str]", Path]]


def said(told: subprocess.CompletedProcess[str], word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in told.stdout.splitlines() if line.startswith(word)]


def without_leakscope(path: Path, device: Kind, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **device.env}
    return subprocess.run(
        [sys.executable, path.name, *words],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env=environment,
    )


def recorded(folder: Path) -> Rank:
    (rank,) = read_run(folder, snapshots=True).ranks
    return rank


def test_history_is_on_while_the_script_uses_the_device_and_off_afterwards(train: Train) -> None:
    told, folder = train("--snapshot", "always", "--lifetimes")
    assert said(told, "used by import") == ["False"]
    assert said(told, "recording in use") == ["True"]
    assert said(told, "recording at exit") == ["False"]
    rank = recorded(folder)
    (report, *_) = rank.snapshots
    (seen, *_) = report.devices
    assert seen.history in ("complete", "partial") and seen.events > 100
    assert seen.ghost_blocks == 0, "recording began with the first allocation"
    assert any(entry.site.where.startswith("train.py:") for entry in seen.end_sites)


def test_a_script_that_uses_no_device_gets_no_context_and_may_fork(
    script: Write, leakscope: Command, tmp_path: Path, device: Kind
) -> None:
    path = script(f"""
        import os, torch
        weight = torch.ones(8, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(4):  # no backward: autograd counts the devices then, after which no fork may use one
            weight.grad = torch.ones(8)
            optimizer.step()
        print("used", torch.{device.name}.is_initialized(), flush=True)
        child = os.fork()
        if child == 0:
            print("in the child", torch.ones(2, device="{device.name}").sum().item(), flush=True)
            os._exit(0)
        print("child", os.waitpid(child, 0)[1], flush=True)
    """)
    told = leakscope("run", "-q", "-o", "run", "train.py", timeout=300, env=device.env)
    plain = without_leakscope(path, device)
    words = ("used", "in the child", "child")
    assert (
        [said(told, word) for word in words] == [said(plain, word) for word in words] == [["False"], ["2.0"], ["0"]]
    ), told.stderr


def test_a_script_that_records_keeps_its_history_as_without_leakscope(train: Train) -> None:
    records = "torch.{name}.memory._record_memory_history(max_entries=50_000)"
    after = """trace = torch.{name}.memory._snapshot()["device_traces"][0]
    say("events", len(trace), sum(event["action"] == "snapshot" for event in trace))"""
    told, folder = train("--snapshot", "always", inside=f"kept or kept.append({records})", after=after)
    assert said(told, "recording at exit") == ["True"], told.stderr
    (events,) = said(told, "events")
    assert int(events.split()[0]) > 100 and events.split()[1] == "0", "leakscope has taken none in it"
    rank = recorded(folder)
    assert any("records memory history itself" in note for note in rank.notes)
    joined = [row.step for row in rank.device_blocks]
    assert joined == []


def adds_up(looks: Iterable[DeviceLook]) -> bool:
    return all(look.held + look.waiting + look.native + look.pending == look.active for look in looks)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"], ids=["plain segments", "expandable segments"])
def test_every_active_byte_of_a_training_step_is_accounted_for(train: Train, device: Kind, settings: str) -> None:
    if settings and device.name != "cuda":
        pytest.skip("CUDA's allocator alone has expandable segments")
    env = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
    told, folder = train("--no-lifetimes", inside="kept.append(hidden.detach())", env=env)
    assert told.returncode == 23, told.stdout + told.stderr
    rank = recorded(folder)
    looks = [look for look in device_looks(rank) if look.occasion == "step"]
    assert looks and adds_up(device_looks(rank))
    for look in looks:
        heap = next(seen.heap for seen in rank.looks if (seen.step, seen.occasion) == (look.step, look.occasion))
        row = next(r for r in rank.device_blocks if (r.step, r.occasion) == (look.step, look.occasion))
        parameters = 4 * (512 * 512 * 2 + 512 * 2)
        assert look.held >= 3 * parameters + look.step * 256 * 512 * 4, "parameters, two moments, and what is kept"
        (counters,) = [r for r in rank.device_steps if r.step == look.step]
        assert [figures.active for figures in counters.devices] == [look.active], "nothing was allocated in between"
        named = [storage for storage in row.storage if storage >= 0]
        assert len(named) == len(set(named)) and all(heap.object(k).kind == "storage" for k in named)
        assert row.elsewhere == Elsewhere(storages=0, bytes=0)
        # the workspaces of cuBLAS, one a thread and up to 32 MiB, are the only memory of this script that no tensor has
        assert look.native <= 256 << 20 and look.outside is not None and look.outside > 0
    told_findings = json.loads((folder / "findings.json").read_text())["findings"]
    (kept,) = [f for f in told_findings if f["severity"] == "leak" and f["origin"] == "application"]
    assert any(place.startswith("train.py:") for place in kept["allocated_at"]), (
        "from the allocator's stacks or the watched step"
    )


HOST = """
    import torch
    net = torch.nn.Linear(256, 256).to("{name}")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.ones(16 << 20)
    kept = []

    def train():
        batch = torch.ones(1024, 256) + 1
        net(batch.to("{name}")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(batch[:128].clone())

    for _ in range(12):
        train()
"""


def test_memory_of_the_host_is_neither_counted_nor_blamed_for_the_devices_peak(
    script: Write, leakscope: Command, tmp_path: Path, device: Kind
) -> None:
    script(HOST.replace("{name}", device.name))
    told = leakscope("run", "-o", "run", "train.py", timeout=300, env=device.env)
    assert told.returncode == 23, told.stdout + told.stderr
    rank = recorded(tmp_path / "run")
    for look in rank.looks:
        if look.occasion == "step":
            rounded = 512 * len(look.heap.device)
            assert look.counted_on == device.name and look.counted_bytes is not None
            assert 0 <= look.counted_bytes - look.explained_bytes <= rounded + WORKSPACES
    (watched,) = [row for row in rank.lifetimes if isinstance(row, WatchedStep)]
    peak = max(step.peak_bytes or 0 for step in rank.steps)
    assert 0 <= peak - watched.peak_bytes <= (1 << 16) + WORKSPACES, "each block is rounded up"
    findings = json.loads((tmp_path / "run" / "findings.json").read_text())["findings"]
    (leak,) = [finding for finding in findings if finding["severity"] == "leak"]
    assert leak["rule"] == "step-growth" and leak["bytes_per_step"] == 128 * 256 * 4
    text = " ".join(told.stdout.split())
    assert "in host memory, growing 128.00 KiB per step" in text
    all_of_it = leakscope("report", "run", "--verbose").stdout
    assert "in host memory 65.00 MiB" in " ".join(all_of_it.split()), (
        "the data and the batch, as a category of their own"
    )
    late = [finding["title"] for finding in findings if finding["rule"] == "late-release"]
    assert not [title for title in late if "batch" in title], "it is not on the device"


WORKSPACES = 256 << 20 if torch.cuda.is_available() else 0
"""Of cuBLAS, which no storage explains."""

LATE = """
    import sys, torch

    class Scratch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0
        @staticmethod
        def backward(ctx, grad):
            return grad + torch.zeros(1 << 19, device=grad.device)[0]

    net = torch.nn.Linear(256, 8).to("{name}")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    checkpoint = torch.ones(1 << 18, device="{name}"), torch.ones(1 << 19)

    def train():
        batch = torch.ones(1024, 256, device="{name}")
        small = batch.half().float()
        if "cured" in sys.argv:
            del batch
        loss = Scratch.apply(net(small)).pow(2).mean()
        del small
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(10):
        train()
    print("peak", torch.{name}.max_memory_allocated(), flush=True)
"""


def test_letting_go_of_a_batch_on_the_device_saves_what_was_said(
    script: Write, leakscope: Command, tmp_path: Path, device: Kind
) -> None:
    """The peak is in backward, on a thread of autograd's; the variable is one of the thread that waits for it."""
    path = script(LATE.replace("{name}", device.name))
    told = leakscope("run", "-o", "run", "train.py", timeout=300, env=device.env)
    assert told.returncode == 0, told.stdout + told.stderr
    findings = json.loads((tmp_path / "run" / "findings.json").read_text())["findings"]
    assert "leak" not in {finding["severity"] for finding in findings}
    (idle,) = [finding for finding in findings if finding["rule"] == "idle-memory"]
    assert idle["title"].endswith("`del checkpoint` lowers the peak by 1.00 MiB and frees 2.00 MiB of host memory")
    (late,) = [finding for finding in findings if finding["rule"] == "late-release"]
    assert "batch in train()" in late["title"]
    assert late["cut"]["frees_bytes"] == 1024 * 256 * 4
    peaks = [int(said(without_leakscope(path, device, *words), "peak")[0]) for words in ((), ("cured",))]
    assert peaks[0] - peaks[1] == pytest.approx(late["cut"]["frees_bytes"], rel=0.05)


def test_what_backward_makes_is_told_with_the_line_that_waits_for_it(train: Train) -> None:
    _, folder = train(inside="hidden.register_hook(lambda grad: kept.append(grad.detach()))")
    findings = json.loads((folder / "findings.json").read_text())["findings"]
    (leak,) = [finding for finding in findings if finding["severity"] == "leak"]
    assert leak["allocated_at"] and all(place.startswith("train.py:") for place in leak["allocated_at"]), leak[
        "allocated_at"
    ]
    assert any("<module> (aten::" in place and place.endswith("Backward0)") for place in leak["allocated_at"])


@pytest.mark.parametrize("device", ["fake"], indirect=True)
def test_an_allocator_that_counts_nothing_ends_no_recording(train: Train) -> None:
    told, folder = train(env={"PYTORCH_FAKE_ALLOC_CONF": "backend:pluggable"}, inside="kept.append(hidden.detach())")
    assert told.returncode == 23 and "Traceback" not in told.stderr, told.stderr
    rank = recorded(folder)
    assert len(rank.steps) == 12 and rank.device_steps == ()


def test_losses_and_peaks_are_what_they_are_without_leakscope(train: Train, runs: Runs, device: Kind) -> None:
    told, _ = train("--snapshot", "always", "--lifetimes")
    plain = runs.plain(written(device), env=tuple(device.env.items()))
    assert said(told, "loss") == said(plain, "loss") and len(said(plain, "loss")) == 12
    assert said(told, "peak") == said(plain, "peak")


LIMIT = "torch.{name}.set_per_process_memory_fraction((512 << 20) / torch.{name}.get_device_properties(0).total_memory)"


def test_memory_that_runs_out_is_recorded_before_the_stack_unwinds(train: Train, device: Kind) -> None:
    inside = """ballast = torch.empty(64 << 20, dtype=torch.uint8, device=device)
        len(kept) < 4 or torch.empty(1 << 30, dtype=torch.uint8, device=device)
        kept.append(1)"""
    told, folder = train("--no-lifetimes", before=LIMIT, inside=inside)
    assert told.returncode == 1 and "OutOfMemoryError" in told.stderr
    rank = recorded(folder)
    assert [look.occasion for look in rank.looks if look.occasion in ("oom", "memory")] == ["oom"]
    (row,) = rank.device_failures
    assert row.wanted_bytes == 1 << 30 and row.looked and row.at.startswith("train.py:") and row.at.endswith(" forward")
    assert (folder / "rank_0000" / f"{device.name}_oom_{row.step:06d}.pickle").exists()
    text = " ".join(told.stdout.split())
    assert "64.00 MiB in 1 storage: ballast in forward(), train.py" in text
    (seen,) = rank.snapshots[0].devices
    assert [failure.requested_bytes for failure in seen.out_of_memory] == [1 << 30]
    assert f"to be reserved 1.00 GiB, device free {bytes_text(row.free_bytes)}: " in text
    assert "not enough: empty_cache (0 B)" in text


def test_memory_that_runs_out_in_backward_is_recorded_on_autograds_thread(train: Train) -> None:
    before = (
        LIMIT
        + """
    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()
        @staticmethod
        def backward(ctx, grad):
            return grad + torch.empty(1 << 30, dtype=torch.uint8, device=grad.device)[0]
    """
    )
    told, folder = train("--no-lifetimes", before=before, inside="hidden = Greedy.apply(hidden)")
    assert told.returncode == 1 and "OutOfMemoryError" in told.stderr, told.stderr
    (row,) = recorded(folder).device_failures
    assert row.looked and row.at.startswith("train.py:") and row.at.endswith(" backward")


def test_a_script_that_halves_its_batch_is_no_failure(train: Train) -> None:
    inside = """size = 1 << 30
        while size > 1 << 20:
            try:
                torch.empty(size, dtype=torch.uint8, device=device)
                break
            except torch.OutOfMemoryError:
                size //= 2"""
    told, folder = train("--no-lifetimes", before=LIMIT, inside=inside)
    assert told.returncode == 0, told.stdout + told.stderr
    notes = [f for f in json.loads((folder / "findings.json").read_text())["findings"] if f["rule"] == "allocator"]
    assert any("the script continued" in note["title"] and note["severity"] == "note" for note in notes)
    assert "Memory   " not in told.stdout


def test_an_allocator_without_history_is_a_note(train: Train, device: Kind) -> None:
    told, folder = train(
        "--no-lifetimes",
        env=device.without_history,
        before="torch._C._cuda_isHistoryEnabled = lambda: False" if device.name == "cuda" else "",
    )
    assert told.returncode == 0, told.stderr
    assert any("device memory is not recorded" in note for note in recorded(folder).notes)


TWO = """
    import torch
    from torch import nn
    here, there = torch.device("{name}:0"), torch.device("{name}:1")
    first = nn.Linear(256, 512).to(here)
    second = nn.Sequential(nn.Linear(512, 512), nn.Tanh()).to(there)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    kept = []

    def train():
        sent = first(torch.ones(512, 256, device=here))
        received = sent.detach().to(there).requires_grad_()
        second(received).pow(2).mean().backward()
        sent.backward(received.grad.to(here))
        kept.append(received)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(10):
        train()
    print("peak", torch.{name}.max_memory_allocated(1), flush=True)
"""


def test_two_devices_of_one_process_are_told_apart(
    script: Write, leakscope: Command, tmp_path: Path, device: Kind
) -> None:
    if device.name == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("not two CUDA devices here")
    script(TWO.replace("{name}", device.name))
    told = leakscope("run", "-o", "run", "train.py", timeout=300, env=device.env)
    assert told.returncode == 23, told.stdout + told.stderr
    rank = recorded(tmp_path / "run")
    looks = [look for look in device_looks(rank) if look.occasion == "step"]
    assert {look.device for look in looks} == {0, 1} and adds_up(looks)
    assert f"tensor memory on {device.name}:1" in told.stdout
    (watched,) = [row for row in rank.lifetimes if isinstance(row, WatchedStep)]
    assert watched.device == f"{device.name}:1", "the fuller one"
    (peak,) = [look for look in rank.looks if look.occasion == "peak"]
    held = sum(int(peak.heap.bytes[s]) for s, on in peak.heap.device.items() if on == watched.device)
    assert 0 <= watched.peak_bytes - held <= 1 << 20, "what runs at the peak is seen by the allocator alone"
    assert watched.peak_bytes <= int(said(told, "peak")[0])


def test_the_page_on_the_allocator_shows_what_is_told(script: Write, leakscope: Command, device: Kind) -> None:
    """Its scripts are for CUDA; the device's name is put into them, and CUDA's into what is told."""
    page = blocks_of((PAGES / "rules" / "allocator.md").read_text(encoding="utf-8"))
    for block in page:
        if block.language == "python":
            path = script(block.text.replace("cuda", device.name), block.title)
        elif block.language == "diff":
            patch(path, block.text.replace("cuda", device.name))
        for command in commands_of(block.text) if block.language == "text" else ():
            told = leakscope(*command.words.split()[1:], timeout=300, env=device.env).stdout
            assert agree(command.output, told.replace(device.name, "cuda").splitlines()), told


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_step_costs_little(tmp_path: Path) -> None:
    code = f"""if True:
        import statistics, time
        from pathlib import Path
        import torch
        from leakscope.recorder.allocator_monitor import DeviceMemory
        from leakscope.process.patches import Patches
        from leakscope.run.writer import RankFolder

        memory, patches = DeviceMemory(RankFolder(Path({str(tmp_path)!r}), 0), "auto", 0.02), Patches()
        memory.attach(patches)
        alive = [torch.ones(1000, device="cuda") for _ in range(5000)]
        began, spent = time.perf_counter(), []
        for step in range(1, 201):
            alive[step] = torch.ones(1000, device="cuda") + 1
            torch.cuda.synchronize()
            now = time.perf_counter()
            memory.step(step, now - began)
            spent.append(time.perf_counter() - now)
            time.sleep(0.005)
        print(statistics.median(spent), sum(spent) / (time.perf_counter() - began))
        patches.take_out()
    """
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True, env={**os.environ}
    )
    median, share = map(float, told.stdout.split())
    assert median < 0.001 and share < 0.15, told.stdout
