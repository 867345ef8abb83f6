"""Cycles through C++ that no collection ever frees."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks

from corpus.case import LeakCase


class Uncollectable(LeakCase):
    rule = "uncollectable-cycle"
    freed_by = "never"


class TensorHookOnItself(Uncollectable):
    cut = r"closure y"
    per_step = 2

    def leak(self) -> None:
        y = self.leaf() * 2
        y.register_hook(lambda grad: grad + y)

    def clean(self) -> None:
        y = self.leaf() * 2
        seen = y.detach()
        y.register_hook(lambda grad: grad + seen).remove()


class NodePreHook(Uncollectable):
    cut = r"closure y"
    per_step = 2

    def leak(self) -> None:
        y = self.leaf() * 2
        y.grad_fn.register_prehook(lambda grads: (grads[0] + y,))

    def clean(self) -> None:
        y = self.leaf() * 2
        y.grad_fn.register_prehook(lambda grads: (grads[0] + y,)).remove()


class NodeMetadata(Uncollectable):
    cut = r"\['output'\]|metadata"
    per_step = 2

    def leak(self) -> None:
        y = self.leaf() * 2
        y.grad_fn.metadata["output"] = y

    def clean(self) -> None:
        y = self.leaf() * 2
        y.grad_fn.metadata["output"] = y.detach()


class CreateGraph(Uncollectable):
    tells = r"\.grad"

    def begin(self) -> None:
        warnings.filterwarnings("ignore", "Using backward\\(\\) with create_graph")

    def leak(self) -> None:
        weight = self.leaf()
        (weight * weight).sum().backward(create_graph=True)

    def clean(self) -> None:
        weight = self.leaf()
        torch.autograd.grad((weight * weight).sum(), weight, create_graph=True)


class IdentitySavedTensorHooks(Uncollectable):
    tells = r"saved result"

    def leak(self) -> None:
        with saved_tensors_hooks(lambda saved: saved, lambda packed: packed):
            self.leaf().exp()

    def clean(self) -> None:
        with saved_tensors_hooks(lambda saved: saved.detach(), lambda packed: packed):
            self.leaf().exp()


class ObjectArrayOfItself(Uncollectable):
    tells = r"ndarray"
    per_step = 1

    def leak(self) -> None:
        row: Any = np.empty(2, dtype=object)
        row[0], row[1] = [row], self.tensor()

    def clean(self) -> None:
        row: Any = np.empty(2, dtype=object)
        row[0], row[1] = [row.shape], self.tensor()
