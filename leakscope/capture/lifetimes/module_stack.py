"""Which module is running? By the names that its parents know it by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.modules import module as hooks

from leakscope.capture.process.patches import Patches
from leakscope.capture.torch_private import MODULES


class ModuleStack:
    """Two global hooks around every module's forward; holds only modules whose forward is running."""

    def __init__(self) -> None:
        self._running: list[tuple[torch.nn.Module, str]] = []

    @property
    def path(self) -> str:
        """`encoder.0.linear`; the outermost module alone goes by its class."""
        return self._running[-1][1] if self._running else ""

    def enter(self, patches: Patches) -> None:
        """Listen from here on."""
        after: Callable[..., Any] = partial(hooks.register_module_forward_hook, always_call=True)
        patches.add("modules running", self._running.clear)
        patches.hook("module forward pre-hook", hooks.register_module_forward_pre_hook, self._before)
        patches.hook("module forward hook", after, self._after)

    def _before(self, module: torch.nn.Module, args: object) -> None:
        del args
        name = type(module).__name__
        if self._running:
            parent, path = self._running[-1]
            known = next((key for key, child in parent.__dict__[MODULES].items() if child is module), name)
            name = f"{path}.{known}"
        self._running.append((module, name))

    def _after(self, module: torch.nn.Module, args: object, result: object) -> None:
        del args, result
        while self._running:
            if self._running.pop()[0] is module:
                return
