"""Every way to send, receive, reduce and wait, a step for each; each rank writes its answers as JSON.

python all_operations.py FOLDER: two ranks without and two with leakscope, forked from a process that has torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

warnings.simplefilter("ignore")  # torch deprecates half of what is called here
torch.set_num_threads(1)
rank = other = 0
deaths: list[str] = []
"""Tensors and storages in the order of their deaths."""
sums: dict[str, float] = {}
problems: list[str] = []


def made(name: str, *shape: int) -> Tensor:
    """A tensor of ones whose two deaths are noted."""
    tensor = torch.ones(*shape)
    weakref.finalize(tensor, deaths.append, f"tensor {name}")
    weakref.finalize(tensor.untyped_storage(), deaths.append, f"storage {name}")
    return tensor


def settle(*names: str) -> None:
    """Wait for gloo's thread, which releases a tensor a moment after wait() has returned."""
    deadline = time.monotonic() + 10
    while not all(f"storage {name}" in deaths for name in names):
        if time.monotonic() > deadline:
            problems.append(f"{names} did not die")
            return
        time.sleep(0.002)


def send_and_recv() -> None:
    buffer = made("sent", 4)
    (dist.send if rank == 0 else dist.recv)(buffer, other, tag=1)
    sums["sent"] = float(buffer.sum())
    del buffer
    settle("sent")


def with_works() -> None:
    buffer = made("isent", 4)
    work = (dist.isend if rank == 0 else dist.irecv)(buffer, other, tag=2)
    del buffer
    deaths.append("before wait")
    work.wait()
    deaths.append("after wait")
    del work
    settle("isent")


def batched() -> None:
    out, got = made("out", 2, 3), made("got", 2, 3)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, out, other, tag=3), dist.P2POp(dist.irecv, got, other, tag=3)]
    )
    del out
    for work in works:
        work.wait()
    del got
    deaths.append("before the works")
    del works, work
    settle("out", "got")


def reused() -> None:
    buffer = made("reused", 8)
    for _ in range(3):
        (dist.send if rank == 0 else dist.recv)(buffer, other, tag=4)
    del buffer
    settle("reused")


def from_anybody() -> None:
    buffer = made("anybody's", 4)
    if rank == 0:
        dist.send(buffer, other, tag=6)
    else:
        sums["source"] = float(dist.recv(buffer, tag=6))
    del buffer
    settle("anybody's")


def collectives() -> None:
    for name, call in (
        ("all_reduce", lambda t: dist.all_reduce(t, async_op=True)),
        ("all_gather", lambda t: dist.all_gather([torch.empty(4), torch.empty(4)], t, async_op=True)),
        ("reduce_scatter_tensor", lambda t: dist.reduce_scatter_tensor(torch.empty(2), t, async_op=True)),
    ):
        buffer = made(name, 4)
        work = call(buffer)
        work.wait()
        sums[name] = float(buffer.sum())
        del buffer, work
        settle(name)


def by_future() -> None:
    buffer = made("by future", 4)
    future = dist.all_reduce(buffer, async_op=True).get_future()
    future.wait()
    del future, buffer
    settle("by future")


def functional() -> None:
    import torch.distributed._functional_collectives as functions

    world = dist.group.WORLD
    total = functions.all_reduce(made("functional", 4), "sum", world)
    weakref.finalize(total.elem.untyped_storage(), deaths.append, "storage result")
    settle("functional")
    sums["functional"] = float((total + 1).sum())
    del total
    settle("result")
    gathered = functions.all_gather_tensor(made("shard", 4), 0, world)
    sums["gathered"] = float(functions.wait_tensor(gathered).sum())
    del gathered
    settle("shard")
    name = world.group_name  # type: ignore[union-attr]
    operators = torch.ops._c10d_functional
    # the sender's buffer stays in torch's registry of Works: `isend` enters it twice and is waited for once
    way, buffer = ("isend", torch.ones(4)) if rank == 0 else ("irecv", made("functional receive", 4))
    operators.wait_tensor.default(getattr(operators, way)(buffer, other, 7, name))
    del buffer
    if rank == 1:
        settle("functional receive")
    parts = [torch.ones(2), torch.ones(3)]
    for waiting in operators.batch_p2p_ops([way] * 2, [other] * 2, [8, 9], parts, name):
        operators.wait_tensor(waiting)


def never_waited() -> None:
    import torch.distributed._functional_collectives as functions

    functions.all_reduce(torch.ones(4), "sum", dist.group.WORLD)


PARTS: Sequence[Callable[[], None]] = (
    send_and_recv, with_works, batched, reused, from_anybody, collectives, by_future, functional, never_waited,
)  # fmt: skip


def run(folder: Path, watched: bool) -> None:
    """What a rank does."""
    if watched:
        from leakscope.comm.monitor import CommMonitor
        from leakscope.process.patches import Patches
        from leakscope.run.writer import RankFolder

        written = RankFolder(folder, rank)
        monitor = CommMonitor(written, Patches())
    store = dist.FileStore(str(folder / f"store_{watched}"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for number, do in enumerate(PARTS, 1):
        deaths.append(do.__name__)
        do()
        dist.barrier()
        if watched:
            monitor.step_ended(number)
    if watched:
        monitor.remove()
        written.close()
    answer = {"deaths": deaths, "sums": sums, "problems": problems, "parts": [do.__name__ for do in PARTS]}
    (folder / f"answer_{watched}_{rank}").write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    for with_leakscope in (False, True):
        ranks = []
        for rank in (0, 1):
            other = 1 - rank
            if not (child := os.fork()):
                try:
                    run(Path(sys.argv[1]), with_leakscope)
                    os._exit(0)
                finally:
                    os._exit(1)
            ranks.append(child)
        if any(os.waitpid(child, 0)[1] for child in ranks):
            sys.exit("a rank failed")
