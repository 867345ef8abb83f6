"""Memory that the allocator keeps beyond what is in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from leakscope.findings.facts import Facts, FreedBy, RuleName, Severity
from leakscope.findings.growth import series
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.naming import fingerprint
from leakscope.findings.oom import DeviceSnapshot, caught, device_snapshots
from leakscope.findings.rules.rule import Rule
from leakscope.run.model import HeapSnapshot, Rank
from leakscope.run.rows import DeviceFigures
from leakscope.units import bytes_text

NAME = RuleName.ALLOCATOR
_MIN_ABOVE, _ABOVE_SHARE = 256 << 20, 0.25
_MIN_PENDING, _PENDING_SHARE = 1 << 20, 0.02
_MIN_OUTSIDE = 64 << 20
"""Minimum growth outside the allocator to be reported. Heuristic."""
_TWICE = 2
"""Minimum number of snapshots or steps for a report: one may be chance."""

Counted = Sequence[tuple[int, DeviceFigures]]
"""One device's counters, each with the step at whose end they were read."""


@dataclass(frozen=True)
class ReservedFacts(Facts):
    """A device whose allocator has reserved far more than was ever in use, in bytes."""

    device: int
    reserved: int
    most: int
    """The maximum in use."""
    private: int
    """Reserved by private pools."""

    def title_for(self, _: Finding) -> str:
        """The reserved bytes and the most bytes in use."""
        reserved, most = bytes_text(self.reserved), bytes_text(self.most)
        return f"Device {self.device} has {reserved} reserved, but at most {most} in use"

    def advice_for(self, _: Finding) -> str:
        """How to reduce fragmentation."""
        private = f" Private pools have {bytes_text(self.private)} of it." if self.private else ""
        return (
            "Changing block sizes fragment the memory: set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or pad "
            f"inputs to a few sizes.{private}"
        )


@dataclass(frozen=True)
class PendingFacts(Facts):
    """Dead tensors in use by another stream, snapshot after snapshot."""

    device: int
    bytes: int

    def title_for(self, _: Finding) -> str:
        """The freed bytes that are pending."""
        return f"{bytes_text(self.bytes)} of freed tensors on device {self.device} are pending on another stream"

    def advice_for(self, _: Finding) -> str:
        """When the memory is released."""
        return (
            "Memory of a tensor used on another stream (`record_stream`, asynchronous collectives) is released only "
            "after that stream has passed its use: wait for the Work handles, or drop the tensor after synchronizing."
        )


@dataclass(frozen=True)
class OutsideFacts(Facts):
    """Growing device memory that torch has not reserved."""

    device: int
    per_step: float
    """Bytes per step."""

    def title_for(self, _: Finding) -> str:
        """Growth of memory that torch has not reserved."""
        return (
            f"Memory of device {self.device} outside the torch allocator grows by {bytes_text(self.per_step)} per step"
        )

    def advice_for(self, _: Finding) -> str:
        """What can use it."""
        return (
            "Memory snapshots do not contain it: communicators and their buffers, library handles and workspaces, "
            "captured graphs, or another process on the same device, which is counted as well."
        )


@dataclass(frozen=True)
class RetriesFacts(Facts):
    """The allocator had to free its cache and ask the driver again."""

    device: int
    times: int
    steps: int
    """Number of steps in which it happened."""

    def title_for(self, _: Finding) -> str:
        """Title: how often the device was full."""
        full = f"Device {self.device} was full {self.times} times, in {self.steps} steps"
        return f"{full}: the allocator released its cache and retried"

    def advice_for(self, _: Finding) -> str:
        """Advice: the cost."""
        return "Each retry synchronizes the device. Fix the findings above, or use a smaller batch."


@dataclass(frozen=True)
class CaughtFacts(Facts):
    """Allocations failed and the script continued."""

    times: int
    largest_bytes: int
    """The largest request."""

    def title_for(self, _: Finding) -> str:
        """How often an out-of-memory error was caught."""
        times = "once" if self.times == 1 else f"{self.times} times"
        largest = f"the largest request was {bytes_text(self.largest_bytes)}"
        return f"Device memory ran out {times} and the script continued; {largest}"

    def advice_for(self, _: Finding) -> str:
        """What can have caught it."""
        return (
            "The error was caught by the script, for example to use a smaller batch, or by a library that tries "
            "several algorithms. This is not a failure by itself."
        )


def allocator_findings(rank: Rank, snapshots: Sequence[HeapSnapshot]) -> list[Finding]:
    """Notes on one rank's devices, from the counters of each step and from the snapshots."""
    rows = rank.device_steps
    at = {(snapshot.step, snapshot.occasion) for snapshot in snapshots}
    joined = [found for found in device_snapshots(rank) if (found.step, found.occasion) in at]
    devices = sorted({figures.device for row in rows for figures in row.devices} | {found.device for found in joined})
    found_notes: list[Finding] = []
    for device in devices:
        counted = [(row.step, figures) for row in rows for figures in row.devices if figures.device == device]
        mine = [found for found in joined if found.device == device]
        found_notes += [
            *_above(rank, device, counted, mine),
            *_pending(rank, device, mine),
            *_outside(rank, device, mine),
        ]
        found_notes += _retries(rank, device, counted)
    return found_notes + _passed_by(rank)


def _above(rank: Rank, device: int, counted: Counted, snapshots: Sequence[DeviceSnapshot]) -> list[Finding]:
    """Reserved far above the maximum in use: what the end of a step leaves free is needed again, this never was."""
    if not counted:
        return []
    step, last = counted[-1]
    most = max(max(figures.peak, figures.active) for _, figures in counted)
    over = last.reserved - most
    if over < max(_MIN_ABOVE, _ABOVE_SHARE * last.reserved):
        return []
    facts = ReservedFacts(device, last.reserved, most, snapshots[-1].private if snapshots else 0)
    return [_note("reserved", rank, facts, over, ((step, over),))]


def _pending(rank: Rank, device: int, snapshots: Sequence[DeviceSnapshot]) -> list[Finding]:
    """Dead tensors kept by another stream, snapshot after snapshot."""
    seen = [(k.step, k.pending) for k in snapshots if k.pending >= max(_MIN_PENDING, _PENDING_SHARE * k.reserved)]
    if len(seen) < _TWICE or seen[-1][0] != snapshots[-1].step:
        return []
    made_at = tuple(site.where for site in snapshots[-1].pending_sites)
    return [_note("pending", rank, PendingFacts(device, seen[-1][1]), seen[-1][1], seen, made_at=made_at)]


def _outside(rank: Rank, device: int, snapshots: Sequence[DeviceSnapshot]) -> list[Finding]:
    """Growing device memory that torch has not reserved."""
    known = [k for k in snapshots if k.outside is not None]
    line = series([k.step for k in known], {k.step: k.outside or 0 for k in known})
    if not line.grew_lately or line.total < _MIN_OUTSIDE:
        return []
    seen = [(step, size - line.bytes[0]) for step, size in zip(line.steps, line.bytes, strict=True)]
    return [_note("outside", rank, OutsideFacts(device, line.per_step), seen[-1][1], seen, line.per_step)]


def _retries(rank: Rank, device: int, counted: Counted) -> list[Finding]:
    """The cache was freed and memory requested anew, which synchronizes the device each time."""
    steps = sum(1 for (_, a), (_, b) in pairwise(counted) if b.retries > a.retries)
    if steps < _TWICE or not counted[-1][1].retries:
        return []
    step, last = counted[-1]
    facts = RetriesFacts(device, last.retries, steps)
    return [_note("retries", rank, facts, last.reserved, ((step, last.reserved),))]


def _passed_by(rank: Rank) -> list[Finding]:
    rows = caught(rank)
    if not rows:
        return []
    places = tuple(dict.fromkeys(row.at for row in rows if row.at))
    facts = CaughtFacts(len(rows), max(row.wanted_bytes for row in rows))
    return [_note("caught", rank, facts, 0, [(row.step, row.wanted_bytes) for row in rows], made_at=places)]


def _note(
    what: str, rank: Rank, facts: Facts, size: int, seen: Sequence[tuple[int, int]], per_step: float = 0.0,
    made_at: tuple[str, ...] = (),
) -> Finding:  # fmt: skip
    return Finding(
        rule=NAME,
        facts=facts,
        fingerprint=fingerprint((NAME, what)),
        severity=Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=size,
        bytes_per_step=per_step,
        trace=(),
        cut=None,
        made_at=made_at,
        sightings=tuple(Sighting(rank.number, step, bytes_there) for step, bytes_there in seen),
    )


HELP = """\
# allocator

Memory that the allocator reserves but does not use.

## What it does

Reports for an accelerator (CUDA, ROCm, XPU, NPU): far more reserved memory than was ever in use, freed tensors that are
pending on another stream, device memory that grows outside torch, repeated releases of the cache, and out-of-memory
errors that the script caught. These are notes without a cut that do not affect the verdict.

## Why is this bad?

The allocator reserves more memory than the tensors use.

It caches freed memory in segments, and requests a new segment from the driver if no free block is large enough. Tensors
that become longer over time never fit into the blocks of shorter ones.

## Example

**Needs an accelerator.** The tests run both examples on a simulated device in host memory whose allocator follows the
rules of CUDA. The output is from such a run, with the name of the device replaced, and not from a GPU.

```python title="train.py"
import torch

net = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)


def loss_of(length):
    batch = torch.ones(length, 64, device="cuda")
    return net(batch).square().mean()


for length in range(100_000, 160_000, 5_000):
    loss_of(length).backward()
    optimizer.step()
    optimizer.zero_grad()
```

```text
$ leakscope run --no-lifetimes train.py
```

## Use instead

Check the sizes of allocations and the settings of the allocator.

```diff title="train.py"
-    batch = torch.ones(length, 64, device="cuda")
+    batch = torch.zeros(160_000, 64, device="cuda")
+    batch[:length] = 1
```

```text
$ leakscope run --no-lifetimes -o mended train.py
```

With one padded length, each batch fits into the blocks of the previous one.

Other fixes:

- `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` uses segments that grow in place.
- If one length wastes too much, pad to a few lengths, and run one step with the largest before training.
- `torch.cuda.empty_cache()` returns free segments to the driver. It frees no tensor, and makes the next step slower.
- `tensor.record_stream(stream)` makes the allocator wait for that stream before it reuses the block.

## References

- [CUDA memory management](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management):
  `PYTORCH_CUDA_ALLOC_CONF`.
"""
RULE = Rule(RuleName.ALLOCATOR, HELP, level="note")
