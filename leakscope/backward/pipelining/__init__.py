"""Makes torch.distributed.pipelining use this backward: `install()` rebinds its names."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import torch

from ..full import stage_backward
from ..split import stage_backward_input, stage_backward_weight
from .release import replacements, restore_buffers

_FUNCTIONS = {
    "stage_backward": stage_backward,
    "stage_backward_input": stage_backward_input,
    "stage_backward_weight": stage_backward_weight,
}


class Installed:
    """One call of `install`, undone by `uninstall` or at the end of its `with` block.

    Calls may overlap and be undone in any order: the last one restores every name as the first found it. Outputs are
    released while a call with `release_outputs` is active. Install and uninstall between steps.

    Args:
        release_outputs: As for `install`.

    >>> from leakscope.backward import install
    >>> installed = install()
    >>> installed.uninstall()

    """

    def __init__(self, release_outputs: bool = False) -> None:
        self.release_outputs = release_outputs

    def uninstall(self) -> None:
        """Undo this call. A second call has no effect."""
        if self in _installed:
            _installed.remove(self)
        if not any(installed.release_outputs for installed in _installed):
            _above.restore()
            restore_buffers()
        if not _installed:
            _below.restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstall()


class _Layer:
    """Names that are replaced together, with their previous values."""

    def __init__(self) -> None:
        self._found: list[tuple[Any, str, Any]] = []

    def replace(self, names: Iterable[tuple[Any, str, Any]]) -> None:
        """Replace names, each by a value; no effect if they are replaced already."""
        if not self._found:
            for owner, name, value in names:
                self._found.append((owner, name, getattr(owner, name)))
                setattr(owner, name, value)

    def restore(self) -> None:
        """Restore each name."""
        while self._found:
            owner, name, value = self._found.pop()
            setattr(owner, name, value)


_installed: list[Installed] = []
_below = _Layer()
_above = _Layer()
"""The layer that releases outputs: applied on top of the other names, and so restored first."""


def install(release_outputs: bool = False) -> Installed:
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

    By itself that makes no peak of a schedule lower: what is highest then are the outputs and the receive buffers that
    the schedule keeps. With ``release_outputs=True`` it keeps neither; nothing in the training script changes:

    >>> installed = install(release_outputs=True)
    >>> # schedule = Schedule1F1B(stage, 8, loss_fn=loss); schedule.step(x)
    >>> installed.uninstall()

    Args:
        release_outputs: let go of an output when it was sent, and keep the edge from which its backward starts; make a
            receive buffer when something is to come, and let go of it when it is used; let go of gradients that were
            sent. What the last stage returns stays. A stage wrapped in DistributedDataParallel, one with a
            ``dw_builder`` and one whose outputs are DTensors keep their outputs. The stages of torch 2.15 release
            theirs by themselves, so there it changes nothing.

    Returns:
        The installation, which `uninstall` or the end of its `with` block undoes.

    Raises:
        RuntimeError: Torch was built without distributed support, or its schedules lack what `release_outputs`
            replaces. Nothing is installed then.

    """
    if not torch.distributed.is_available():
        raise RuntimeError("this torch was built without torch.distributed, so there is no pipelining to install into")
    installed = Installed(release_outputs)
    _installed.append(installed)
    try:
        _below.replace(_functions())
        if release_outputs:
            _above.replace(replacements())
    except BaseException:
        installed.uninstall()
        raise
    return installed


def _functions() -> Iterator[tuple[Any, str, Any]]:
    from torch.distributed.pipelining import _IR, _backward, stage

    for module in (_backward, stage, _IR):
        for name, function in _FUNCTIONS.items():
            if hasattr(module, name):
                yield module, name, function
    base = stage._PipelineStageBase
    yield base, "backward_one_chunk", _releasing(base.backward_one_chunk)


def _releasing(backward_one_chunk: Any) -> Any:
    @functools.wraps(backward_one_chunk)
    def run_and_release(self: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        result = backward_one_chunk(self, bwd_chunk_id, *args, **kwargs)
        waiting = self.backward_state.get(bwd_chunk_id)
        # The first stage has not run anything yet: torch leaves its whole backward to the weight pass.
        if waiting is not None and not self.is_first:
            inputs, param_groups = waiting[:2]
            for value in inputs:
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    value.grad = None
            self.backward_state[bwd_chunk_id] = ((), param_groups, (), None, *waiting[4:])
        return result

    return run_and_release
