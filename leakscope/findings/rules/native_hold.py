"""Storage alive that no Python object and no autograd path explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, FreedBy, RuleName, Severity
from leakscope.findings.growth import series
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.naming import fingerprint
from leakscope.findings.oom import DeviceSnapshot, device_snapshots
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import REACHABLE, ObjectKind, RootKind
from leakscope.run.model import HeapSnapshot, Rank
from leakscope.units import bytes_text

_KINDS = (ObjectKind.TENSOR, ObjectKind.PARAMETER, ObjectKind.STORAGE, ObjectKind.GRAD_NODE)


@dataclass(frozen=True)
class NativeFacts(Facts):
    """Memory that only native code holds."""

    label: str
    unexplained: int
    """References to it that were found neither in Python nor in autograd."""

    def title_for(self, _: Finding) -> str:
        """The object without a known referrer."""
        return f"{self.label} is referenced only by a running call or native code"

    def advice_for(self, _: Finding) -> str:
        """Where to search for its referrer."""
        count = self.unexplained
        return (
            f"{count} reference{'s' if count != 1 else ''} to it cannot be resolved in Python or autograd. Check "
            "handles of asynchronous operations without wait(), an autocast region that never exits, and C++ "
            "extensions with a cache."
        )


@dataclass(frozen=True)
class UnattributedFacts(Facts):
    """Counted memory that outgrows what storages explain."""

    SUMMED = ("per_step", "grown")

    per_step: float
    """Bytes per step."""
    grown: int
    """Total bytes."""
    is_steady: bool
    shapes_are_new: bool
    """Whether shapes were new in many of the steps, or each snapshot has new ones; on the host."""
    on_host: bool
    shapes: int = 0
    """Number of distinct input shapes so far; 0 if not recorded."""
    full_at_step: int = 0
    """The step at which the caches of oneDNN and ideep are full at that rate; 0 if unknown."""
    came_too: tuple[tuple[str, int], ...] = ()
    """(class, instances per step) of objects that became more at each snapshot, the most first: they may hold the
    memory in C++.
    """

    def title_for(self, _: Finding) -> str:
        """Growth of memory that belongs to no tensor."""
        how = f" by {bytes_text(self.per_step)} per step"
        if not self.is_steady:
            how = f" unsteadily, by {bytes_text(self.grown)} in total"
        shapes = ", with new shapes at each snapshot" if self.shapes_are_new else ""
        return f"Memory outside tensors grows{how}{shapes}"

    def advice_for(self, _: Finding) -> str:
        """Where to search for its referrer."""
        seen = f"; {self.shapes:,} so far, full by step {self.full_at_step:,}" if self.full_at_step else ""
        shapes = _FOR_EACH_SHAPE.format(seen) if self.shapes_are_new else ""
        check = _ON_HOST if self.on_host else "Check "
        came = " and ".join(f"{rate:,} {name}" for name, rate in self.came_too)
        beside = f"Each step adds {came}: check what retains them, and what they retain in C++. " if came else ""
        return (
            f"{beside}{shapes}{check}retained handles of asynchronous operations (Work of isend, irecv, "
            "all_reduce(async_op=True)), open distributed autograd contexts, an autocast region that never exits, and "
            "C++ extensions with a cache."
        )


@dataclass(frozen=True)
class NativeBlocksFacts(Facts):
    """Blocks of the allocator without a storage that grow at every snapshot."""

    SUMMED = ("per_step",)

    per_step: float
    """Bytes per step."""
    made_at: tuple[str, ...]
    """Allocation sites of what grew, the largest first."""

    def title_for(self, _: Finding) -> str:
        """Growth of device memory without a known referrer."""
        return f"Device memory without a Python or autograd referrer grows by {bytes_text(self.per_step)} per step"

    def advice_for(self, _: Finding) -> str:
        """What can retain it."""
        return (
            f"These blocks were allocated at {self.made_at[0] if self.made_at else 'an unknown line'} and are retained "
            "by native code. Check retained handles of asynchronous operations, an autocast region that never exits, "
            "captured graphs, and C++ extensions with a cache."
        )


_FOR_EACH_SHAPE = (
    "oneDNN and ideep cache kernels for each new shape, up to ONEDNN_PRIMITIVE_CACHE_CAPACITY and LRU_CACHE_CAPACITY "
    "(default 1024){}: run with fixed shapes, or set both to 1, to find out whether anything else grows. "
)


_ON_HOST = (
    "First check objects that grow as a whole: a string that becomes longer in each step (log += ...), a list that is "
    "rebuilt from all items, pyarrow tables, objects of C extensions. Then check "
)


def _applies(candidate: Candidate) -> bool:
    start = candidate.objects[0]
    return candidate.group.freed == REACHABLE and start.root == RootKind.NATIVE and start.kind in _KINDS


def _facts(candidate: Candidate, _cut: ToCut) -> NativeFacts:
    return NativeFacts(candidate.objects[0].label, candidate.objects[0].unexplained)


_MAX_SITES = 6
"""Maximum allocation sites reported for native blocks. Heuristic."""


def native_findings(rank: Rank, snapshots: Sequence[HeapSnapshot], min_per_step: int) -> list[Finding] | None:
    """A native-hold finding if blocks without a storage grow at every snapshot; None if none were joined.

    Blocks joined by address need no estimate of a gap.
    """
    joined = [
        found
        for found in device_snapshots(rank)
        if (found.step, found.occasion) in {(k.step, k.occasion) for k in snapshots}
    ]
    if not joined:
        return None
    steps = sorted({found.step for found in joined})
    at = {step: [found for found in joined if found.step == step] for step in steps}
    line = series(steps, {step: sum(found.native for found in at[step]) for step in steps})
    if not line.grew_lately or not line.is_leak(min_per_step):
        return []
    before, after = _of_sites(at[steps[0]]), _of_sites(at[steps[-1]])
    grown = sorted(((after[where] - before.get(where, 0), where) for where in after), reverse=True)
    made_at = tuple(where for more, where in grown if more > 0)[:_MAX_SITES]
    return [
        Finding(
            rule=RuleName.NATIVE_HOLD,
            facts=NativeBlocksFacts(line.per_step, made_at),
            fingerprint=fingerprint(("native-hold", "gap")),
            severity=Severity.LEAK,
            freed_by=FreedBy.PROGRAM,
            retained_bytes=line.bytes[-1] - line.bytes[0],
            bytes_per_step=line.per_step,
            trace=(),
            cut=None,
            made_at=made_at,
            sightings=tuple(
                Sighting(rank.number, s, b - line.bytes[0]) for s, b in zip(line.steps, line.bytes, strict=True)
            ),
        )
    ]


def _of_sites(snapshots: Sequence[DeviceSnapshot]) -> dict[str, int]:
    total: dict[str, int] = {}
    for snapshot in snapshots:
        for site in snapshot.sites:
            total[site.where] = total.get(site.where, 0) + site.bytes
    return total


HELP = """\
# native-hold

Tensor memory that only native code references.

## What it does

Reports storages that are alive without a reference from a Python object or an autograd node: C++ code of torch, a
backend or an extension references them. The report has the shape of the tensor, its allocation site and the number of
unresolved references, but no cut.

Growth of allocated memory that belongs to no storage is reported by the same rule: `Memory outside tensors grows`.

## Why is this bad?

No reference of Python or autograd leads to the memory: a running call or C++ code references it.

## Example

```python title="train.py"
import torch
import leakscope

net = torch.nn.Linear(256, 256)
pending = []


def train_step():
    result = torch.futures.Future()
    result.set_result(net(torch.randn(64, 256)).detach())
    pending.append(result)


print(leakscope.check(train_step, repeats=3))
```

```console
$ python train.py
```

A future of torch stores its value in C++, invisible to gc, so the list `pending` leads to nine futures and no further.
leakscope counts the references to each tensor and finds one that it cannot resolve.

## Use instead

Check the allocation site and what it passes to native code: caches, autocast, Work handles.

```diff title="train.py"
     result.set_result(net(torch.randn(64, 256)).detach())
     pending.append(result)
+    while pending:
+        pending.pop().wait()
```

```console
$ python train.py
```

Other fixes:

- `torch.autocast` that is entered and never exited retains a copy of each weight in its cache: use `with
  torch.autocast(...):`, or call `torch.clear_autocast_cache()`.
- Wait for the Work handles of `isend`, `irecv` and `all_reduce(async_op=True)`, and drop them. `leakscope run` reports
  them as [p2p-buffer](p2p-buffer.md).
- An extension can call `Py_INCREF` too often: compare with a run without it.

## References

- [Autocast](https://docs.pytorch.org/docs/stable/amp.html): `torch.autocast` and its cache of weights.
"""
RULE = Rule(
    RuleName.NATIVE_HOLD,
    HELP,
    Match(90, _applies, _facts),
    is_native=True,
    why_no_cut="unknown, because the referrer is unknown",
)
