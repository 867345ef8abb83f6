"""How does torch.distributed.pipelining come to run this backward? `install()` rebinds its names."""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any, Self

import torch

from .full import stage_backward
from .split import stage_backward_input, stage_backward_weight

_FUNCTIONS = {
    "stage_backward": stage_backward,
    "stage_backward_input": stage_backward_input,
    "stage_backward_weight": stage_backward_weight,
}


class Installed:
    """One call of `install`. Leaving the `with` block, or `uninstall`, takes it back.

    Several may be there at once and go in any order: the last one to go puts every name back as the first found it.
    """

    def uninstall(self) -> None:
        """Take this call back. A second time changes nothing."""
        if self in _installed:
            _installed.remove(self)
        while _found and not _installed:
            owner, name, value = _found.pop()
            setattr(owner, name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()


_installed: list[Installed] = []
_found: list[tuple[Any, str, Any]] = []
"""What the first `install` found: owner, name and value of each rebound name."""


def _replace(owner: Any, name: str, value: Any) -> None:
    _found.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def install() -> Installed:
    """Make the schedules of ``torch.distributed.pipelining`` run the backward of this package.

    A call installs; used as ``with install(): ...`` it is taken out again at the end of the block. The names are
    rebound together in ``_backward``, ``stage`` and ``_IR``, because ``_IR`` compares functions by identity.

    After the input pass of a split schedule the stage object would keep the outputs and their gradients until the
    weight pass, and the received inputs a second reference to their gradients until the next step (both in torch 2.13).
    A wrapper around ``backward_one_chunk`` lets go of them.

    >>> from leakscope.backward import install, stage_backward
    >>> with install():
    ...     from torch.distributed.pipelining import stage
    ...     stage.stage_backward is stage_backward
    True
    >>> stage.stage_backward is stage_backward
    False

    Raises:
        RuntimeError: torch was built without distributed support.

    """
    if not torch.distributed.is_available():
        raise RuntimeError("this torch was built without torch.distributed, so there is no pipelining to install into")
    from torch.distributed.pipelining import _IR, _backward, stage

    if not _installed:
        for module in (_backward, stage, _IR):
            for name, function in _FUNCTIONS.items():
                if hasattr(module, name):
                    _replace(module, name, function)
        base = stage._PipelineStageBase
        _replace(base, "backward_one_chunk", _releasing(base.backward_one_chunk))
    _installed.append(installed := Installed())
    return installed


def _releasing(backward_one_chunk: Any) -> Any:
    @functools.wraps(backward_one_chunk)
    def run_and_release(self: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        result = backward_one_chunk(self, bwd_chunk_id, *args, **kwargs)
        waiting = self.backward_state.get(bwd_chunk_id)
        # The first stage has run nothing yet: torch leaves its whole backward to the weight pass.
        if waiting is not None and not self.is_first:
            inputs, param_groups = waiting[:2]
            for value in inputs:
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    value.grad = None
            self.backward_state[bwd_chunk_id] = ((), param_groups, (), None, *waiting[4:])
        return result

    return run_and_release
