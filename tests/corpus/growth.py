"""Containers, attributes and caches on a live root that gain tensors each step; and things that may grow."""

from __future__ import annotations

import contextvars
import functools
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from corpus.case import LeakCase


class Growing(LeakCase):
    rule = "step-growth"
    freed_by = "program"
    per_step: Any = 1

    def begin(self) -> None:
        self.count = 0


class GrowingList(Growing):
    cut = r"\.outputs"

    def begin(self) -> None:
        self.outputs: list[Any] = []

    def leak(self) -> None:
        self.outputs.append(self.tensor())

    def clean(self) -> None:
        self.outputs.append(self.tensor())
        del self.outputs[:-2]


class HeldInTwoPlaces(Growing):
    """Neither cut alone frees anything; of the clean variant's two places one is emptied, and one has a bound."""

    cut = r"^(\.rows|\.by_step)$"

    def begin(self) -> None:
        self.rows: list[Any] = []
        self.by_step: dict[int, Any] = {}

    def leak(self) -> None:
        self.rows.append(self.tensor())
        self.by_step[len(self.rows)] = self.rows[-1]

    def clean(self) -> None:
        self.rows[:] = [self.tensor()]
        self.by_step[0] = self.rows[-1]


class GrowingDefaultDict(Growing):
    cut = r"\.by_name|\['loss'\]"

    def begin(self) -> None:
        self.by_name: defaultdict[str, list[Any]] = defaultdict(list)

    def leak(self) -> None:
        self.by_name["loss"].append(self.tensor())

    def clean(self) -> None:
        self.by_name["loss"][:] = [self.tensor()]


class GrowingKeys(Growing):
    cut = r"\.seen"

    def begin(self) -> None:
        self.seen: dict[Any, int] = {}

    def leak(self) -> None:
        self.seen[self.tensor()] = 1

    def clean(self) -> None:
        self.seen = {self.tensor(): 1}


def _recorder() -> Callable[[Any], None]:
    rows: list[Any] = []

    def record(row: Any) -> None:
        rows.append(row)

    return record


def _last() -> Callable[[Any], None]:
    rows: list[Any] = []

    def record(row: Any) -> None:
        rows[:] = [row]

    return record


class GrowingClosure(Growing):
    cut = r"closure rows"

    def begin(self) -> None:
        self.record, self.keep = _recorder(), _last()

    def leak(self) -> None:
        self.record(self.tensor())

    def clean(self) -> None:
        self.keep(self.tensor())


def _defaulted(row: Any, rows: list[Any] = []) -> int:  # noqa: B006
    rows.append(row)
    return len(rows)


class GrowingDefaultArgument(Growing):
    cut = r"__defaults__|\[0\]"

    def leak(self) -> None:
        _defaulted(self.tensor())

    def clean(self) -> None:
        _defaulted(self.tensor(), [])

    def end(self) -> None:
        assert _defaulted.__defaults__ is not None
        _defaulted.__defaults__[0].clear()


@functools.cache
def _table(step: int, prime: int) -> torch.Tensor:
    return torch.ones(prime) * step


@functools.lru_cache(maxsize=500)
def _bounded_table(step: int, prime: int) -> torch.Tensor:
    return torch.ones(prime) * step


class GrowingLruCache(Growing):
    cut = r"_table|cached result"

    def leak(self) -> None:
        self.count += 1
        _table(self.count, self.prime)

    def clean(self) -> None:
        self.count += 1
        _bounded_table(self.count, self.prime)

    def end(self) -> None:
        _table.cache_clear()
        _bounded_table.cache_clear()


class _Link:
    def __init__(self, tensor: torch.Tensor, before: Any) -> None:
        self.tensor = tensor
        self.before = before


class GrowingLinkedList(Growing):
    cut = r"\.head"

    def begin(self) -> None:
        self.head: Any = None

    def leak(self) -> None:
        self.head = _Link(self.tensor(), self.head)

    def clean(self) -> None:
        self.head = _Link(self.tensor(), None)


_ROWS: contextvars.ContextVar[Any] = contextvars.ContextVar("rows")


def _collect(rows: list[Any]) -> Any:
    while True:
        rows.append((yield))


class GrowingInGenerator(Growing):
    """One generator that always waits, and whose list grows: no generators pile up."""

    cut = "local rows"

    def begin(self) -> None:
        self.collector = _collect([])
        next(self.collector)

    def leak(self) -> None:
        self.collector.send(self.tensor())

    def clean(self) -> None:
        self.collector.close()
        self.collector = _collect([])
        next(self.collector)
        self.collector.send(self.tensor())


class _Writer(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.waiting: queue.Queue[Any] = queue.Queue()
        self.over, self.runs = threading.Event(), threading.Event()

    def run(self) -> None:
        self.runs.set()
        self.over.wait()


class GrowingInThread(Growing):
    """One thread that lives and owns what grows: no threads pile up."""

    cut = r"\.queue|\.waiting"

    def begin(self) -> None:
        self.writer = _Writer()
        self.writer.start()
        self.writer.runs.wait()

    def leak(self) -> None:
        self.writer.waiting.put(self.tensor())

    def clean(self) -> None:
        self.writer.waiting.put(self.tensor())
        self.writer.waiting.get()

    def end(self) -> None:
        self.writer.over.set()
        self.writer.join()


class GrowingTensor(Growing):
    cut = r"\.seen"

    def begin(self) -> None:
        self.seen = self.tensor()

    def leak(self) -> None:
        self.seen = torch.cat([self.seen, self.tensor()])

    def clean(self) -> None:
        self.seen = torch.cat([self.seen, self.tensor()])[-self.prime :].clone()


class GrowingOptimizerState(Growing):
    """State of parameters that are gone; the clean variant is a history that the optimizer itself keeps and bounds."""

    cut = r"\.state"

    def begin(self) -> None:
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
        self.weight = nn.Parameter(torch.zeros(self.prime))
        self.with_history = torch.optim.LBFGS([self.weight], lr=1e-3, max_iter=1)

    def leak(self) -> None:
        self.optimizer.state[nn.Parameter(torch.ones(1))] = {"momentum_buffer": self.tensor()}

    def clean(self) -> None:
        self.with_history.step(self._loss)

    def _loss(self) -> torch.Tensor:
        self.with_history.zero_grad()
        loss = (self.weight * torch.linspace(0.5, 1.5, self.prime)).exp().sum()
        loss.backward()
        return loss


class GrowingContextVariable(Growing):
    tells = r"Context.*rows"

    def begin(self) -> None:
        self.context = contextvars.copy_context()
        self.context.run(_ROWS.set, ())

    def leak(self) -> None:
        self.context.run(_ROWS.set, (*self.context[_ROWS], self.tensor()))

    def clean(self) -> None:
        self.context.run(_ROWS.set, (self.tensor(),))


class GrowingParamGroups(Growing):
    cut = r"\.param_groups"

    def begin(self) -> None:
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)

    def leak(self) -> None:
        self.optimizer.add_param_group({"params": [nn.Parameter(self.tensor())]})

    def clean(self) -> None:
        self.optimizer.param_groups[0]["params"] = [nn.Parameter(self.tensor())]


class GrowingModuleBuffers(Growing):
    tells = r"Module module"

    def begin(self) -> None:
        self.module = nn.Module()
        self.count = 0

    def leak(self) -> None:
        self.count += 1
        self.module.register_buffer(f"seen_{'x' * self.count}", self.tensor())

    def clean(self) -> None:
        self.module.register_buffer("seen", self.tensor())


class GrowingObjectArray(Growing):
    cut = r"\.array|\[i\]"

    def begin(self) -> None:
        self.array: Any = np.empty(64, dtype=object)
        self.count = 0

    def leak(self) -> None:
        self.array[self.count] = self.tensor()
        self.count += 1

    def clean(self) -> None:
        self.array[0] = self.tensor()


class GrowingWrappers(Growing):
    """Wrapper subclasses, whose memory is that of an inner tensor."""

    cut = r"\.shards"

    def begin(self) -> None:
        self.shards: list[Any] = []

    def leak(self) -> None:
        from corpus.cycles import Wrapper

        self.shards.append(Wrapper(self.tensor()))

    def clean(self) -> None:
        from corpus.cycles import Wrapper

        self.shards = [Wrapper(self.tensor())]


class ReplayBuffer(Growing):
    """With a capacity that is reached, filling up is no leak."""

    cut = r"\.memory"

    def begin(self) -> None:
        self.memory: list[Any] = []
        self.capacity = 6
        self.place = 0

    def leak(self) -> None:
        self.memory.append((self.tensor(), 1.0))

    def clean(self) -> None:
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        self.memory[self.place] = (self.tensor(), 1.0)
        self.place = (self.place + 1) % self.capacity


class Fitted(nn.Module):
    """A model of a tuple of inputs and a weight, whose hook makes it a cycle of its own."""

    def __init__(self, inputs: torch.Tensor, weight: torch.Tensor) -> None:
        super().__init__()
        self.train_inputs = (inputs,)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.check = self.forward


class GrowingListOfModels(Growing):
    """One growth of the list, though each model brings two storages, and none goes free before gc has run."""

    cut = r"\.models$"
    per_step = 2

    def begin(self) -> None:
        self.models: list[nn.Module] = []

    def leak(self) -> None:
        self.models.append(Fitted(self.tensor(), self.tensor()))

    def clean(self) -> None:
        for model in self.models:
            del model.check
        self.models[:] = [Fitted(self.tensor(), self.tensor())]


CLIENTS, NAMED = nn.Module(), nn.Module()


class GrowingAttributes(Growing):
    """Attributes under names that no number tells apart, the last two of which stay in the clean variant."""

    cut = r"\.\{name\}"

    def leak(self) -> None:
        self.count += 1
        setattr(NAMED, "x" * self.count, self.tensor())

    def clean(self) -> None:
        self.leak()
        if self.count > 2:
            delattr(NAMED, "x" * (self.count - 2))

    def end(self) -> None:
        for name in [name for name in vars(NAMED) if set(name) == {"x"}]:
            delattr(NAMED, name)
