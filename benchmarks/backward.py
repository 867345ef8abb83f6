"""The shipped backward beside torch's own: when memory dies, how much lives on, how fast, and the original pipeline.

    python benchmarks/backward.py [lifetimes|area|blocks|speed|pipeline]...

Everything runs on the CPU with one thread per process. Times are thread CPU times where one process is measured (other
load on the machine then counts less), in pairs of alternating order; ratios are medians over the pairs. Set
LEAKSCOPE_BENCHMARK_PAIRS to change the number of pairs.
"""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining._backward as torch_backward
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from leakscope.backward import (
    droppable_saves,
    output_edges,
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)

aten = torch.ops.aten
PAIRS = int(os.environ.get("LEAKSCOPE_BENCHMARK_PAIRS", "0"))


def stack(layers: int, width: int) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())))


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print(f"\n{title}\n")
    for row in (head, ["-" * width for width in widths], *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


# --- when each tensor dies -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way to run a split backward."""

    name: str
    ours: bool
    edges: bool = False
    saving: bool = False


WAYS = [
    Way("torch", ours=False),
    Way("leakscope", ours=True),
    Way("with edges, boxed", ours=True, edges=True),
    Way("and droppable_saves", ours=True, edges=True, saving=True),
]


@dataclass
class Deaths:
    """Storages watched by name, and the first moment each was found dead."""

    watched: dict[str, tuple[StorageWeakRef, int]] = field(default_factory=dict)
    died: dict[str, str] = field(default_factory=dict)

    def watch(self, name: str, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.watched[name] = (StorageWeakRef(storage), storage.nbytes())

    def sample(self, moment: str) -> int:
        """Bytes alive at this moment."""
        alive = 0
        for name, (ref, size) in self.watched.items():
            if not ref.expired():
                alive += size
            elif name not in self.died:
                self.died[name] = moment
        return alive

    def sampling(self, moment: str) -> Callable[[Tensor], None]:
        """A tensor hook that looks."""

        def hook(_: Tensor) -> None:
            self.sample(moment)

        return hook


def split_run(way: Way, layers: int, width: int, rows: int) -> tuple[Deaths, list[int], int]:
    """One microbatch; the caller drops what it holds as early as the way allows. Returns deaths, bytes, peak."""
    model, deaths, samples = stack(layers, width), Deaths(), []
    peak = 0

    def sample_inside(_: Any) -> None:
        nonlocal peak
        peak = max(peak, deaths.sample("input pass"))

    x = torch.randn(rows, width, requires_grad=True)
    with droppable_saves() if way.saving else nullcontext():
        value = x
        for index, layer in enumerate(model):
            value = layer(value)
            value.register_hook(sample_inside)
            deaths.watch("stage output" if index == 2 * layers - 1 else f"{type(layer).__name__} {index // 2}", value)
    outputs: Any = output_edges([value]) if way.edges else [value]
    grads = [torch.randn(rows, width)]
    deaths.watch("output gradient", grads[0])
    del value
    deaths.sample("sent")
    if way.ours:
        options: dict[str, Any] = {"boxed": True, "park_grad": False} if way.edges else {}
        dinputs, groups = stage_backward_input(outputs, grads, [x], model.parameters(), **options)
    else:
        dinputs, groups = torch_backward.stage_backward_input(outputs, grads, [x], model.parameters())
    deaths.watch("input gradient", dinputs[0])
    del outputs, grads, dinputs
    samples.append(deaths.sample("input pass done"))
    run = stage_backward_weight if way.ours else torch_backward.stage_backward_weight
    for number, group in enumerate(groups):
        run(model.parameters(), [group])
        samples.append(deaths.sample(f"weights {number + 1}/{len(groups)}"))
    return deaths, samples, max(peak, *samples)


def whole_run(name: str, layers: int, width: int, rows: int) -> Deaths:
    model, deaths = stack(layers, width), Deaths()
    x = value = torch.randn(rows, width, requires_grad=True)
    for index, layer in enumerate(model):
        value = layer(value)
        deaths.watch("stage output" if index == 2 * layers - 1 else f"{type(layer).__name__} {index // 2}", value)
        if isinstance(layer, nn.Linear):
            value.register_hook(deaths.sampling(f"backward of Linear {index // 2}"))
    outputs: Any = output_edges([value]) if "edges" in name else [value]
    grads = [torch.randn(rows, width)]
    deaths.watch("output gradient", grads[0])
    del value
    deaths.sample("sent")
    if name == "torch":
        dinputs = torch_backward.stage_backward(outputs, grads, [x])
    else:
        dinputs = stage_backward(outputs, grads, [x], boxed="boxed" in name)
    deaths.watch("input gradient", dinputs[0])
    deaths.sample("returned")
    del outputs, grads, dinputs
    deaths.sample("caller drops")
    return deaths


def lifetimes() -> None:
    names = ["torch", "leakscope", "leakscope, boxed", "with edges, boxed"]
    whole = [whole_run(name, 3, 64, 64) for name in names]
    table(
        "When each tensor of a stage dies (3 x Linear+GELU, whole backward, gc off)",
        ["tensor", *names],
        [[name, *(run.died.get(name, "never") for run in whole)] for name in whole[0].watched],
    )
    runs = [split_run(way, 4, 64, 64)[0] for way in WAYS]
    rows = [[name, *(run.died.get(name, "kept by the input") for run in runs)] for name in runs[0].watched]
    table(
        "When each tensor of a stage dies (4 x Linear+GELU, split backward, gc off)",
        ["tensor", *(way.name for way in WAYS)],
        rows,
    )


def area() -> None:
    rows = []
    base = 0
    for way in WAYS:
        deaths, _, peak = split_run(way, 6, 256, 256)
        activations = {n: v for n, v in deaths.watched.items() if "gradient" not in n}
        _, samples = activation_samples(way, 6, 256, 256)
        total = sum(samples)
        base = base or total
        rows.append(
            [
                way.name,
                " ".join(f"{sample // 2**18:d}" for sample in samples),
                f"{total / 2**20:.2f} MiB",
                f"{100 * total / base:.0f}%",
                f"{peak / 2**20:.2f} MiB",
                str(len(activations)),
            ]
        )
    table(
        "Activations alive after the input pass and after each weight group (6 x Linear+GELU, in units of 256 KiB)",
        ["way", "alive", "sum", "of torch", "peak of all watched", "activations"],
        rows,
    )


def activation_samples(way: Way, layers: int, width: int, rows: int) -> tuple[Deaths, list[int]]:
    """As `split_run`, counting activations only."""
    model, deaths = stack(layers, width), Deaths()
    x = torch.randn(rows, width, requires_grad=True)
    with droppable_saves() if way.saving else nullcontext():
        value = x
        for index, layer in enumerate(model):
            value = layer(value)
            deaths.watch(str(index), value)
    outputs: Any = output_edges([value]) if way.edges else [value]
    del value
    grads = [torch.randn(rows, width)]
    run_input = stage_backward_input if way.ours else torch_backward.stage_backward_input
    run = stage_backward_weight if way.ours else torch_backward.stage_backward_weight
    _, groups = run_input(outputs, grads, [x], model.parameters())
    del outputs
    samples = [deaths.sample("")]
    for group in groups:
        run(model.parameters(), [group])
        samples.append(deaths.sample(""))
    return deaths, samples


# --- real blocks -----------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Llama(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, RMSNorm(width), RMSNorm(width)
        self.projections = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.out, self.mlp = nn.Linear(width, width, bias=False), SwiGLU(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        q, k, v = (layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in self.projections)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


def conv_norm() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())


class Autocast(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            result: Tensor = self.inner(x)
            return result


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True, norm_first=True)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear+GELU": (lambda: stack(1, 256), (512, 256)),
    "SwiGLU": (lambda: SwiGLU(128, 384), (512, 128)),
    "Llama block": (lambda: Llama(128, 4), (4, 128, 128)),
    "Llama block, autocast": (lambda: Autocast(Llama(128, 4)), (4, 128, 128)),
    "TransformerEncoderLayer": (encoder, (4, 128, 128)),
    "conv-bn-relu": (conv_norm, (8, 16, 32, 32)),
}
"""Four of each are one stage."""


class Least(TorchDispatchMode):
    """What the gradients of a forward's weights need at the least: X and dY of each product with a matrix."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._weights = {w.untyped_storage().data_ptr() for w in model.parameters()}
        self._kept: list[Tensor] = []
        self._xs: dict[int, int] = {}
        self.bytes = sum(w.nbytes for w in model.parameters() if w.dim() == 1)

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [one for one in args if isinstance(one, Tensor)]
        self._kept += tensors
        if func.overloadpacket in (aten.mm, aten.addmm, aten.convolution):
            x, weight = tensors[1:3] if func.overloadpacket is aten.addmm else tensors[:2]
            if weight.untyped_storage().data_ptr() in self._weights:
                self._xs[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
                self.bytes += result.nbytes
        elif func.overloadpacket is aten._to_copy and tensors[0].untyped_storage().data_ptr() in self._weights:
            self._weights.add(result.untyped_storage().data_ptr())
        return result

    def total(self) -> int:
        return self.bytes + sum(self._xs.values())


def memory(run: Callable[[], Any]) -> tuple[int, int]:
    """The most bytes that tensors held above the start, and what they still hold at the end."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = run()
    events = profile.profiler.kineto_results.events()
    now = peak = 0
    for _, size in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        now += size
        peak = max(peak, now)
    del kept
    return peak, now


def input_pass(way: Way, model: nn.Module, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A forward and its input pass; returns what the weight pass needs, and its input."""
    x = torch.randn(shape, requires_grad=True)
    with droppable_saves() if way.saving else nullcontext():
        outputs: Any = [model(x)]
    grads = [torch.ones_like(outputs[0])]
    if not way.ours:
        return torch_backward.stage_backward_input(outputs, grads, [x], model.parameters())[1], x.detach()
    if way.edges:
        outputs = output_edges(outputs)
    options: dict[str, Any] = {"boxed": True, "park_grad": False} if way.edges else {}
    return stage_backward_input(outputs, grads, [x], model.parameters(), **options)[1], x.detach()


def blocks() -> None:
    rows = []
    for name, (make, shape) in BLOCKS.items():
        model = nn.Sequential(*(make() for _ in range(4)))
        with Least(model) as least:
            model(torch.randn(shape, requires_grad=True))
        base: tuple[int, int] | None = None
        for way in WAYS:
            input_pass(way, model, shape)
            peak, area = memory(partial(input_pass, way, model, shape))
            base = base or (peak, area)
            figures = [f"{peak / 2**20:.2f}", f"{peak / base[0]:.2f}", f"{area / 2**20:.2f}", f"{area / base[1]:.2f}"]
            rows.append([name, way.name, *figures, f"{area / least.total():.2f}"])
    table(
        "Four blocks: peak of forward and input pass, and what lives on to the weight pass, MiB",
        ["block", "way", "peak", "of torch", "kept", "of torch", "of X, dY and vectors"],
        rows,
    )


# --- speed -----------------------------------------------------------------------------------------------------------


def timed(run: Callable[[], Any]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def one_full(model: nn.Module, grad: Tensor, ours: bool) -> float:
    x = torch.randn(grad.shape, requires_grad=True)
    out, grads, inputs = (model(x),), (grad,), (x,)
    run = stage_backward if ours else torch_backward.stage_backward
    return timed(lambda: run(out, grads, inputs))


def one_boxed(model: nn.Module, grad: Tensor, ours: bool, edges: bool = False) -> float:
    """Until outputs and gradients are let go of: torch's caller does it after the call."""
    x = torch.randn(grad.shape, requires_grad=True)
    out: list[Any] = [model(x)]
    grads, inputs = [grad.clone()], [x]

    def torchs() -> None:
        torch_backward.stage_backward(out, grads, inputs)
        out.clear()
        grads.clear()
        inputs.clear()

    if not ours:
        return timed(torchs)
    if edges:
        out = output_edges(out)
    return timed(lambda: stage_backward(out, grads, inputs, boxed=True))


def one_split(model: nn.Module, grad: Tensor, ours: bool, dropping: bool = False) -> float:
    x = torch.randn(grad.shape, requires_grad=True)
    with droppable_saves() if ours and dropping else nullcontext():
        out = (model(x),)

    def both() -> None:
        if ours:
            _, groups = stage_backward_input(out, (grad,), (x,), model.parameters())
            stage_backward_weight(model.parameters(), groups)
        else:
            _, groups = torch_backward.stage_backward_input(out, (grad,), (x,), model.parameters())
            torch_backward.stage_backward_weight(model.parameters(), groups)

    return timed(both)


def one_forward(model: nn.Module, grad: Tensor, ours: bool) -> float:
    x = torch.randn(grad.shape, requires_grad=True)

    def saving() -> None:
        with droppable_saves():
            model(x)

    return timed(saving if ours else partial(model, x))


def one_hooked(model: nn.Module, grad: Tensor, ours: bool) -> float:
    """The least a forward under saved-tensor hooks takes: hooks in Python that do nothing."""
    x = torch.randn(grad.shape, requires_grad=True)

    def same(tensor: Tensor) -> Tensor:
        return tensor

    def saving() -> None:
        with torch.autograd.graph.saved_tensors_hooks(same, same):
            model(x)

    return timed(saving if ours else partial(model, x))


def one_engine(model: nn.Module, grad: Tensor, ours: bool) -> float:
    """The least a whole backward takes: the engine alone, nothing looked at and nothing given back."""
    x = torch.randn(grad.shape, requires_grad=True)
    out, grads, inputs = (model(x),), (grad,), (x,)
    engine: Any = torch.autograd.graph._engine_run_backward
    if ours:
        return timed(lambda: engine(out, grads, False, False, (), True, accumulate_grad=True))
    return timed(lambda: torch_backward.stage_backward(out, grads, inputs))


TIMED: dict[str, Callable[[nn.Module, Tensor, bool], float]] = {
    "full": one_full,
    "boxed": one_boxed,
    "edges, boxed": partial(one_boxed, edges=True),
    "(engine alone)": one_engine,
    "split": one_split,
    "split, dropping": partial(one_split, dropping=True),
    "forward, droppable_saves": one_forward,
    "(forward, empty hooks)": one_hooked,
}
"""What is timed beside torch's own; in parentheses what cannot be had for less."""
SIZES = ((1, 2, 8, 1500), (1, 16, 64, 600), (12, 16, 64, 100), (96, 16, 64, 20), (1, 256, 512, 120), (12, 256, 512, 20))
"""Layers, rows, width and pairs."""


def speed() -> None:
    rows = []
    for layers, batch, width, pairs in SIZES:
        model, grad = stack(layers, width), torch.randn(batch, width)
        for name, measure in TIMED.items():
            ours, torchs = [], []
            for pair in range(-3, PAIRS or pairs):
                for mine in (True, False) if pair % 2 else (False, True):
                    seconds = measure(model, grad, mine)
                    model.zero_grad()
                    if pair >= 0:  # those before warm up
                        (ours if mine else torchs).append(seconds)
            ratios = [a / b for a, b in zip(ours, torchs, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            times = [f"{1e3 * statistics.median(seconds):.3f}" for seconds in (torchs, ours)]
            spread = f"{low:.2f} to {high:.2f}"
            rows.append([f"{layers}", f"{batch} x {width}", name, *times, f"{middle:.3f}", spread, f"{len(ratios)}"])
    table(
        "Backward of a stage of Linear+GELU layers, CPU milliseconds",
        ["layers", "rows x width", "backward", "torch", "leakscope", "median ratio", "middle half", "pairs"],
        rows,
    )


# --- the original case: a hand-written pipeline on two ranks ---------------------------------------------------------

WIDTH, BATCH, MICROBATCHES, STEPS = 512, 256, 8, 4


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


class HeapPeak:
    """Highest number of live malloc bytes seen above the start (glibc)."""

    def __init__(self) -> None:
        self._mallinfo = ctypes.CDLL(None).mallinfo2
        self._mallinfo.restype = _MallInfo
        self.start = self.live()
        self.peak = 0

    def live(self) -> int:
        info = self._mallinfo()
        return int(info.uordblks + info.hblkhd)

    def sample(self, *_: Any) -> None:
        self.peak = max(self.peak, self.live() - self.start)


class TwoOutputs(nn.Module):
    """A stage whose hidden value and result both go to the next rank."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = stack(2, WIDTH), stack(2, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.one(x)
        return y, self.two(y)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = stack(2, WIDTH), stack(2, WIDTH)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return self.two(self.one(y) + z).square().mean()


def leaking_backward(outputs: Any, grads: Any, inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
    """A backward as found in the wild: a closure that calls itself keeps everything it collects in a cycle."""
    tensors: list[Tensor] = []
    gradients: list[Tensor | None] = []

    def collect(output: Any, grad: Any) -> None:
        if isinstance(output, Tensor):
            tensors.append(output)
            gradients.append(grad)
        else:
            for one, its in zip(output, grad, strict=True):
                collect(one, its)

    collect(outputs, grads)
    torch.autograd.backward(tensors, gradients)
    return tuple(x.grad for x in inputs)


def exchange(tensors: list[Tensor], send: bool, peer: int) -> list[Any]:
    return [(dist.isend if send else dist.irecv)(tensor, peer) for tensor in tensors]


def first_rank(way: str, model: nn.Module, heap: HeapPeak, x: Tensor) -> None:
    """Forward runs one microbatch ahead of backward, as 1F1B does on the first of two ranks."""
    waiting: list[tuple[Any, Tensor]] = []

    def forward() -> None:
        inputs = x.detach().clone().requires_grad_()
        outputs = list(model(inputs))
        works = exchange([out.detach() for out in outputs], True, 1)
        kept = output_edges(outputs) if way == "leakscope" else outputs
        waiting.append((kept, inputs))
        del outputs
        for work in works:
            work.wait()

    def backward() -> None:
        grads = [torch.empty(BATCH, WIDTH) for _ in range(2)]
        for work in exchange(grads, False, 1):
            work.wait()
        outputs, inputs = waiting.pop(0)
        if way == "leakscope":
            stage_backward(outputs, grads, [inputs], boxed=True)
        else:
            leaking_backward(outputs, grads, [inputs])

    forward()
    for number in range(MICROBATCHES):
        if number + 1 < MICROBATCHES:
            forward()
            heap.sample()
        backward()
        heap.sample()
        if way == "gc.collect":
            gc.collect()


def second_rank(way: str, model: nn.Module, heap: HeapPeak, _batch: Tensor) -> None:
    sending: list[tuple[Any, Tensor]] = []

    def sent() -> None:
        while sending:
            sending.pop()[0].wait()

    def microbatch() -> None:
        received = [torch.empty(BATCH, WIDTH) for _ in range(2)]
        for work in exchange(received, False, 0):
            work.wait()
        sent()
        inputs = [one.requires_grad_() for one in received]
        loss = model(*inputs)
        heap.sample()
        if way == "leakscope":
            grads = stage_backward([loss], None, inputs, boxed=False)
        else:
            grads = leaking_backward([loss], [None], inputs)
        sending.extend((work, grad) for grad in grads if grad is not None for work in exchange([grad], True, 0))

    for _ in range(MICROBATCHES):
        microbatch()
        heap.sample()
        if way == "gc.collect":
            gc.collect()
    sent()


def pipeline_rank(rank: int, meeting_point: str, answers: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    gc.collect()
    gc.disable()
    model = TwoOutputs() if rank == 0 else TwoInputs()
    x = torch.randn(BATCH, WIDTH)
    run = first_rank if rank == 0 else second_rank
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    ways = ["leaking", "gc.collect", "leakscope"]
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    peaks: dict[str, int] = dict.fromkeys(ways, 0)
    for step in range(STEPS + 1):
        for way in ways[step % 3 :] + ways[: step % 3]:
            dist.barrier()
            heap = HeapPeak()
            start = time.perf_counter()
            run(way, model, heap, x)
            dist.barrier()
            taken = time.perf_counter() - start
            gc.collect()
            if step:  # the first round warms up the allocator
                seconds[way].append(taken)
                peaks[way] = max(peaks[way], heap.peak)
    answers.put((rank, {way: (statistics.median(seconds[way]), peaks[way]) for way in ways}))
    dist.barrier()
    dist.destroy_process_group()


def pipeline() -> None:
    with tempfile.TemporaryDirectory() as folder:
        answers = mp.get_context("spawn").SimpleQueue()
        mp.spawn(pipeline_rank, (os.path.join(folder, "meet"), answers), nprocs=2)
        results = dict(answers.get() for _ in range(2))
    names = {
        "leaking": "leaking, collected once a step",
        "gc.collect": "leaking, gc.collect() every microbatch",
        "leakscope": "leakscope.backward",
    }
    rows = []
    for way, name in names.items():
        taken = max(results[rank][way][0] for rank in results)
        rows.append([name, f"{MICROBATCHES / taken:.1f}", *(f"{results[r][way][1] / 2**20:.1f}" for r in (0, 1))])
    table(
        f"A hand-written pipeline on two gloo ranks, {MICROBATCHES} microbatches a step, two outputs, gc off",
        ["way", "microbatches/s", "peak rank 0 (MiB)", "peak rank 1 (MiB)"],
        rows,
    )


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts = {"lifetimes": lifetimes, "area": area, "blocks": blocks, "speed": speed, "pipeline": pipeline}
    chosen = sys.argv[1:] or list(parts)
    unknown = [name for name in chosen if name not in parts]
    if unknown:
        sys.exit(f"no such part: {unknown[0]}; choose from {', '.join(parts)}")
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    gc.collect()
    gc.disable()
    for name in chosen:
        parts[name]()


if __name__ == "__main__":
    main()
