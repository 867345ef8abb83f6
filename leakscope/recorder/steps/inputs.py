"""Sizes and shapes of the inputs of the model in each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from leakscope.originals import _thread
from leakscope.process.patches import Patches
from leakscope.process.torch_compat import RecordingPart, lacks, without_functions
from leakscope.recorder.steps.detector import is_outermost

_ALL, _EVERY = 16, 8
"""Steps whose inputs are all recorded, and the interval for later ones: a global hook takes a fifth of the time of a
step of a small net of 281 modules, on one step in eight a fiftieth (`benchmarks/step_inputs.py`).
"""
_MAX_CALLS = 64
"""Maximum outermost calls recorded per step. A GAN has three to six, a pipeline some for each microbatch; a loop that
calls a module a thousand times in a step costs no more than this.
"""
_MAX_TENSORS = 32
"""Maximum tensors recorded per call. A batch of a transformer has two to eight."""
_MAX_SHAPES = 1 << 16
"""Maximum remembered shapes: 64 times as many as the caches of oneDNN and ideep hold (1,024 each)."""
_MAX_NESTING = 2
"""Maximum nesting of containers: a dict of tensors in the arguments, a pair of them within that."""
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_is_tracing: Any = torch.jit.is_tracing  # type: ignore[attr-defined]  # torch lists it nowhere


class StepInputs:
    """Adds up the tensor arguments of outermost module calls, per thread and step.

    Only numbers are kept.
    """

    def __init__(self) -> None:
        self._home = _thread.get_ident()
        self._calls = self._elements = self._new = 0
        self._shapes: set[int] = set()
        """Hashes of a module's type and its input shapes."""
        self._steps = 0
        self._installed: Patches | None = None
        """None before `install` and after `leave`."""

    def install(self, patches: Patches) -> None:
        """Start listening, until the script compiles or exports: dynamo traces global hooks into what it compiles."""
        if lacks(RecordingPart.CALLS) or lacks(RecordingPart.SNAPSHOTS):
            return
        self._installed = patches.part()
        self._set_hook(self._installed, on=True)
        patches.call_before_tracing(self.leave)
        patches.guard.at_end.append(lambda _: patches.guard.later.append(self.leave))

    def leave(self, *_: Any, **__: Any) -> None:
        """Stop listening."""
        installed, self._installed = self._installed, None
        if installed is not None:
            installed.take_out()

    def _set_hook(self, installed: Patches, *, on: bool) -> None:
        """Add or remove the hook for the next step."""
        if on and not installed.names:
            installed.hook_with_kwargs("module inputs hook", self._after_call)
        elif not on:
            installed.take_out()

    def taken(self) -> tuple[int | None, int]:
        """Return (elements of the step's inputs, number of new shapes among them); None if no module was called, or the
        step is not recorded.
        """
        elements = self._elements if self._calls else None
        new, self._calls, self._elements, self._new = self._new, 0, 0, 0
        self._home = _thread.get_ident()
        self._steps += 1
        if self._installed is not None:
            self._set_hook(self._installed, on=self._steps < _ALL or self._steps % _EVERY == 0)
        return elements, new

    def _after_call(self, module: Any, args: Any, kwargs: Any, _output: Any) -> None:
        if self._calls >= _MAX_CALLS or _thread.get_ident() != self._home or not is_outermost():
            return
        if _is_tracing():
            return  # the tracer would record that sizes were read
        shapes = []
        with without_functions():
            for tensor in _tensors((*args, *dict.values(kwargs)), _MAX_NESTING):
                shape = tuple(tensor.shape)
                if all(type(size) is int for size in shape):
                    shapes.append(shape)
                    self._elements += tensor.numel()
                if len(shapes) >= _MAX_TENSORS:
                    break
        if shapes:
            self._calls += 1
            key = hash((id(type(module)), *shapes))
            if key not in self._shapes and len(self._shapes) < _MAX_SHAPES:
                self._shapes.add(key)
                self._new += 1


def _tensors(values: Any, deep: int) -> Iterator[Any]:
    """Plain tensors among some values and in plain containers; runs none of their code."""
    for value in values:
        kind = type(value)
        if kind in _TENSORS:
            yield value
        elif deep and kind in (tuple, list):
            yield from _tensors(value, deep - 1)
        elif deep and kind is dict:
            yield from _tensors(list(value.values()), deep - 1)
