"""Small trainings for a GPU, each the subject of one part of `benchmarks/gpu/all_parts.py`.

    python scripts.py PART DEVICE [--steps N]

Each prints one line of JSON at its end, where it has something to tell.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

_WARMUP = 10
"""Steps whose time does not count."""
_MIB = 1 << 20


def encoder(device: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A four-layer transformer and its batches."""
    torch.manual_seed(0)
    width = 512 if device != "cpu" else 64
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
    rows = 16 if device != "cpu" else 2
    return model, lambda: torch.randn(rows, 128, width, device=device)


def synchronize(device: str) -> None:
    """Waits for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def transformer(device: str, steps: int) -> None:
    """Median milliseconds a step after the warmup, and the highest memory; the same to the bit each time."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # asked for by the line below, before the device is in use
    torch.use_deterministic_algorithms(True, warn_only=True)
    model, batch = encoder(device)
    optimizer = torch.optim.AdamW(model.parameters())
    times, total = [], torch.zeros((), device=device)
    for _ in range(steps):
        began = time.perf_counter()
        loss = model(batch()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
        synchronize(device)
        times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() if device != "cpu" else 0
    tell(step_ms=1e3 * statistics.median(times[_WARMUP:]), peak_mib=peak / _MIB, loss=float(total).hex())


def out_of_memory(device: str, steps: int) -> None:
    """Keeps what each step makes until there is no memory left."""
    if device != "cpu":
        free, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(free, 1) / total, (2 << 30) / total))
    model, batch = encoder(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for _ in range(steps):
        out = model(batch())
        kept.append(out)
        out.square().mean().backward(retain_graph=True)
        optimizer.step()
    tell(kept=len(kept))


def nccl(device: str, steps: int) -> None:
    """Data-parallel training on one rank over NCCL (gloo on a CPU)."""
    import torch.distributed as dist

    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    store = dist.HashStore()
    dist.init_process_group("nccl" if device != "cpu" else "gloo", store=store, rank=0, world_size=1)
    model, batch = encoder(device)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for _ in range(steps):
        parallel(batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def graphs(device: str, steps: int) -> None:
    """The forward and backward captured as a CUDA graph, replayed each step."""
    model, batch = encoder(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = batch()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).square().mean().backward()
    for _ in range(steps):
        x.copy_(batch())
        graph.replay()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def compiled(device: str, steps: int) -> None:
    """The same training under torch.compile."""
    model, batch = encoder(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fast = torch.compile(model, backend="inductor" if device != "cpu" else "aot_eager")
    for _ in range(steps):
        fast(batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def backward(device: str, _steps: int) -> None:
    """Peak of an input pass and a weight pass of four microbatches, torch's and ours, as 1F1B with split passes runs
    them: two forwards ahead, each input pass as soon as it can be, the weights at the end.
    """
    peaks = {}
    for way in ("torch", "leakscope"):
        model, batch = encoder(device)
        peaks[way] = split_peak(model, batch, way, device)
    tell(
        **{f"{way}_mib": peak / _MIB for way, peak in peaks.items()}, ratio=peaks["leakscope"] / max(peaks["torch"], 1)
    )


def split_peak(model: nn.Module, batch: Callable[[], Tensor], way: str, device: str) -> int:
    """Bytes at the most, beyond the model, while four microbatches are split."""
    from contextlib import nullcontext

    from torch.distributed.pipelining import _backward as theirs

    from leakscope import backward as ours

    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device != "cpu" else 0
    waiting, flying = [], []
    module = ours if way == "leakscope" else theirs
    for number in range(6):
        if number < 4:
            x = batch().requires_grad_()
            with ours.droppable_saves() if way == "leakscope" else nullcontext():
                flying.append((x, model(x)))
        if number >= 2:
            x, y = flying.pop(0)
            _, groups = module.stage_backward_input([y], [torch.ones_like(y)], [x], model.parameters())
            waiting.append(groups)
            del x, y
    for groups in waiting:
        module.stage_backward_weight(model.parameters(), groups)
    synchronize(device)
    return torch.cuda.max_memory_allocated() - before if device != "cpu" else 0


def tell(**figures: float | str) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(figures) + "\n")


PARTS = {function.__name__: function for function in (transformer, out_of_memory, nccl, graphs, compiled, backward)}


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("device")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    PARTS[arguments.part](arguments.device, arguments.steps)


if __name__ == "__main__":
    main()
