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
    """What :func:`install` changed. Leaving the `with` block, or :meth:`uninstall`, puts it back."""

    def __init__(self) -> None:
        self._found: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Rebind one name and remember what it was."""
        self._found.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def uninstall(self) -> None:
        """Put every name back. A second call changes nothing."""
        while self._found:
            owner, name, value = self._found.pop()
            setattr(owner, name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()


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

    installed = Installed()
    for module in (_backward, stage, _IR):
        for name, function in _FUNCTIONS.items():
            if hasattr(module, name):
                installed.replace(module, name, function)
    base = stage._PipelineStageBase
    installed.replace(base, "backward_one_chunk", _releasing(base.backward_one_chunk))
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
