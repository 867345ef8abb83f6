"""Reads the grad nodes that a backward of another thread goes through, again and again: the process has to live.

`MALLOC_PERTURB_=165 python benchmarks/read_beside_backward.py` overwrites what is freed at once; with `--looks` whole
looks are taken. Prints how much was read and how often nothing could be.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import Any

import torch

from leakscope.heap import autograd
from leakscope.heap.autograd import Types, node_holds, own_memory
from leakscope.heap.snapshot import take_heap_snapshot


class Saving(torch.autograd.Function):
    """A node that keeps what it saves in a vector, which goes as a whole."""

    @staticmethod
    def forward(ctx: Any, given: Any) -> Any:
        """Saves two tensors."""
        ctx.save_for_backward(given, given * 2)
        return given * 3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Uses both."""
        first, second = ctx.saved_tensors
        return gradients[0] + first + second


def main() -> None:
    """Read for so many seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--looks", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)
    autograd._PATIENCE_S = 0.02
    going, nodes, backwards = [True], [], [0]

    def train() -> None:
        while going:
            value: Any = torch.ones(256, requires_grad=True)
            made = []
            for number in range(100):
                value = (Saving.apply(value) if number % 2 else value.exp()) * 1e-3
                made += [value.grad_fn, value.grad_fn.next_functions[0][0]]
            nodes[:] = made
            value.sum().backward()
            backwards[0] += 1

    thread = threading.Thread(target=train)
    thread.start()
    end, read, disturbed, rounds = time.monotonic() + options.seconds, 0, 0, 0
    try:
        with own_memory() as words:
            while time.monotonic() < end:
                rounds += 1
                if options.looks:
                    seen = take_heap_snapshot(rounds, "step")
                    disturbed += autograd.UNREAD in seen.unjudged
                    read += len(seen.heap)
                    continue
                types = Types()
                for node in list(nodes):
                    read += sum(held.target is not None for held in node_holds(node, types, words))
                disturbed += types.at_rest.disturbed
    finally:
        going.clear()
        thread.join()
    print(f"{rounds} rounds beside {backwards[0]} backwards, {read} references read, {disturbed} rounds disturbed")


if __name__ == "__main__":
    main()
