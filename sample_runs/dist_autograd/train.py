"""Two workers that share one backward over RPC; `--leak` leaves distributed-autograd contexts open.

Worker 0 owns the head of the network and the data, worker 1 the trunk. Every microbatch has a distributed-autograd
context of its own, in a thread of its own, because a context belongs to the thread that opened it. Run it with

    torchrun --nproc-per-node 2 train.py --leak open-context
    leakscope run --ranks 2 train.py --leak open-context

`--leak` is one of:

* `none`: `with dist_autograd.context()` around forward, backward and the reading of the gradients; leaving it
  releases the context on both workers.
* `open-context`: the context is entered and never left (pytorch#61920). To blame: `microbatch_left_open`. The
  context is kept by torch's own container in C++, on both workers, with the gradients it gathered; gc cannot see it
  and nothing of Python holds it.
* `failed-backward`: the trunk refuses a gradient that is not finite and raises in the middle of the distributed
  backward (the second microbatch of each step overflows). The engine keeps its promise (pytorch#27643): worker 0 is
  told, and no backward is left running on either worker. To blame: `microbatch_closed_by_hand`, which leaves the
  context in the line after backward and so not when backward raises; contexts stay open for the failed microbatches
  only.

At the end every worker prints its counters of open contexts and running backward passes. No call waits longer than
30 s.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import rpc

MICROBATCHES = 2
SAMPLES, WIDTH = 64, 256
RPC_TIMEOUT_SECONDS = 30
LEAKS = ("none", "open-context", "failed-backward")


class RefuseOverflow(torch.autograd.Function):
    """Passes its input on; its backward raises if the gradient is not finite."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if not torch.isfinite(grad).all():
            raise FloatingPointError("the gradient that reached the trunk is not finite")
        return grad


class Half:
    """A worker's half of the network with its optimizer; each worker has one."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)

    def take_gradient(self, context_id: int) -> None:
        """Adds what this context gathered for the weight to `weight.grad`."""
        grad = dist_autograd.get_gradients(context_id)[self.weight]
        self.weight.grad = grad.clone() if self.weight.grad is None else self.weight.grad.add_(grad)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


half: Half
"""This worker's half; RPC finds it here."""


# What worker 1 is asked to do


def trunk(data: Tensor) -> Tensor:
    hidden: Tensor = RefuseOverflow.apply(torch.tanh(data @ half.weight))
    return hidden


def take_trunk_gradient(context_id: int) -> None:
    half.take_gradient(context_id)


def step_trunk() -> None:
    half.step()


def open_contexts() -> tuple[int, int]:
    """Open contexts and running backward passes on this worker."""
    counters = dist_autograd._get_debug_info()
    return int(counters["num_autograd_contexts"]), int(counters["num_current_backward_passes"])


# What worker 0 does with a microbatch

Microbatch = Callable[[Tensor, float], float]


def forward_and_backward(context_id: int, data: Tensor, scale: float) -> float:
    hidden = rpc.rpc_sync("worker1", trunk, args=(data,))
    loss = F.mse_loss(hidden @ half.weight, data)
    dist_autograd.backward(context_id, [loss * scale])
    return loss.item()


def take_gradients(context_id: int) -> None:
    half.take_gradient(context_id)
    rpc.rpc_sync("worker1", take_trunk_gradient, args=(context_id,))


def microbatch_in_context(data: Tensor, scale: float) -> float:
    with dist_autograd.context() as context_id:
        loss = forward_and_backward(context_id, data, scale)
        take_gradients(context_id)
    return loss


def microbatch_left_open(data: Tensor, scale: float) -> float:
    context_id = dist_autograd.context().__enter__()
    loss = forward_and_backward(context_id, data, scale)
    take_gradients(context_id)
    return loss


def microbatch_closed_by_hand(data: Tensor, scale: float) -> float:
    context = dist_autograd.context()
    context_id = context.__enter__()
    loss = forward_and_backward(context_id, data, scale)
    take_gradients(context_id)
    context.__exit__(None, None, None)
    return loss


def run_in_own_thread(microbatch: Microbatch, data: Tensor, scale: float) -> list[float]:
    """The microbatch's loss, or nothing where its backward was refused."""
    losses: list[float] = []
    refused: list[str] = []

    def run() -> None:
        try:
            losses.append(microbatch(data, scale))
        except RuntimeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=run, name="microbatch")
    thread.start()
    thread.join()
    if refused and "not finite" not in refused[0]:
        raise RuntimeError(refused[0])
    return losses


def train(leak: str, steps: int) -> list[float]:
    """Trains both halves from worker 0; gives the loss of every microbatch that counted."""
    microbatch = {
        "none": microbatch_in_context,
        "open-context": microbatch_left_open,
        "failed-backward": microbatch_closed_by_hand,
    }[leak]
    generator = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(steps):
        for number in range(MICROBATCHES):
            data = torch.randn(SAMPLES, WIDTH, generator=generator)
            overflows = leak == "failed-backward" and number == 1
            losses += run_in_own_thread(microbatch, data, float("inf") if overflows else 1.0)
        rpc.rpc_sync("worker1", step_trunk)
        half.step()
    return losses


def main() -> None:
    global half
    parser = argparse.ArgumentParser(description="Two workers that share one backward over RPC.")
    parser.add_argument("--leak", choices=LEAKS, default="none", help="how contexts are left open")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps (12)")
    arguments = parser.parse_args()
    if os.environ.get("WORLD_SIZE") != "2":
        parser.error("start it on two ranks: torchrun --nproc-per-node 2 train.py")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    half = Half(seed=rank)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=RPC_TIMEOUT_SECONDS)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        losses = train(arguments.leak, arguments.steps)
        for worker in ("worker0", "worker1"):
            contexts, passes = rpc.rpc_sync(worker, open_contexts)
            print(f"{worker}: {contexts} contexts open, {passes} backward passes running", flush=True)
        print(f"{arguments.steps} steps, leak {arguments.leak}, loss {losses[0]:.6f} -> {losses[-1]:.6f}", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
