"""What noting the inputs of a step costs: CPU time of a forward and a backward with the hook beside without, in pairs.

`python benchmarks/step_inputs.py --blocks 40` prints the median ratio with the middle half of the pairs: of a step that
is noted, and over all steps where one in eight is.
"""

from __future__ import annotations

import argparse
import time
from statistics import median, quantiles

import torch
from torch import nn

from leakscope.process.patches import Patches
from leakscope.recorder.steps.inputs import StepInputs


class Block(nn.Module):
    """Six modules, each of little work: the more of them, the more a global hook costs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds to what comes in."""
        result: torch.Tensor = x + self.inner(x)
        return result


def seconds(net: nn.Module, batch: torch.Tensor, steps: int, inputs: StepInputs | None = None) -> float:
    """CPU time of some steps."""
    began = time.process_time()
    for _ in range(steps):
        net(batch).sum().backward()
        if inputs is not None:
            inputs.taken()
    return time.process_time() - began


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    net, batch = nn.Sequential(*(Block() for _ in range(options.blocks))), torch.randn(8, 32)
    seconds(net, batch, 16)
    noted, over_all = [], []
    for _ in range(options.pairs):
        for ratios, before in ((noted, 0), (over_all, 16)):
            inputs, patches = StepInputs(), Patches()
            inputs.install(patches)
            for _ in range(before):
                inputs.taken()
            steps = 48 if before else 15
            with_hook = seconds(net, batch, steps, inputs)
            patches.take_out()
            ratios.append(with_hook / seconds(net, batch, steps))
    print(f"{sum(1 for _ in net.modules())} modules")
    for what, ratios in (("a step that is noted", noted), ("one step in eight noted", over_all)):
        low, _, high = quantiles(ratios, n=4)
        print(f"{what}: {median(ratios):.2f} [{low:.2f}-{high:.2f}]")


if __name__ == "__main__":
    main()
