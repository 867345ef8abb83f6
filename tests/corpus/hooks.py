"""Hooks that are registered again at each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from corpus.case import LeakCase


class PiledUp(LeakCase):
    rule = "hook-pileup"
    freed_by = "program"
    per_step: Any = 1
    handle: Any = None

    def once(self, register: Any, hook: Any) -> None:
        """The clean take the last hook off before they put on the next."""
        if self.handle is not None:
            self.handle.remove()
        self.handle = register(hook)


class ForwardHookEachStep(PiledUp):
    tells = r"ForwardHookEachStep\.leak.*_forward_hooks"

    def begin(self) -> None:
        self.module = nn.Linear(2, 2)

    def leak(self) -> None:
        seen = self.tensor()
        self.module.register_forward_hook(lambda *_: seen)

    def clean(self) -> None:
        seen = self.tensor()
        self.once(self.module.register_forward_hook, lambda *_: seen)


class ParameterHookEachStep(PiledUp):
    tells = r"ParameterHookEachStep\.leak.*closure scale"

    def begin(self) -> None:
        self.weight = nn.Parameter(torch.ones(2))

    def leak(self) -> None:
        scale = self.tensor()
        self.weight.register_hook(lambda grad: grad * scale[:2])

    def clean(self) -> None:
        scale = self.tensor()
        self.once(self.weight.register_hook, lambda grad: grad * scale[:2])


class AccumulateGradHookEachStep(PiledUp):
    tells = r"AccumulateGradHookEachStep\.leak.*closure scale"

    def begin(self) -> None:
        self.weight = nn.Parameter(torch.ones(2))
        self.node = self.weight.expand_as(self.weight).grad_fn.next_functions[0][0]

    def leak(self) -> None:
        scale = self.tensor()
        self.node.register_hook(lambda *_: scale.mean() and None)

    def clean(self) -> None:
        scale = self.tensor()
        self.once(self.node.register_hook, lambda *_: scale.mean() and None)


class GlobalModuleHookEachStep(PiledUp):
    tells = (
        r"GlobalModuleHookEachStep\.leak.*_global_forward_hooks|_global_forward_hooks.*GlobalModuleHookEachStep\.leak"
    )

    def begin(self) -> None:
        self.handles: list[Any] = []

    def leak(self) -> None:
        seen = self.tensor()
        self.handles.append(nn.modules.module.register_module_forward_hook(lambda *_, seen=seen: None))

    def clean(self) -> None:
        seen = self.tensor()
        self.once(nn.modules.module.register_module_forward_hook, lambda *_, seen=seen: None)

    def end(self) -> None:
        for handle in [*self.handles, self.handle]:
            if handle is not None:
                handle.remove()
