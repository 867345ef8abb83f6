"""A small two-rank pipeline that leaks on purpose; `--leak` selects who is to blame.

Each rank owns one stage with two inputs and two outputs. Microbatches move with `batch_isend_irecv` in a
one-forward, one-backward order, and every rank ends its step with its own optimizer. Run it with

    torchrun --nproc-per-node 2 train.py --leak stage-backward-cycle
    leakscope run --ranks 2 train.py --leak stage-backward-cycle

`--leak` is one of:

* `none`: the clean pipeline. It keeps gradient edges instead of sent outputs and uses the leak-free backward that
  leakscope ships.
* `stage-backward-cycle`: `stage_backward_with_cycle` collects outputs and gradients in an inner function that calls
  itself by name. To blame: the function's closure, which holds the function itself and beside it `output_tensors`
  and `output_grads`; every sent output and every received gradient waits for gc. torch's pipelining had this until
  pytorch#136507.
* `param-group-cycle`: `split_backward_with_cycle` runs the inputs' gradients first and the weights' later. To
  blame: the prehook on each intermediate grad node closes over `param_group`, whose "intermediates" are those very
  nodes; the kept graph and the captured gradients wait for gc, one layer per collection. Fixed in pytorch#136584
  (and #138720) by letting go of the intermediates and removing the hooks.
* `kept-outputs`: `ForgetfulContext` reads the microbatch whose turn it is and leaves it in `inputs` and `outputs`.
  To blame: those two lists, which gain every output and receive buffer; no collection frees them. torch's stages
  keep sent outputs and receive buffers longer than needed in the same way (pytorch#128910, #136380).
* `engine`: outputs are shrunk through `.data` once sent, so backward has to go through the engine's `run_backward`,
  which does not compare shapes (the plain call refuses them). To blame: not the engine, but the local variables of
  `train_step_first_holding` and `train_step_last_holding` that still name the first microbatch while the others
  run. It raises the step's peak and does not grow.

Automatic gc is off and a full collection runs every 50 steps, as large training codes do it (torchtitan, Megatron's
`--manual-gc`) so that all ranks pause together; with it on, how much of the two cycles is seen would be chance.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

MICROBATCHES = 4
SEQUENCE, SAMPLES = 32, 8
WIDTH, SKIP_WIDTH = 128, 64
SHAPES = ((SEQUENCE, SAMPLES, WIDTH), (SEQUENCE, SAMPLES, SKIP_WIDTH))
"""What crosses the wire per microbatch: `hidden` (128 KiB) and `skip` (64 KiB), float32."""

LEAKS = ("none", "stage-backward-cycle", "param-group-cycle", "kept-outputs", "engine")

Tensors = list[Tensor]
"""One microbatch's (hidden, skip) somewhere between the data and the loss."""

Backward = Callable[[Any, Tensors, Tensors, nn.Module], Tensors]
"""(outputs, gradients of the outputs, inputs, stage) -> gradients of the inputs."""


# The model


class Viewless(torch.autograd.Function):
    """Hands on the same memory in a tensor without a base, so that shrinking its `.data` really lets the memory go."""

    @staticmethod
    def forward(ctx: Any, view: Tensor) -> Tensor:
        return view.data

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def viewless(view: Tensor) -> Tensor:
    output: Tensor = Viewless.apply(view)  # type: ignore[no-untyped-call]
    return output


class Stage(nn.Module):
    """One half of the network: takes (hidden, skip), gives (hidden, skip)."""

    def __init__(self) -> None:
        super().__init__()
        self.from_hidden = nn.Linear(WIDTH, 2 * WIDTH)
        self.from_skip = nn.Linear(SKIP_WIDTH, 2 * WIDTH)
        self.to_hidden = nn.Linear(2 * WIDTH, WIDTH)
        self.to_skip = nn.Linear(2 * WIDTH, SKIP_WIDTH)

    def forward(self, hidden: Tensor, skip: Tensor) -> Tensors:
        mixed = F.gelu(self.from_hidden(hidden) + self.from_skip(skip))
        return [viewless(self.to_hidden(mixed)), viewless(self.to_skip(mixed))]


def loss_and_grads(outputs: Tensors, targets: Tensors) -> tuple[float, Tensors]:
    """The loss and its gradient for each output of the last stage; its graph ends at the outputs."""
    leaves = [output.detach().requires_grad_() for output in outputs]
    loss = sum(F.mse_loss(leaf, target) for leaf, target in zip(leaves, targets))
    assert isinstance(loss, Tensor)
    return loss.item(), list(torch.autograd.grad(loss, leaves))


def microbatches(seed: int, device: str) -> Iterator[Tensors]:
    """The step's microbatches, two tensors each; the last stage learns to give back what went into the first."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(MICROBATCHES):
        yield [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]


# The wire


class PipelineContext:
    """Talks to the neighbour and remembers each microbatch until its backward.

    gloo sends and receives host memory alone, so what is on another device crosses as a copy.
    """

    def __init__(self, peer: int, device: str) -> None:
        self.peer = peer
        self.device = device
        self.inputs: list[Tensors] = []
        self.outputs: list[Any] = []

    def remember(self, inputs: Tensors, outputs: Tensors) -> None:
        self.inputs.append(inputs)
        self.outputs.append(outputs)

    def next_microbatch(self) -> tuple[Tensors, Any]:
        """Inputs and outputs of the oldest microbatch that has had no backward."""
        return self.inputs.pop(0), self.outputs.pop(0)

    def exchange(self, send: Sequence[Tensor] = (), receive: bool = False) -> Tensors:
        """Sends `send` and, if asked, receives the neighbour's pair; returns when all of it has crossed."""
        buffers = [torch.empty(shape) for shape in SHAPES] if receive else []
        operations = [dist.P2POp(dist.isend, tensor.contiguous().cpu(), self.peer) for tensor in send]
        operations += [dist.P2POp(dist.irecv, buffer, self.peer) for buffer in buffers]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return [buffer.to(self.device) for buffer in buffers]

    def send_forward(self, outputs: Tensors) -> None:
        self.exchange(send=outputs)

    def recv_forward(self) -> Tensors:
        return self.exchange(receive=True)

    def send_forward_recv_backward(self, outputs: Tensors) -> Tensors:
        return self.exchange(send=outputs, receive=True)

    def send_backward_recv_forward(self, input_grads: Tensors) -> Tensors:
        return self.exchange(send=input_grads, receive=True)

    def send_backward(self, input_grads: Tensors) -> None:
        self.exchange(send=input_grads)

    def recv_backward(self) -> Tensors:
        return self.exchange(receive=True)


class EdgeContext(PipelineContext):
    """`none`: remembers only where the outputs stand in the graph, so that a sent output can go."""

    def remember(self, inputs: Tensors, outputs: Tensors) -> None:
        self.inputs.append(inputs)
        self.outputs.append([get_gradient_edge(output) for output in outputs])


class ForgetfulContext(PipelineContext):
    """`kept-outputs`: counts its way through the lists instead of taking out what is done."""

    def __init__(self, peer: int, device: str) -> None:
        super().__init__(peer, device)
        self.done = 0

    def next_microbatch(self) -> tuple[Tensors, Any]:
        self.done += 1
        return self.inputs[self.done - 1], self.outputs[self.done - 1]


class ShrinkingContext(PipelineContext):
    """`engine`: a sent output gives its memory back at once; only its place in the graph is still needed."""

    def exchange(self, send: Sequence[Tensor] = (), receive: bool = False) -> Tensors:
        buffers = super().exchange(send, receive)
        for tensor in send:
            if tensor.grad_fn is not None:
                tensor.data = tensor.new_empty(1)
        return buffers


# The backward of one stage, five times


def take_grads(inputs: Tensors) -> Tensors:
    grads = []
    for tensor in inputs:
        assert tensor.grad is not None
        grads.append(tensor.grad)
    return grads


def plain_backward(outputs: Any, grads: Tensors, inputs: Tensors, stage: nn.Module) -> Tensors:
    torch.autograd.backward(outputs, grads)
    return take_grads(inputs)


def leak_free_backward(outputs: list[GradientEdge], grads: Tensors, inputs: Tensors, stage: nn.Module) -> Tensors:
    from leakscope.backward import stage_backward

    # Boxed: the three lists are emptied, so no caller's variable keeps what backward is done with.
    return [grad for grad in stage_backward(outputs, grads, inputs, boxed=True) if grad is not None]


def stage_backward_with_cycle(outputs: Tensors, grads: Tensors, inputs: Tensors, stage: nn.Module) -> Tensors:
    output_tensors: list[Tensor] = []
    output_grads: list[Tensor] = []

    def collect(output: Any, grad: Any) -> None:
        if isinstance(output, Tensor):
            output_tensors.append(output)
            output_grads.append(grad)
        else:
            for inner_output, inner_grad in zip(output, grad):
                collect(inner_output, inner_grad)  # the cell that holds `collect` belongs to `collect`

    collect(outputs, grads)
    torch.autograd.backward(output_tensors, output_grads)
    return take_grads(inputs)


def split_backward_with_cycle(outputs: Tensors, grads: Tensors, inputs: Tensors, stage: nn.Module) -> Tensors:
    input_grads, param_groups = backward_for_inputs(outputs, grads, inputs, stage)
    backward_for_weights(stage, param_groups)
    return input_grads


def backward_for_inputs(
    outputs: Tensors, grads: Tensors, inputs: Tensors, stage: nn.Module
) -> tuple[Tensors, list[dict[str, Any]]]:
    """Gradients of the inputs now; what the weights' gradients need later is captured in the groups."""
    param_groups = find_param_groups(outputs, inputs, stage)
    for param_group in param_groups:
        for position, intermediate in enumerate(param_group["intermediates"]):
            intermediate.register_prehook(capture_into(param_group, position))
    return list(torch.autograd.grad(outputs, inputs, grads, retain_graph=True)), param_groups


def capture_into(param_group: dict[str, Any], position: int) -> Callable[[tuple[Tensor, ...]], None]:
    def hook(grad_outputs: tuple[Tensor, ...]) -> None:
        param_group["grads"][position] = grad_outputs[0]  # param_group holds the node that holds this hook

    return hook


def backward_for_weights(stage: nn.Module, param_groups: list[dict[str, Any]]) -> None:
    for param_group in param_groups:
        weights = param_group["params"]
        weight_grads = torch.autograd.grad(
            [GradientEdge(node, 0) for node in param_group["intermediates"]],
            weights,
            param_group["grads"],
        )
        for weight, grad in zip(weights, weight_grads):
            weight.grad = grad if weight.grad is None else weight.grad.add_(grad)


def find_param_groups(outputs: Tensors, inputs: Tensors, stage: nn.Module) -> list[dict[str, Any]]:
    """The parameters by the grad nodes ("intermediates") where their own part of the graph meets the inputs' part."""
    users = users_of_each_node([get_gradient_edge(output).node for output in outputs])
    input_path = everything_above([get_gradient_edge(tensor).node for tensor in inputs], users)
    groups: dict[tuple[Node, ...], dict[str, Any]] = {}
    for parameter in stage.parameters():
        above = everything_above([get_gradient_edge(parameter).node], users, stop_at=input_path)
        met = tuple(node for node in above if node in input_path)
        empty = {"params": [], "intermediates": list(met), "grads": [None] * len(met)}
        groups.setdefault(met, empty)["params"].append(parameter)
    return list(groups.values())


def users_of_each_node(roots: list[Node]) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = {node: [] for node in roots}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        for below, _ in node.next_functions:
            if below is None:
                continue
            if below not in users:
                users[below] = []
                waiting.append(below)
            users[below].append(node)
    return users


def everything_above(
    start: list[Node], users: dict[Node, list[Node]], stop_at: dict[Node, None] | None = None
) -> dict[Node, None]:
    """The nodes whose backward leads to `start`, in the order met; goes no further up than a node of `stop_at`."""
    found: dict[Node, None] = {}
    waiting = list(start)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found[node] = None
        if stop_at is None or node not in stop_at:
            waiting.extend(users.get(node, ()))
    return found


def engine_backward(outputs: Tensors, grads: Tensors, inputs: Tensors, stage: nn.Module) -> Tensors:
    torch.autograd.Variable._execution_engine.run_backward(
        tuple(outputs), tuple(grads), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
    return take_grads(inputs)


# The schedule: the first and the last stage of one step

Step = Callable[[Stage, PipelineContext, Backward, Iterator[Tensors]], list[float]]


def train_step_first(
    stage: Stage, context: PipelineContext, backward: Backward, data: Iterator[Tensors]
) -> list[float]:
    # The first forward has no gradient to receive, so it stands before the loop.
    fill_pipeline(stage, context, next(data))
    for batch in data:
        backward_oldest(stage, context, backward, forward_next(stage, context, batch))
    backward_oldest(stage, context, backward, context.recv_backward())
    return []


def train_step_last(
    stage: Stage, context: PipelineContext, backward: Backward, targets: Iterator[Tensors]
) -> list[float]:
    # The first receive has no gradient to send, so it stands before the loop.
    loss, input_grads = train_microbatch(stage, context, backward, context.recv_forward(), next(targets))
    losses = [loss]
    for target in targets:
        inputs = context.send_backward_recv_forward(input_grads)
        del input_grads
        loss, input_grads = train_microbatch(stage, context, backward, inputs, target)
        del inputs
        losses.append(loss)
    context.send_backward(input_grads)
    return losses


def train_step_first_holding(
    stage: Stage, context: PipelineContext, backward: Backward, data: Iterator[Tensors]
) -> list[float]:
    """`engine`: `inputs`, `outputs` and `output_grads` name the first microbatch until the step returns."""
    inputs, outputs = forward(stage, next(data))
    context.send_forward(outputs)
    context.remember(inputs, outputs)
    output_grads = forward_next(stage, context, next(data))
    backward_oldest(stage, context, backward, output_grads)
    for batch in data:
        backward_oldest(stage, context, backward, forward_next(stage, context, batch))
    backward_oldest(stage, context, backward, context.recv_backward())
    return []


def train_step_last_holding(
    stage: Stage, context: PipelineContext, backward: Backward, targets: Iterator[Tensors]
) -> list[float]:
    """`engine`: `inputs`, `outputs` and `output_grads` name the first microbatch until the step returns."""
    inputs, outputs = forward(stage, context.recv_forward())
    loss, output_grads = loss_and_grads(outputs, next(targets))
    input_grads = backward(outputs, output_grads, inputs, stage)
    losses = [loss]
    for target in targets:
        received = context.send_backward_recv_forward(input_grads)
        del input_grads
        loss, input_grads = train_microbatch(stage, context, backward, received, target)
        del received
        losses.append(loss)
    context.send_backward(input_grads)
    return losses


def forward(stage: Stage, batch: Tensors) -> tuple[Tensors, Tensors]:
    # The split backward starts where the inputs are, so the first stage's data asks for gradients as well.
    for tensor in batch:
        tensor.requires_grad_()
    return batch, stage(*batch)


def fill_pipeline(stage: Stage, context: PipelineContext, batch: Tensors) -> None:
    inputs, outputs = forward(stage, batch)
    context.send_forward(outputs)
    context.remember(inputs, outputs)


def forward_next(stage: Stage, context: PipelineContext, batch: Tensors) -> Tensors:
    """Sends this microbatch's outputs; gives the output gradients of the one before."""
    inputs, outputs = forward(stage, batch)
    output_grads = context.send_forward_recv_backward(outputs)
    context.remember(inputs, outputs)
    return output_grads


def backward_oldest(stage: Stage, context: PipelineContext, backward: Backward, output_grads: Tensors) -> Tensors:
    inputs, outputs = context.next_microbatch()
    return backward(outputs, output_grads, inputs, stage)


def train_microbatch(
    stage: Stage, context: PipelineContext, backward: Backward, received: Tensors, targets: Tensors
) -> tuple[float, Tensors]:
    """Forward, loss and backward of one microbatch on the last stage: its loss and its inputs' gradients."""
    inputs, outputs = forward(stage, received)
    context.remember(inputs, outputs)
    loss, output_grads = loss_and_grads(outputs, targets)
    del inputs, outputs
    return loss, backward_oldest(stage, context, backward, output_grads)


# The run


def choose(leak: str, rank: int) -> tuple[type[PipelineContext], Backward, Step]:
    contexts = {"none": EdgeContext, "kept-outputs": ForgetfulContext, "engine": ShrinkingContext}
    backwards: dict[str, Backward] = {
        "none": leak_free_backward,
        "stage-backward-cycle": stage_backward_with_cycle,
        "param-group-cycle": split_backward_with_cycle,
        "kept-outputs": plain_backward,
        "engine": engine_backward,
    }
    steps: tuple[Step, Step] = (train_step_first, train_step_last)
    if leak == "engine":
        steps = (train_step_first_holding, train_step_last_holding)
    return contexts.get(leak, PipelineContext), backwards[leak], steps[rank]


def train(leak: str, steps: int, device: str) -> list[float]:
    """Trains this rank's stage; gives the loss of each step on the last rank and nothing on the first."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = Stage().to(device)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05, momentum=0.9)
    new_context, backward, train_step = choose(leak, rank)
    context = new_context(peer=1 - rank, device=device)
    losses = []
    for step in range(1, steps + 1):
        microbatch_losses = train_step(stage, context, backward, microbatches(step, device))
        optimizer.step()
        optimizer.zero_grad()
        if microbatch_losses:
            losses.append(sum(microbatch_losses) / MICROBATCHES)
        if step % 50 == 0:
            gc.collect()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="A two-rank pipeline that leaks on purpose.")
    parser.add_argument("--leak", choices=LEAKS, default="none", help="who holds on to what it should let go")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps (12)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ...: both ranks may share one device (cpu)")
    arguments = parser.parse_args()
    if os.environ.get("WORLD_SIZE") != "2":
        parser.error("start it on two ranks: torchrun --nproc-per-node 2 train.py")
    torch.set_num_threads(1)
    gc.disable()
    dist.init_process_group("gloo")
    losses = train(arguments.leak, arguments.steps, arguments.device)
    result = (
        f"loss {losses[0]:.6f} -> {losses[-1]:.6f} ({losses[-1].hex()})" if losses else "its outputs went to rank 1"
    )
    sys.stdout.write(f"rank {dist.get_rank()}: {arguments.steps} steps, leak {arguments.leak}, {result}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
