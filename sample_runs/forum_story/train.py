"""The forum's story: weakrefs say dead, memory says alive, `gc.collect()` frees it, and throughput halves.

A hand-written two-rank pipeline lets go of every tensor it sends or receives as soon as it can: a sent output is
dropped and only its place in the graph (a `GradientEdge`) is kept for backward; a receive buffer is dropped once
the stage's input has been made of it. Weak references to those tensors confirm it: all dead. Their memory is not
freed. Run it with

    torchrun --nproc-per-node 2 train.py --cure none
    leakscope run --ranks 2 train.py --cure none

Who holds it: `run_backward` collects the edges in an inner function that calls itself by name, so the function is
in its own closure, beside the list of edges. Each edge holds its grad node, and through it the whole graph, which
is kept because both outputs run through the same trunk (`retain_graph=True`). The graph's nodes hold sent outputs
and receive buffers as saved tensors and as leaves: the storages, through other tensors than those that died. The
reference cycle is plain Python, so gc frees it, when it gets to it: here as the next step begins, where many
training codes collect by hand.

`--cure` is one of:

* `none`: the story as it is told.
* `gc`: collect after every microbatch. The memory is right, the time goes into gc.
* `cut`: `del collect` once the edges are collected, which empties the closure's cell. Same memory, full speed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

MICROBATCHES = 6
TOKENS, WIDTH, SKIP_WIDTH = 1024, 640, 320
SHAPES = ((TOKENS, WIDTH), (TOKENS, SKIP_WIDTH))
"""What crosses the wire per microbatch: 2.5 MiB and 1.25 MiB, float32."""

CURES = ("none", "gc", "cut")

Pair = tuple[Tensor, ...]
Backward = Callable[[list[Any], Pair], None]


class WireLedger:
    """Counts sent outputs and receive buffers twice: Python tensors that are alive, and storages that are."""

    def __init__(self) -> None:
        self.seen = 0
        self.tensors_alive = 0
        self.storages_alive = 0
        self.bytes_alive = 0
        self.peak_bytes = 0
        self._watching: set[weakref.ref[Any]] = set()

    def note(self, tensor: Tensor) -> None:
        self.seen += 1
        self.tensors_alive += 1
        self.storages_alive += 1
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        self.bytes_alive += size
        self.peak_bytes = max(self.peak_bytes, self.bytes_alive)

        # The storage's Python object lives as long as the storage does, so its weakref tells when the memory goes.
        def tensor_died(ref: weakref.ref[Any]) -> None:
            self._watching.discard(ref)
            self.tensors_alive -= 1

        def storage_died(ref: weakref.ref[Any]) -> None:
            self._watching.discard(ref)
            self.storages_alive -= 1
            self.bytes_alive -= size

        self._watching.add(weakref.ref(tensor, tensor_died))
        self._watching.add(weakref.ref(storage, storage_died))


class Stage(nn.Module):
    """One half of the network: takes (hidden, skip), gives (hidden, skip)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(WIDTH + SKIP_WIDTH, WIDTH)
        self.to_hidden = nn.Linear(WIDTH, WIDTH)
        self.to_skip = nn.Linear(WIDTH, SKIP_WIDTH)

    def forward(self, hidden: Tensor, skip: Tensor) -> Pair:
        mixed = torch.tanh(self.trunk(torch.cat([hidden, skip], dim=-1)))
        return torch.tanh(self.to_hidden(mixed)), torch.tanh(self.to_skip(mixed))


def run_backward(edges: Any, grads: Pair, cut: bool) -> None:
    """Backward from the (possibly nested) edges of a stage's outputs."""
    roots: list[GradientEdge] = []

    def collect(edge: Any) -> None:
        if isinstance(edge, GradientEdge):
            roots.append(edge)
        else:
            for inner in edge:
                collect(inner)

    collect(edges)
    if cut:
        del collect
    for root, grad in zip(roots, grads):
        torch.autograd.backward(root, grad, retain_graph=True)


class Pipeline:
    """One rank's stage, its microbatches in flight, and its wire to the other rank."""

    def __init__(self, rank: int, cure: str, ledger: WireLedger) -> None:
        self.stage = Stage()
        self.peer = 1 - rank
        self.cure = cure
        self.ledger = ledger
        self.in_flight: deque[tuple[Pair, list[GradientEdge]]] = deque()

    def exchange(self, send: Pair = (), receive: bool = False) -> Pair:
        buffers = tuple(torch.empty(shape) for shape in SHAPES) if receive else ()
        for tensor in (*send, *buffers):
            self.ledger.note(tensor)
        operations = [dist.P2POp(dist.isend, tensor, self.peer) for tensor in send]
        operations += [dist.P2POp(dist.irecv, buffer, self.peer) for buffer in buffers]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return buffers

    def forward(self, received: Pair) -> Pair:
        inputs = tuple(tensor.detach().requires_grad_() for tensor in received)
        outputs = self.stage(*inputs)
        self.in_flight.append((inputs, [get_gradient_edge(output) for output in outputs]))
        return tuple(outputs)

    def backward(self, output_grads: Pair) -> Pair:
        """Backward of the oldest microbatch: the gradients of its inputs."""
        inputs, edges = self.in_flight.popleft()
        run_backward(edges, output_grads, cut=self.cure == "cut")
        input_grads = []
        for tensor in inputs:
            assert tensor.grad is not None
            input_grads.append(tensor.grad)
            tensor.grad = None
        return tuple(input_grads)

    def microbatch_done(self) -> None:
        if self.cure == "gc":
            gc.collect()


def step_of_first_rank(pipeline: Pipeline, seed: int) -> float | None:
    generator = torch.Generator().manual_seed(seed)
    for number in range(MICROBATCHES):
        outputs = pipeline.forward(tuple(torch.randn(shape, generator=generator) for shape in SHAPES))
        output_grads = pipeline.exchange(send=outputs, receive=number > 0)
        del outputs
        if output_grads:
            pipeline.backward(output_grads)
        del output_grads
        pipeline.microbatch_done()
    pipeline.backward(pipeline.exchange(receive=True))
    pipeline.microbatch_done()
    return None


def step_of_last_rank(pipeline: Pipeline, seed: int) -> float | None:
    total = 0.0
    input_grads: Pair = ()
    for _ in range(MICROBATCHES):
        received = pipeline.exchange(send=input_grads, receive=True)
        input_grads = ()
        outputs = pipeline.forward(received)
        loss, output_grads = loss_and_grads(outputs)
        del received, outputs
        total += loss
        input_grads = pipeline.backward(output_grads)
        del output_grads
        pipeline.microbatch_done()
    pipeline.exchange(send=input_grads)
    return total / MICROBATCHES


def loss_and_grads(outputs: Pair) -> tuple[float, Pair]:
    leaves = [output.detach().requires_grad_() for output in outputs]
    loss = torch.stack([(leaf - 0.5).square().mean() for leaf in leaves]).sum()
    return loss.item(), torch.autograd.grad(loss, leaves)


def train(cure: str, steps: int) -> str:
    """Trains this rank's stage; gives one line of figures; the first step is not timed."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    ledger = WireLedger()
    pipeline = Pipeline(rank, cure, ledger)
    optimizer = torch.optim.SGD(pipeline.stage.parameters(), lr=0.1)
    run_step = step_of_first_rank if rank == 0 else step_of_last_rank
    started = time.perf_counter()
    loss: float | None = None
    for step in range(steps):
        gc.collect()
        if step == 1:
            started = time.perf_counter()
        loss = run_step(pipeline, seed=step)
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - started
    rate = MICROBATCHES * (steps - 1) / seconds
    return (
        f"cure {cure}: {rate:.1f} microbatches/s, wire peak {ledger.peak_bytes / 2**20:.2f} MiB; after the last step "
        f"{ledger.tensors_alive} tensors alive, {ledger.storages_alive} storages alive "
        f"({ledger.bytes_alive / 2**20:.2f} MiB) of {ledger.seen} sent or received"
        + (f"; loss {loss.hex()}" if loss is not None else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Dead tensors, live memory: a two-rank pipeline.")
    parser.add_argument("--cure", choices=CURES, default="none", help="what is done about it")
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps, at least 2 (6)")
    arguments = parser.parse_args()
    if os.environ.get("WORLD_SIZE") != "2":
        parser.error("start it on two ranks: torchrun --nproc-per-node 2 train.py")
    if arguments.steps < 2:
        parser.error("--steps must be at least 2: the first step is not timed")
    torch.set_num_threads(1)
    gc.disable()
    dist.init_process_group("gloo")
    figures = train(arguments.cure, arguments.steps)
    sys.stdout.write(f"rank {dist.get_rank()}: {figures}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
