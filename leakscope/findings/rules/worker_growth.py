"""Memory of a data loader's workers that grows in their own processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leakscope.findings.facts import Facts, FreedBy, HopStatus, RuleName, Severity
from leakscope.findings.model import Cut, CutReference, Finding, Hop, Sighting
from leakscope.findings.naming import fingerprint
from leakscope.findings.rules.rule import Rule
from leakscope.findings.workers import Life, lives_of
from leakscope.graph.model import ObjectKind
from leakscope.run.model import Rank
from leakscope.run.rows import GrowingInWorker, WorkerSnapshot, WorkersStarted
from leakscope.units import bytes_text, plural

NAME = RuleName.WORKER_GROWTH
_SNAPSHOTS = 3
"""Minimum samples with growth, as for the rank itself."""
_SNAPSHOTS_OF_EMPTIED = 6
"""Minimum samples with growth if items were also removed. Heuristic: the number of items of a container that is emptied
occasionally rises over three samples by chance one time in six, over six one time in 720.
"""
_NOTE_SHARE = 1 / 16
"""Share of a leak's growth from which growth is worth a note. Heuristic."""
_THIRDS = 3
"""Parts of a lifetime: a container must grow in each; one that has filled up does not in the last. Heuristic."""
_PARTS = 4
"""Parts of a lifetime: memory without a holder must grow in each but the first. Heuristic."""
_STEPS = 16
"""Minimum steps of a lifetime to report memory without a holder: workers plateau first. Heuristic."""
_EXPLAINED_SHARE = 0.5
"""Share of growth found in containers above which the rest is not reported separately. Heuristic."""


@dataclass(frozen=True)
class WorkerGrowthFacts(Facts):
    """Growth in DataLoader workers."""

    dataset: str
    workers: int
    """Number of workers with this growth."""
    name: str = ""
    """`self.cache of Images`; "" without a container."""
    type: str = ""
    item: str = ""
    items: int = 0
    """Maximum items that one worker has added."""
    items_per_batch: float = 0.0
    own_bytes: int | None = None
    """Growth of the workers' own memory, according to the kernel; None with a single sample."""
    own_steps: tuple[int, int] = (0, 0)
    """The steps of these samples."""
    gives_back: bool = False
    """Whether workers end with each epoch."""

    def title_for(self, finding: Finding) -> str:
        """The growing container and its growth."""
        pace = f"{bytes_text(finding.bytes_per_step)} per step"
        each = f"each of {self.workers} workers" if self.workers > 1 else "a worker"
        if not self.name:
            who = f"{plural(self.workers, 'worker')} of {self.dataset}"
            return f"Memory of {who} grows by {pace}, container unknown"
        back = ", released after each epoch" if self.gives_back else ""
        rate = f"{self.items_per_batch:,.0f}" if self.items_per_batch >= 1 else f"{self.items_per_batch:.1f}"
        gained = f"{rate} {self.item or 'result'}".rstrip()
        return f"{self.name} gains {gained} per batch in {each}, {pace}{back}"

    def advice_for(self, _: Finding) -> str:
        """What to do about growth in a worker process."""
        own = ""
        if self.own_bytes is not None:
            first, last = self.own_steps
            own = f" (worker memory grew by {bytes_text(self.own_bytes)}, steps {first} to {last})"
        if not self.name:
            return (
                f"The memory is in the worker processes{own}: check what `__getitem__`, transforms and collate_fn "
                "store, "
                "also in caches of libraries and in C code. persistent_workers=False releases it after each epoch."
            )
        return (
            f"Each worker fills its own copy, which the main process does not have{own}: evict entries that are no "
            "longer used, set a bound, or share one cache between the workers (a file, shared memory). "
            "persistent_workers=False releases it after each epoch."
        )


@dataclass(frozen=True)
class _WorkerContainer:
    """One container in one worker, sample by sample."""

    batches: tuple[int, ...]
    rows: tuple[GrowingInWorker, ...]

    @property
    def continues(self) -> bool:
        """Whether it gained in each part of its lifetime, in enough samples."""
        begin, length = self.batches[0], self.batches[-1] - self.batches[0]
        ends = (begin + length * part / _THIRDS for part in range(_THIRDS + 1))
        marks = [next(k for k, batches in enumerate(self.batches) if batches >= end) for end in ends]
        items = [self.rows[mark].items for mark in marks]
        if len(self.rows) < (_SNAPSHOTS_OF_EMPTIED if self._kept < 1 else _SNAPSHOTS):
            return False
        if any(after.items < before.items for before, after in pairwise(self.rows)):
            return False  # it has been emptied: more was added than is kept
        return all(after > before for before, after in pairwise(items))

    @property
    def _kept(self) -> float:
        """The share of the items added since the first sample that are still there."""
        put_in = self.rows[-1].gained - self.rows[0].gained
        return max(self.rows[-1].items - self.rows[0].items, 0) / put_in if put_in > 0 else 1.0

    @property
    def bytes(self) -> int:
        """Bytes of the added items that are still there."""
        return round(self.rows[-1].bytes * min(self._kept, 1.0))

    @property
    def bytes_per_batch(self) -> float:
        """Growth per batch of the worker."""
        return (self.rows[-1].bytes - self.rows[0].bytes) * min(self._kept, 1.0) / self._batches

    @property
    def items_per_batch(self) -> float:
        """Items of that growth."""
        return (self.rows[-1].items - self.rows[0].items) / self._batches

    @property
    def _batches(self) -> int:
        return max(self.batches[-1] - self.batches[0], 1)


def worker_growth_findings(rank: Rank, min_per_step: int) -> list[Finding]:
    """One finding for each container that workers of a loader keep filling, and one for unexplained memory."""
    snapshots = [row for row in rank.loader_workers if isinstance(row, WorkerSnapshot)]
    found = []
    for loader, lives in lives_of(rank).items():
        again = sum(isinstance(row, WorkersStarted) and row.loader == loader for row in rank.loader_workers) > 1
        of_loader = [snapshot for snapshot in snapshots if snapshot.loader == loader]
        life = max(lives, key=lambda life: sum(_bytes(snapshot) for snapshot in _last_of_each(of_loader, life)))
        of_life = [snapshot for snapshot in of_loader if snapshot.life == life.started.life]
        named = [
            finding
            for name in dict.fromkeys((row.owner, row.written) for snapshot in of_life for row in snapshot.grown)
            if (finding := _named(rank.number, life, _lines(of_life, name), name, min_per_step, again)) is not None
        ]
        found += named
        longest = max(lives, key=lambda life: life.reads[-1].step - life.reads[0].step)
        unnamed = _unnamed(rank.number, longest, sum(f.retained_bytes for f in named), min_per_step, again)
        found += [] if unnamed is None else [unnamed]
    return found


def _last_of_each(snapshots: Iterable[WorkerSnapshot], life: Life) -> Iterable[WorkerSnapshot]:
    return {snapshot.worker: snapshot for snapshot in snapshots if snapshot.life == life.started.life}.values()


def _bytes(snapshot: WorkerSnapshot) -> int:
    return sum(row.bytes for row in snapshot.grown)


def _lines(snapshots: Sequence[WorkerSnapshot], name: tuple[str, str]) -> list[_WorkerContainer]:
    """The container in each worker in which it keeps growing."""
    seen: dict[int, list[tuple[int, GrowingInWorker]]] = {}
    for snapshot in snapshots:
        for row in snapshot.grown:
            if (row.owner, row.written) == name:
                seen.setdefault(snapshot.worker, []).append((snapshot.batches, row))
    lines = (_WorkerContainer(*map(tuple, zip(*each, strict=True))) for each in seen.values())
    last = {snapshot.worker: snapshot.batches for snapshot in snapshots}
    of_workers = zip(seen, lines, strict=True)
    return [line for worker, line in of_workers if line.continues and line.batches[-1] == last[worker]]


def _named(
    rank: int, life: Life, lines: Sequence[_WorkerContainer], name: tuple[str, str], min_per_step: int, again: bool
) -> Finding | None:
    """The container as a finding; None if it gains too little, or in no worker to the end."""
    if not lines:
        return None
    # a step takes one batch, from one of the workers
    per_step = sum(line.bytes_per_batch for line in lines) / life.started.workers
    if per_step < _NOTE_SHARE * min_per_step:
        return None
    row = max((line.rows[-1] for line in lines), key=lambda row: row.bytes)
    size = sum(line.bytes for line in lines)
    owner, written = name
    subject = f"{written} of {owner}" if written.startswith("self.") else written
    facts = WorkerGrowthFacts(
        dataset=life.started.dataset,
        workers=len(lines),
        name=subject,
        type=row.type,
        item=row.item,
        items=max(line.rows[-1].gained for line in lines),
        items_per_batch=sum(line.items_per_batch for line in lines) / len(lines),
        own_bytes=_own(life) if len(life.reads) > 1 else None,
        own_steps=_steps(life),
        gives_back=again,
    )
    trace = _trace(row)
    return Finding(
        rule=NAME,
        facts=facts,
        fingerprint=fingerprint((NAME, owner, written)),
        severity=_severity(per_step, min_per_step, again),
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=per_step,
        trace=trace,
        cut=Cut((CutReference(trace[0].reference, row.where, subject, trace=0),), size),
        sightings=(Sighting(rank, life.reads[-1].step, size),),
        subject=subject,
        noun="object",
    )


def _severity(per_step: float, min_per_step: int, again: bool) -> Severity:
    if per_step < min_per_step:
        return Severity.NOTE
    return Severity.AVOIDABLE if again else Severity.LEAK


def _own(life: Life) -> int:
    """Growth of what the workers have allocated themselves, over their lifetime."""
    first = {memory.worker: memory.anonymous for memory in life.reads[0].workers}
    last = life.reads[-1].workers
    return sum(memory.anonymous - first[memory.worker] for memory in last if memory.worker in first)


def _steps(life: Life) -> tuple[int, int]:
    return life.reads[0].step, life.reads[-1].step


def _trace(row: GrowingInWorker) -> tuple[Hop, ...]:
    """Its holder in the worker, as far as it was followed there."""
    inner = row.written.removeprefix("self.").removeprefix(f"{row.owner}.")
    kind, what = ObjectKind.INSTANCE, f"{row.owner}, in the worker's process"
    if row.written.startswith(f"{row.owner}."):
        kind, what = ObjectKind.CLASS, f"class {row.owner}"
    elif not row.written.startswith("self."):
        kind, what = ObjectKind.NAMESPACE, f"module {row.owner}"
    return (
        Hop(what, row.owner, kind, row.where, HopStatus.EXPECTED, f".{inner}", name=row.owner),
        Hop(f"{row.type}, {row.items:,} items", row.type, ObjectKind.CONTAINER, "", HopStatus.LEAKED, "[i]"),
        Hop(f"{row.gained:,} {row.item}", row.item, ObjectKind.NATIVE, "", HopStatus.LEAKED, ""),
    )


def _unnamed(rank: int, life: Life, named_bytes: int, min_per_step: int, again: bool) -> Finding | None:
    """Memory of the workers that grows to the end and that no container explains."""
    reads = [read for read in life.reads if len(read.workers) == life.started.workers]
    if not reads or reads[-1].step - reads[0].step < _STEPS:
        return None
    sizes = [(read.step, sum(memory.anonymous for memory in read.workers)) for read in reads]
    length = sizes[-1][0] - sizes[0][0]
    marks = [next(s for s in sizes if s[0] >= sizes[0][0] + length * part / _PARTS) for part in range(1, _PARTS)]
    marks.append(sizes[-1])
    rates = [(after[1] - before[1]) / max(after[0] - before[0], 1) for before, after in pairwise(marks)]
    grown, steps = marks[-1][1] - marks[0][1], marks[-1][0] - marks[0][0]
    if min(rates) < min_per_step or steps <= 0 or named_bytes >= _EXPLAINED_SHARE * grown:
        return None
    return Finding(
        rule=NAME,
        facts=WorkerGrowthFacts(
            dataset=life.started.dataset,
            workers=life.started.workers,
            own_bytes=_own(life),
            own_steps=_steps(life),
            gives_back=again,
        ),
        fingerprint=fingerprint((NAME, life.started.dataset)),
        severity=_severity(grown / steps, min_per_step, again),
        freed_by=FreedBy.PROGRAM,
        retained_bytes=grown,
        bytes_per_step=grown / steps,
        trace=(),
        cut=None,
        sightings=(Sighting(rank, reads[-1].step, grown),),
        noun="object",
    )


HELP = """\
# worker-growth

Memory of data loader workers that grows in their own processes.

## What it does

Reports containers that grow in the worker processes, found by inspecting a worker between two batches; and, without a
container, unique memory of the workers that grows throughout a longer run. If workers exit after each epoch, they
release the memory, and the finding is avoidable; otherwise it is a leak.

## Why is this bad?

A container of the dataset, of a class or of a module gains items in `__getitem__`, in a transform or in `collate_fn`,
separately in each worker.

The container of the main process stays empty. Four workers have four caches, none of which contains the items of the
others.

## Example

```python title="train.py"
import torch
from torch.utils.data import DataLoader, Dataset

import leakscope


class Images(Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 200

    def __getitem__(self, index):
        image = torch.full((128, 128), float(index))
        self.cache[index] = image
        return image.mean(dim=1)


net = torch.nn.Linear(128, 1)
with leakscope.Profiler(budget=1.0) as profiler:
    for batch in DataLoader(Images(), batch_size=10, num_workers=2):
        with profiler.step():
            net(batch).square().mean().backward()
print(profiler.findings)
```

```console
$ python train.py
```

## Use instead

Evict unused entries, set a bound, or share one cache between the workers.

```diff title="train.py"
         image = torch.full((128, 128), float(index))
-        self.cache[index] = image
         return image.mean(dim=1)
```

```console
$ python train.py
```

Other fixes:

- Use `functools.lru_cache` with a `maxsize`, or a `deque` with a `maxlen`: bounded containers are not reported.
- Share one cache: a folder of prepared files, or a tensor in shared memory (`share_memory_()`).
- `persistent_workers=False` releases the memory after each epoch, at the cost of restarting the workers.

## References

- [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading): multi-process data
  loading.
"""
RULE = Rule(RuleName.WORKER_GROWTH, HELP, may_fill=True)
