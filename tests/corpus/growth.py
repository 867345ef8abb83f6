"""Containers, attributes and caches on a live root that gain tensors each step; and things that may grow."""

from __future__ import annotations

import contextvars
import functools
import queue
import threading
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

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


class GrowingDict(Growing):
    cut = r"\.by_step"

    def begin(self) -> None:
        self.by_step: dict[int, Any] = {}

    def leak(self) -> None:
        self.by_step[len(self.by_step)] = self.tensor()

    def clean(self) -> None:
        self.by_step[0] = self.tensor()


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


class GrowingSet(Growing):
    cut = r"\.seen"

    def begin(self) -> None:
        self.seen: set[Any] = set()

    def leak(self) -> None:
        self.seen.add(self.tensor())

    def clean(self) -> None:
        self.seen = {self.tensor()}


class GrowingDeque(Growing):
    cut = r"\.recent"

    def begin(self) -> None:
        self.recent: deque[Any] = deque()
        self.bounded: deque[Any] = deque(maxlen=1000)

    def leak(self) -> None:
        self.recent.append(self.tensor())

    def clean(self) -> None:
        self.bounded.append(self.tensor())


class GrowingDefaultDict(Growing):
    cut = r"\.by_name|\['loss'\]"

    def begin(self) -> None:
        self.by_name: defaultdict[str, list[Any]] = defaultdict(list)

    def leak(self) -> None:
        self.by_name["loss"].append(self.tensor())

    def clean(self) -> None:
        self.by_name["loss"][:] = [self.tensor()]


class GrowingOrderedDict(Growing):
    cut = r"\.cache"

    def begin(self) -> None:
        self.cache: OrderedDict[int, Any] = OrderedDict()

    def leak(self) -> None:
        self.cache[len(self.cache)] = self.tensor()

    def clean(self) -> None:
        self.cache[0] = self.tensor()


class GrowingKeys(Growing):
    cut = r"\.seen"

    def begin(self) -> None:
        self.seen: dict[Any, int] = {}

    def leak(self) -> None:
        self.seen[self.tensor()] = 1

    def clean(self) -> None:
        self.seen = {self.tensor(): 1}


MODULE_LEVEL: list[Any] = []


class GrowingModuleGlobal(Growing):
    cut = r"\.MODULE_LEVEL"

    def leak(self) -> None:
        MODULE_LEVEL.append(self.tensor())

    def clean(self) -> None:
        MODULE_LEVEL[:] = [self.tensor()]

    def end(self) -> None:
        MODULE_LEVEL.clear()


class Registry:
    entries: ClassVar[list[Any]] = []


class GrowingClassAttribute(Growing):
    cut = r"\.entries"

    def leak(self) -> None:
        Registry.entries.append(self.tensor())

    def clean(self) -> None:
        Registry.entries = [self.tensor()]

    def end(self) -> None:
        Registry.entries = []


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


class GrowingTensorAttribute(Growing):
    cut = r"\.history"

    def begin(self) -> None:
        self.state = torch.ones(2)
        self.state.history = []  # type: ignore[attr-defined]

    def leak(self) -> None:
        self.state.history.append(self.tensor())  # type: ignore[attr-defined]

    def clean(self) -> None:
        self.state.history = [self.tensor()]  # type: ignore[attr-defined]


class GrowingParameterRecords(Growing):
    """An object on a parameter that keeps records of it."""

    cut = r"\.rows"

    def begin(self) -> None:
        self.weight = nn.Parameter(torch.ones(2))
        self.weight.records = _Slotted()  # type: ignore[attr-defined]

    def leak(self) -> None:
        self.weight.records.rows.append(self.tensor())  # type: ignore[attr-defined]

    def clean(self) -> None:
        self.weight.records.rows = [self.tensor()]  # type: ignore[attr-defined]


class GrowingQueue(Growing):
    cut = r"\.queue|\.waiting"

    def begin(self) -> None:
        self.waiting: queue.Queue[Any] = queue.Queue()

    def leak(self) -> None:
        self.waiting.put(self.tensor())

    def clean(self) -> None:
        self.waiting.put(self.tensor())
        self.waiting.get()


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


class GrowingParameterList(Growing):
    tells = r"ParameterList module"

    def begin(self) -> None:
        self.prompts = nn.ParameterList()

    def leak(self) -> None:
        self.prompts.append(nn.Parameter(self.tensor()))

    def clean(self) -> None:
        self.prompts = nn.ParameterList([nn.Parameter(self.tensor())])


@dataclass(slots=True)
class _Slotted:
    rows: list[Any] = field(default_factory=list)


class GrowingSlots(Growing):
    cut = r"\.rows"

    def begin(self) -> None:
        self.slotted = _Slotted()

    def leak(self) -> None:
        self.slotted.rows.append(self.tensor())

    def clean(self) -> None:
        self.slotted.rows = [self.tensor()]


_Named = namedtuple("_Named", "rows")


class GrowingNamedTuple(Growing):
    cut = r"\.rows|\[0\]"

    def begin(self) -> None:
        self.named = _Named([])

    def leak(self) -> None:
        self.named.rows.append(self.tensor())

    def clean(self) -> None:
        self.named.rows[:] = [self.tensor()]


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


class SnapshotsOfWeights(Growing):
    cut = r"\.snapshots"

    def begin(self) -> None:
        self.weight = nn.Parameter(self.tensor())
        self.average = self.weight.detach().clone()
        self.snapshots: list[Any] = []

    def leak(self) -> None:
        self.snapshots.append({"weight": self.weight.detach().clone()})

    def clean(self) -> None:
        self.average.mul_(0.9).add_(self.weight.detach(), alpha=0.1)


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


class GradientsKept(Growing):
    cut = r"\.gradients"

    def begin(self) -> None:
        self.weight = nn.Parameter(self.tensor())
        self.optimizer = torch.optim.AdamW([self.weight])
        self.gradients: list[Any] = []

    def leak(self) -> None:
        self._step()
        self.gradients.append(self.weight.grad)
        self.optimizer.zero_grad(set_to_none=True)

    def clean(self) -> None:
        self._step()
        self.optimizer.zero_grad(set_to_none=True)

    def _step(self) -> None:
        (self.weight * self.weight).sum().backward()
        self.optimizer.step()


class BoundMethodsKept(Growing):
    cut = r"\.callbacks"

    def begin(self) -> None:
        self.callbacks: list[Any] = []

    def leak(self) -> None:
        self.callbacks.append(self.tensor().sum)

    def clean(self) -> None:
        self.callbacks[:] = [self.tensor().sum]


class Measured(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    @functools.lru_cache(maxsize=1000)  # noqa: B019 - the leak: the key is the module
    def count(self) -> int:
        return self.weight.numel()


class CachedMethodsKeepModules(Growing):
    """The results are numbers and the bound is far, but each key is a module."""

    tells = r"Measured\.count gains Measured modules.*each item keeps a module.*cached_property"

    def leak(self) -> None:
        Measured(self.tensor()).count()

    def clean(self) -> None:
        Measured(self.tensor())

    def end(self) -> None:
        Measured.count.cache_clear()


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


class GrowingModules(Growing):
    """A module under a new name at each step, as of one client after another."""

    cut = r"\.client\{i\}"

    def _client(self) -> nn.Module:
        client = nn.Linear(1, 1, bias=False)
        client.weight = nn.Parameter(self.tensor(), requires_grad=False)
        return client

    def leak(self) -> None:
        self.count += 1
        CLIENTS.add_module(f"client{self.count}", self._client())

    def clean(self) -> None:
        CLIENTS.add_module("client", self._client())

    def end(self) -> None:
        CLIENTS._modules.clear()


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
