"""Open distributed-autograd contexts of this worker: where they were opened and what they keep."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from leakscope.graph.model import CommUse
from leakscope.process.frames import users_line
from leakscope.process.patches import Patches
from leakscope.process.torch_compat import (
    address_of_storage,
    agent_is_set,
    context_at,
    counts_of_contexts,
    current_agent,
    must_be_open,
    receives_of,
    sends_of,
    workers_of,
)
from leakscope.run.rows import ContextsAtStep, OpenContext
from leakscope.run.writer import RankFolder

_WORKER_BITS = 48
"""A context's id is the worker's id above these bits and a counter in them.

From torch/csrc/distributed/autograd/context/container.h.
"""
_MAX_MISSES = 2000
"""Consecutive ids without an open context after which the search of a worker's contexts stops."""
_MAX_CONTEXTS = 16
"""Maximum contexts listed in one row on disk, which counts all."""
DIRECTION = "dist_autograd context"


class ContextMonitor:
    """Records where contexts are entered; everything else is read from torch's own container on demand."""

    def __init__(self, folder: RankFolder, patches: Patches) -> None:
        self.step = 1
        self._folder = folder
        self._opened: dict[int, tuple[str, int]] = {}
        self._lowest: dict[int, int] = {}
        self._last_counts: tuple[int, int] = (0, 0)
        self._install(patches)

    def _install(self, patches: Patches) -> None:
        from torch.distributed import autograd

        patches.add("contexts opened", self._opened.clear)
        patches.call_after(autograd.context, "__enter__", self._entered)

    def _entered(self, number: int, _: Any) -> None:
        self._opened[number] = (users_line(sys._getframe(1)), self.step)

    def step_ended(self, step: int) -> None:
        """Write a row of `contexts.jsonl` if a context is open or has just been closed."""
        counts = counters()
        if counts != (0, 0) or counts != self._last_counts:
            self._last_counts = counts
            contexts = self.open_contexts()
            size = sum(context.bytes for context in contexts)
            self._folder.append(ContextsAtStep(step, *counts, size, tuple(contexts[:_MAX_CONTEXTS])))
        for number in [n for n in self._opened if not _is_open(n)]:
            self._opened.pop(number, None)
        self.step = step + 1

    def open_contexts(self) -> list[OpenContext]:
        """Every open context of this worker, by id."""
        contexts = []
        for number in self._open_numbers():
            context, gradients = _retrieve(number)
            if context is None:
                continue
            where, step = self._opened.get(number, ("", None))
            size = sum({_address(g): g.untyped_storage().nbytes() for g in gradients}.values())
            contexts.append(OpenContext(number, where, step, _workers(context), len(gradients), size))
        return contexts

    def holds(self, kept: list[Any]) -> Iterator[tuple[Any, Any, str]]:
        """Yield (context, what it holds in C++, name of the reference); contexts are added to `kept`."""
        for number in self._open_numbers():
            context, gradients = _retrieve(number)
            if context is None:
                continue
            kept.append(context)
            for gradient in gradients:
                yield context, gradient, "gradient"
            for variable in _variables(number):
                yield context, variable, "variable"
            del gradients
            for node in sends_of(context).values():
                yield context, node, "send function"
            for node in receives_of(context).values():
                yield context, node, "receive function"
            del context

    def last_uses(self) -> dict[int, CommUse]:
        """Map the address of each gradient's storage to the context that keeps it."""
        uses = {}
        for number in self._open_numbers():
            _, gradients = _retrieve(number)
            where, step = self._opened.get(number, ("", None))
            peer = number >> _WORKER_BITS
            for gradient in gradients:
                uses[_address(gradient)] = CommUse(DIRECTION, peer, None, step or 0, 0, where, False)
        return uses

    def _open_numbers(self) -> list[int]:
        """Ids of the open contexts: their number is known, and each worker counts up from 0."""
        wanted, _ = counters()
        numbers: list[int] = []
        for worker in _workers_known() if wanted else ():
            first = worker << _WORKER_BITS
            number = self._lowest.get(worker, first)
            lowest, misses = None, 0
            while len(numbers) < wanted and misses < _MAX_MISSES:
                if _is_open(number):
                    numbers.append(number)
                    lowest = number if lowest is None else lowest
                    misses = 0
                else:
                    misses += 1
                number += 1
            if lowest is not None:
                self._lowest[worker] = lowest
        return numbers


def _address(tensor: Any) -> int:
    """Address of a tensor's storage."""
    return int(address_of_storage(tensor.untyped_storage()))


def counters() -> tuple[int, int]:
    """Return (open contexts, running backward passes) of this worker; zeros without an RPC agent."""
    if not _started():
        return 0, 0
    counts = counts_of_contexts()
    return int(counts["num_autograd_contexts"]), int(counts["num_current_backward_passes"])


def _started() -> bool:
    return "torch.distributed.rpc.api" in sys.modules and bool(agent_is_set())


def _is_open(number: int) -> bool:
    try:
        must_be_open(number)
    except RuntimeError:  # torch raises for an id that it does not know
        return False
    return True


def _retrieve(number: int) -> tuple[Any, list[Any]]:
    """The context and its accumulated gradients; (None, []) if it has just been released."""
    autograd: Any = torch.distributed.autograd
    try:
        context = context_at(number)
        return context, list(autograd.get_gradients(number).values())
    except RuntimeError:
        return None, []


def _variables(number: int) -> list[Any]:
    """The tensors for which a context has gradients; they are the keys of its map."""
    autograd: Any = torch.distributed.autograd
    try:
        return list(autograd.get_gradients(number))
    except RuntimeError:
        return []


def _workers(context: Any) -> tuple[int, ...]:
    return tuple(sorted(int(worker) for worker in workers_of(context)))


def _workers_known() -> list[int]:
    return sorted(int(info.id) for info in current_agent().get_worker_infos())
