"""Run by the tests as two processes: what crosses, who outlives what, and what was written, as JSON on rank 0 and 1.

python two_ranks.py RANK STORE FOLDER WATCHED
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

rank, store, folder, watched = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4] == "watched"
torch.set_num_threads(1)
if watched:
    from leakscope.comm.monitor import CommMonitor
    from leakscope.process.patches import Patches
    from leakscope.run.writer import RankFolder

    written = RankFolder(folder, rank)
    before = dict(vars(torch._C._distributed_c10d.ProcessGroup)), dict(vars(torch._C._distributed_c10d.Work))
    monitor = CommMonitor(written, Patches())
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
pair = dist.new_group([1, 0])
other = 1 - rank
alive: list[bool] = []
sums: list[float] = []


def expired(reference: StorageWeakRef) -> None:
    alive.append(not reference.expired())


def synchronous() -> None:
    buffer = torch.full((4, 8), float(rank))
    reference = StorageWeakRef(buffer.untyped_storage())
    dist.send(buffer, other, tag=3) if rank == 0 else dist.recv(buffer, other, tag=3)
    sums.append(float(buffer.sum()))
    del buffer
    expired(reference)


def kept_work() -> None:
    buffer = torch.full((16,), 2.0)
    reference = StorageWeakRef(buffer.untyped_storage())
    work = dist.isend(buffer, other) if rank == 0 else dist.irecv(buffer, other)
    del buffer
    expired(reference)
    work.wait()
    expired(reference)
    del work
    expired(reference)


def batched() -> None:
    out, got = torch.full((8,), float(rank)), torch.empty(8)
    references = [StorageWeakRef(t.untyped_storage()) for t in (out, got)]
    operations = [dist.P2POp(dist.isend, out, other, group=pair), dist.P2POp(dist.irecv, got, other, group=pair)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    sums.append(float(got.sum()))
    del out, got, operations, work
    for reference in references:
        expired(reference)


def of_objects() -> None:
    items = [{"a": 1}] if rank == 0 else [None]
    dist.send_object_list(items, other) if rank == 0 else dist.recv_object_list(items, other)
    sums.append(float(items[0]["a"]))


def directly() -> None:
    buffer = torch.ones(2)
    group = dist.group.WORLD
    (group.send([buffer], other, 9) if rank == 0 else group.recv([buffer], other, 9)).wait()


def collectives() -> None:
    total = torch.ones(32)
    reference = StorageWeakRef(total.untyped_storage())
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    parts = [torch.empty(4), torch.empty(4)]
    dist.all_gather(parts, torch.ones(4))
    sums.append(float(total.sum() + parts[0].sum()))
    del total
    expired(reference)
    del work
    deadline = time.monotonic() + 2  # gloo's own thread lets go of the tensor a moment after wait() has returned
    while not reference.expired() and time.monotonic() < deadline:
        time.sleep(0.01)
    expired(reference)


def dropped() -> None:
    dist.all_reduce(torch.ones(3), async_op=True)  # gloo cancels a send whose Work is dropped, and the receiver hangs


def reused() -> None:
    buffer = torch.ones(6)
    for _ in range(3):
        dist.send(buffer, other, tag=6) if rank == 0 else dist.recv(buffer, other, tag=6)


for number, part in enumerate((synchronous, kept_work, batched, of_objects, directly, collectives, dropped, reused), 1):
    part()
    dist.barrier()
    if watched:
        monitor.step_ended(number)
answer = {"alive": alive, "sums": sums}
if watched:
    monitor.remove()
    after = dict(vars(torch._C._distributed_c10d.ProcessGroup)), dict(vars(torch._C._distributed_c10d.Work))
    answer["as found"] = before == after
    written.close()
print(json.dumps(answer))
dist.destroy_process_group()
