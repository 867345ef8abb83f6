"""Scripts that come by everything that leakscope puts into a process: each prints what it sees, and exits with 3."""

from __future__ import annotations

TRAINING = """
import gc, multiprocessing, subprocess, sys, threading
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d as c10d


def seen(name, call):
    try:
        print(name, call())
    except Exception as error:
        print(name, type(error).__name__)


class OwnWork(dist._Work):
    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def wait(self, timeout=None):
        if self.fails:
            raise LookupError("the script's own")
        return True


class OwnGroup(dist.ProcessGroup):
    def send(self, tensors, other, tag=0):
        if other == 9:
            raise LookupError("the script's own")
        return OwnWork(other == 7)

    def allreduce(self, tensors, options=None):
        return OwnWork(False)

    def rank(self):
        return 0

    def size(self):
        return 2


class Wrapped(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
own, world = OwnGroup(0, 2), dist.group.WORLD
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
net(torch.ones(2, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(4):
    optimizer.zero_grad()
    loss = net(torch.full((2, 8), 1.0 + step)).sum()
    loss.backward()
    print("sent", own.send([torch.ones(3)], 1, 0).wait())
    seen("refused", lambda: own.send([torch.ones(3)], 9, 0))
    seen("failed wait", lambda: own.send([torch.ones(3)], 7, 0).wait())
    own.allreduce([torch.ones(3)])
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    print("future", len(future.then(lambda done: done.value()).wait()), future.wait()[0].shape, future.done())
    work.is_completed()
    print("work", work.wait())
    seen("refused for its options", lambda: world.allreduce([torch.ones(2)], "no options"))
    with dist._coalescing_manager(world, async_ops=True) as coalesced:
        dist.all_reduce(tensor)
        dist.all_reduce(torch.ones(2))
    coalesced.wait()
    print("functional", functional.wait_tensor(functional.all_reduce(tensor, "sum", world)).sum().item())
    operators = torch.ops._c10d_functional
    seen("functional refused", lambda: operators.all_reduce(tensor, "no such thing", world.group_name))
    torch.utils.swap_tensors(torch.ones(2), torch.ones(3))
    wrapped = torch.Tensor._make_subclass(Wrapped, torch.ones(2))
    print("numbers", tensor.tolist(), tensor.numpy().shape, (wrapped + 1).shape)
    torch.ones(2).untyped_storage().resize_(4096)
    optimizer.step()
    gc.collect()
    del loss, work, future, coalesced
print("threads", threading.active_count())
process = subprocess.run([sys.executable, "--version"], stdout=subprocess.DEVNULL)
child = multiprocessing.get_context("fork").Process(target=lambda: optimizer.step())
child.start()
child.join()
print("children", process.returncode, child.exitcode)
torch.compile(net, backend=lambda graph, inputs: graph)
del optimizer
print("weight", net[0].weight.sum().item())
print("the script's own word", file=sys.stderr)
sys.exit(3)
"""
"""An optimizer, backwards, modules, a watched step, comm of all kinds, children and collections."""

STEP_FUNCTION = """
import sys
import torch

def train_step(weight):
    weight.sum().backward()
    return weight.grad.sum().item()

weight = torch.ones(4, requires_grad=True)
for _ in range(4):
    print(train_step(weight))
print("the script's own word", file=sys.stderr)
sys.exit(3)
"""
"""To be run with `--step-function train_step`."""
