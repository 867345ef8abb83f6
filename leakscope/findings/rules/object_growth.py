"""Python objects that are no tensors (strings, records, lists of numbers) that a live root keeps gaining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.growth import Series
from leakscope.findings.judged import JudgedCandidate
from leakscope.findings.model import Finding
from leakscope.findings.nontensor import counted_of, row_of
from leakscope.findings.rules.hook_pileup import collects_hooks, facts_of_objects
from leakscope.findings.rules.rule import Rule
from leakscope.findings.rules.step_growth import end_text
from leakscope.graph.model import ObjectKind
from leakscope.run.model import HeapSnapshot
from leakscope.units import bytes_text


class Collects(StrEnum):
    """The kind of thing that gains objects, which decides the advice."""

    LIST = "list"
    DICT = "dict"
    SET = "set"
    QUEUE = "queue"
    """A deque."""
    CHAIN = "chain"
    """No container: each object holds, or is held by, the previous one."""
    ATTRIBUTES = "attributes"
    """Attributes of an object or module, under ever new names."""


@dataclass(frozen=True)
class ObjectFacts(Facts):
    """Something reachable that gains non-tensor objects."""

    SUMMED = ("items", "items_per_step")

    item: str
    """Type of most of the newest: `str`, `dict of str and float`."""
    items: int
    """Number gained over all snapshots."""
    items_per_step: float
    collects: Collects
    containers: int = 1
    """Number of containers of the kind, if each gains."""
    pauses: bool = False
    """Whether it did not grow at each snapshot."""

    def title_for(self, finding: Finding) -> str:
        """`history in main() gains 1 str per step, 600.00 KiB per step, and is never emptied`."""
        end = end_text(finding)
        pace = f"{bytes_text(finding.bytes_per_step)} per step{end if end.startswith(',') else f',{end}'}"
        return f"{finding.subject} gains {_gained_text(self)}, {pace}"

    def advice_for(self, finding: Finding) -> str:
        """How to release them, by the kind of container."""
        held = finding.subject
        return {
            Collects.LIST: f"Write the items of {held} to a file, keep a summary (a count, a mean), or set a bound "
            "(collections.deque(maxlen=...)).",
            Collects.DICT: f"Each step adds a new key to {held}: remove entries after their last use, write them to a "
            "file, or set a bound.",
            Collects.SET: f"Each step adds a new item to {held}: remove items after their last use, or keep a count.",
            Collects.QUEUE: f"The producer of {held} is faster than its consumer: set a bound (maxlen=...), or write "
            "the "
            "items to a file.",
            Collects.CHAIN: f"Each {self.item} is referenced by the next one: store a number or a name instead of the "
            f"object, or limit the length of the chain in {held}.",
            Collects.ATTRIBUTES: f"Each step adds new attribute names to {held}: reuse names, or delete attributes "
            "after their last use.",
        }[self.collects]


_WHOLE_ITEMS = 10
"""Items per step from which on they are shown without a fraction."""


def _gained_text(facts: ObjectFacts) -> str:
    """`12 str per step`, `attributes (1 str per step)`."""
    rate = facts.items_per_step
    count = f"{rate:,.0f}" if rate >= _WHOLE_ITEMS or rate == round(rate) else f"{rate:.1f}"
    gained = f"{count} {facts.item} per step"
    if facts.collects == Collects.CHAIN:
        return f"{gained} in a chain"
    return f"attributes ({gained})" if facts.collects == Collects.ATTRIBUTES else gained


def make_of_objects(one: JudgedCandidate, snapshots: Sequence[HeapSnapshot]) -> None:
    """Change what the rules for tensors made of a candidate of objects; `snapshots` are its snapshots."""
    candidate = one.candidate
    by_step = {snapshot.step: snapshot for snapshot in snapshots}
    gained = {step: _gained(by_step[step], storages) for step, storages in candidate.storages_at.items()}
    last = by_step[candidate.step]
    rows = [row_of(last, storage) for storage in candidate.group.storages]
    facts = ObjectFacts(
        item=max(rows, key=lambda row: row.bytes).item,
        items=gained[candidate.step],
        items_per_step=_per_step(candidate.series, gained),
        collects=_collects(candidate),
        containers=len(rows),
        pauses=candidate.series.has_pauses,
    )
    hooks = collects_hooks(candidate)
    one.rule = RuleName.HOOK_PILEUP if hooks else RuleName.OBJECT_GROWTH
    one.facts = facts_of_objects(candidate, facts.item) if hooks else facts
    one.noun = "object"
    one.trace = (*one.trace[:-1], replace(one.trace[-1], kind=ObjectKind.NATIVE))
    one.earlier_bytes = {step: _earlier(by_step[step], storages) for step, storages in candidate.storages_at.items()}
    of_last = one.earlier_bytes[candidate.step]
    one.cut = one.cut and replace(one.cut, frees_bytes=one.cut.frees_bytes + of_last)


def counted_series(candidate: Candidate, snapshots: Sequence[HeapSnapshot]) -> tuple[int, ...]:
    """The candidate's bytes at each snapshot, as `counted_of` returns them."""
    at = candidate.storages_at
    return tuple(
        sum(counted_of(snapshot, row_of(snapshot, s)) for s in at.get(snapshot.step, ())) for snapshot in snapshots
    )


def _gained(snapshot: HeapSnapshot, storages: Sequence[int]) -> int:
    return sum(row_of(snapshot, storage).gained for storage in storages)


def _earlier(snapshot: HeapSnapshot, storages: Sequence[int]) -> int:
    """Bytes of what the containers had when first seen: not part of the growth, but freed by a cut."""
    return sum(row_of(snapshot, storage).earlier_bytes for storage in storages)


def _per_step(line: Series, gained: Mapping[int, int]) -> float:
    """Items per step between the first and the last snapshot; one before the first that has it saw no growth."""
    first, last = line.steps[0], line.steps[-1]
    return (gained.get(last, 0) - gained.get(first, 0)) / (last - first) if last > first else 0.0


def _collects(candidate: Candidate) -> Collects:
    holder = candidate.objects[-2]
    if holder.kind != ObjectKind.CONTAINER:
        linked = holder.type.rpartition(".")[2] == candidate.objects[-1].type
        return Collects.CHAIN if linked else Collects.ATTRIBUTES
    kind = holder.type.lower()
    if "deque" in kind:
        return Collects.QUEUE
    return Collects.DICT if "dict" in kind else Collects.SET if "set" in kind else Collects.LIST


HELP = """\
# object-growth

A live container that gains Python objects other than tensors each step.

## What it does

Reports live containers that gain strings, numbers, dicts or records at each heap snapshot, with their type, the number
per step and the container.

## Why is this bad?

A live container gains objects other than tensors in every step: strings, records, lists.

4096 floats take 16 KiB in a tensor and 128 KiB in a list: 24 bytes for each float object and 8 for its reference. This
is host memory, which jobs that monitor only the device do not notice.

## Example

```python title="train.py"
import torch
import leakscope

net = torch.nn.Linear(256, 256)
records = []


def train_step():
    losses = net(torch.randn(4096, 256)).square().mean(dim=1)
    losses.sum().backward()
    records.append({"losses": losses.tolist()})


print(leakscope.check(train_step, repeats=3))
```

```console
$ python train.py
```

## Use instead

Bound it, clear it, or write the items to disk.

```diff title="train.py"
     losses.sum().backward()
-    records.append({"losses": losses.tolist()})
+    with open("losses.csv", "a") as file:
+        print(*losses.tolist(), sep=",", file=file)
```

```console
$ python train.py
```

Other fixes:

- Store a mean, a count or a histogram instead of all numbers.
- Use `array.array("f")` or a preallocated numpy array: 4 bytes per number.
- Handlers of a logger can retain records (`logging.handlers.MemoryHandler`, the output of a notebook, `tensorboard`
  before a flush).

## References

- [tracemalloc](https://docs.python.org/3/library/tracemalloc.html): which lines allocate Python objects.
"""
RULE = Rule(RuleName.OBJECT_GROWTH, HELP, may_fill=True)
