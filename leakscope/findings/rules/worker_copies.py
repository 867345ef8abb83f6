"""Python objects that every worker of a data loader copies as it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.findings.facts import Facts, FreedBy, RuleName, Severity
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.naming import fingerprint
from leakscope.findings.rules.rule import Rule
from leakscope.findings.workers import Life, lives_of, named
from leakscope.run.model import Rank
from leakscope.run.rows import SharedObjects, WorkersRead
from leakscope.units import bytes_text

NAME = RuleName.WORKER_COPIES
_MIN_COPIED_FACTOR = 64
"""Minimum bytes copied by all workers together, as a multiple of `--min-bytes`: 4 MiB by default. Heuristic."""
_CONSTANT_SHARE = 0.02
"""Share of what was copied below which later copying counts as none. Heuristic."""


@dataclass(frozen=True)
class CopiesFacts(Facts):
    """A container of the parent whose objects the workers copied."""

    name: str
    """`self.samples of Images`."""
    type: str
    item: str
    items: int
    bytes: int
    """Bytes of the pages of its objects, in the parent."""
    where: str
    dataset: str
    workers: int
    copied: int
    """Bytes of those pages that all workers together have copied, according to the kernel."""
    until: int | None
    """The step after which almost nothing was copied; None if copying continued to the last sample."""
    gives_back: bool
    """Whether workers end with each epoch and copy it again in the next one."""

    def title_for(self, _: Finding) -> str:
        """The copied container and its bytes."""
        what = f"{self.type} of {self.items:,} {self.item}".rstrip()
        many = f"each of {self.workers} workers on access" if self.workers > 1 else "the worker on access"
        size, copied = bytes_text(self.bytes), bytes_text(self.copied)
        return f"`{self.name}`, {what}, {size}, is copied into {many}: {copied} so far"

    def advice_for(self, _: Finding) -> str:
        """How to store the data instead."""
        ended = f" (until step {self.until})" if self.until is not None else ""
        again = ". Restarted workers copy it again" if self.gives_back else ""
        at = f" (set at {self.where})" if self.where else ""
        return (
            f"Reading a Python object changes its reference count, which copies its memory page{ended}{again}. Store "
            f"the data{at} in one block without reference counts: a numpy array (fixed-length bytes `S`, or all "
            "strings joined in one array of bytes with an array of offsets), a torch tensor, or an Arrow table "
            "(datasets.Dataset, pyarrow)."
        )


def copies_findings(rank: Rank, min_growth: int) -> list[Finding]:
    """One finding for each container that the workers of a loader have copied."""
    found = []
    for lives in lives_of(rank).values():
        shared = {named(each): each for life in lives for each in life.started.shared}
        for name, copies in shared.items():
            life, sizes = max(((life, _copied(life, name)) for life in lives), key=lambda each: max(each[1], default=0))
            if max(sizes, default=0) >= _MIN_COPIED_FACTOR * min_growth:
                found.append(_finding(rank.number, copies, life, sizes, len(lives)))
    return found


def _copied(life: Life, name: str) -> list[int]:
    """Bytes of the container copied by all workers together, at each sample."""
    place = next((k for k, each in enumerate(life.started.shared) if named(each) == name), None)
    return [] if place is None else [_of_reading(read, place) for read in life.reads]


def _of_reading(read: WorkersRead, place: int) -> int:
    return sum(memory.copied[place] for memory in read.workers if place < len(memory.copied))


def _finding(rank: int, shared: SharedObjects, life: Life, sizes: Sequence[int], lives: int) -> Finding:
    most = max(sizes)
    rest = next(k for k, size in enumerate(sizes) if size >= (1 - _CONSTANT_SHARE) * most)
    facts = CopiesFacts(
        name=named(shared),
        type=shared.type,
        item=shared.item,
        items=shared.items,
        bytes=shared.bytes,
        where=shared.where,
        dataset=life.started.dataset,
        workers=life.started.workers,
        copied=most,
        until=life.reads[rest].step if rest < len(sizes) - 1 else None,
        gives_back=lives > 1,
    )
    steps = [read.step for read in life.reads]
    return Finding(
        rule=NAME,
        facts=facts,
        fingerprint=fingerprint((NAME, shared.owner, shared.written)),
        severity=Severity.AVOIDABLE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=most,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        sightings=tuple(Sighting(rank, s, b) for s, b in dict(zip(steps, sizes, strict=True)).items() if b),
        subject=facts.name,
        noun="object",
    )


HELP = """\
# worker-copies

Python objects that each data loader worker copies on access.

## What it does

Reports large lists, dicts and sets of a dataset and of the modules of the script that forked workers copy. The bytes
are those of the copied pages according to the kernel. The growth ends when all objects have been read. The finding is
avoidable memory, not a leak, and does not change the exit status.

## Why is this bad?

A forked worker shares the memory of the parent process until it writes to it. Reading a Python object changes its
reference count, which copies the whole memory page.

After an epoch each worker has a copy of the dataset ([pytorch#13246](https://github.com/pytorch/pytorch/issues/13246)).
With many workers, memory can run out in the middle of an epoch although nothing leaks.

## Example

```python title="train.py"
import torch
from torch.utils.data import DataLoader, Dataset

import leakscope


class Users(Dataset):
    def __init__(self):
        self.ids = [10**6 + number for number in range(400_000)]

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor([float(user) for user in self.ids[20_000 * index :][:20_000]])


net = torch.nn.Linear(1, 1)
with leakscope.Profiler(budget=1.0) as profiler:
    for batch in DataLoader(Users(), batch_size=None, num_workers=2):
        with profiler.step():
            net(batch[:, None]).square().mean().backward()
print(profiler.findings)
for finding in profiler.findings.findings:
    print([finding.rule.value], finding.subject, finding.retained_bytes > 8 * 2**20)
```

```console
$ python train.py
```

## Use instead

Store the data in one block without reference counts: a numpy array, a torch tensor, an Arrow table.

```diff title="train.py"
     def __init__(self):
-        self.ids = [10**6 + number for number in range(400_000)]
+        self.ids = torch.arange(10**6, 10**6 + 400_000)
```

```console
$ python train.py
```

Other fixes:

- For strings of different lengths, use one array of joined bytes and an array of offsets.
- `datasets.Dataset` and `pyarrow.Table` store their data in Arrow blocks; do not convert them to lists.
- A numpy array of `dtype=object` has items with reference counts, like a list.
- A full collection in a worker writes to every object that gc tracks. `gc.collect()` and `gc.freeze()` in the parent
  before the loader keep those pages shared; the section "Loader workers" of `leakscope report --verbose` lists them as
  copies of other memory of the parent process.
- With `spawn` or `forkserver` each worker has its own dataset from the start.

## References

- [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading): multi-process data
  loading.
- [pytorch#13246](https://github.com/pytorch/pytorch/issues/13246): DataLoader memory usage keeps growing.
"""
RULE = Rule(RuleName.WORKER_COPIES, HELP)
