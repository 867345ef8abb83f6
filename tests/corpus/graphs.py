"""Small tensors that keep a whole graph and its activations."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo  # checkpoint imports it when it first runs, and that import keeps the frames that led to it
from torch.utils.checkpoint import checkpoint

from corpus.case import LeakCase


class HeldGraph(LeakCase):
    rule = "retained-graph"
    freed_by = "program"


class LoggedLoss(HeldGraph):
    cut = r"\.losses"

    def begin(self) -> None:
        self.losses: list[Any] = []

    def leak(self) -> None:
        self.losses.append(self.leaf().exp().sum())

    def clean(self) -> None:
        self.losses.append(self.leaf().exp().sum().item())


class LossAfterBackward(HeldGraph):
    """Backward has freed what was saved: the leaf and its gradient are all that the graph keeps."""

    cut = r"\.losses"
    per_step = 2

    def begin(self) -> None:
        self.losses: list[Any] = []

    def leak(self) -> None:
        loss = self.leaf().exp().sum()
        loss.backward()
        self.losses.append(loss)

    def clean(self) -> None:
        loss = self.leaf().exp().sum()
        loss.backward()
        self.losses.append(loss.detach())


class RunningSum(HeldGraph):
    cut = r"\.total"

    def begin(self) -> None:
        self.total: Any = 0.0

    def leak(self) -> None:
        self.total = self.total + self.leaf().exp().sum()

    def clean(self) -> None:
        self.total = self.total + self.leaf().exp().sum().detach()


class CheckpointedGraph(HeldGraph):
    cut = r"\.outputs"

    def begin(self) -> None:
        self.outputs: list[Any] = []

    def leak(self) -> None:
        self.outputs.append(self._forward())

    def clean(self) -> None:
        self.outputs.append(self._forward().item())

    def _forward(self) -> torch.Tensor:
        made: torch.Tensor = checkpoint(_twice, self.leaf(), use_reentrant=False, preserve_rng_state=False)
        return made


class HookOfATensorThatIsGone(HeldGraph):
    """One hook on each graph piles up nowhere: the graphs do."""

    cut = r"\.outputs"

    def begin(self) -> None:
        self.outputs: list[Any] = []

    def leak(self) -> None:
        made, _ = self._forward()
        self.outputs.append(made)

    def clean(self) -> None:
        made, handle = self._forward()
        made.backward()
        handle.remove()
        self.outputs.append(made.item())

    def _forward(self) -> tuple[torch.Tensor, Any]:
        seen = self.tensor()
        middle = self.leaf() * 2
        handle = middle.register_hook(lambda grad: grad * seen)
        return middle.sum(), handle


def _twice(given: torch.Tensor) -> torch.Tensor:
    return given.exp().tanh().sum()


class GradNodeKept(HeldGraph):
    cut = r"\.nodes"

    def begin(self) -> None:
        self.nodes: list[Any] = []

    def leak(self) -> None:
        self.nodes.append(self.leaf().exp().sum().grad_fn)

    def clean(self) -> None:
        self.nodes.append(type(self.leaf().exp().sum().grad_fn))


class OffloadedSavedTensors(HeldGraph):
    """Payloads of saved-tensor hooks: what the pack hook made is held by the graph."""

    cut = r"\.losses"

    def begin(self) -> None:
        self.losses: list[Any] = []

    def leak(self) -> None:
        self.losses.append(self._forward())

    def clean(self) -> None:
        self.losses.append(self._forward().detach())

    def _forward(self) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: ("cpu", t.clone()), lambda packed: packed[1]):
            return self.leaf().exp().sum()
