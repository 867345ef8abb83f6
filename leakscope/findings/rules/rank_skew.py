"""Memory that one rank keeps and its peers do not."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from leakscope.findings.candidates import Candidate, made_at
from leakscope.findings.categories import HOST, snapshots_after_steps
from leakscope.findings.facts import Facts, FreedBy, RuleName, Severity
from leakscope.findings.grouping import ReferenceKey, group_storages, is_model
from leakscope.findings.growth import Series
from leakscope.findings.model import Finding, RankSummary, Sighting
from leakscope.findings.naming import fingerprint
from leakscope.findings.rules.rule import Rule
from leakscope.findings.thresholds import Thresholds
from leakscope.run.model import HeapSnapshot, Rank, Run
from leakscope.units import bytes_text

NAME = RuleName.RANK_SKEW
Held = Mapping[int, Mapping[int, int] | None]
"""Rank, mapped to the result of `held_at_last`."""
_OWN = ("parameter", "gradient", "optimizer state", "buffer")
"""What a stage must hold: a stage with more layers may hold more."""
_MIN_PEERS_FACTOR = 1.5
"""Minimum multiple of its peers' share. Heuristic."""
_MIN_BYTES_OVER_PEERS = 16 << 20
"""Minimum bytes beyond its peers' share. Heuristic."""


@dataclass(frozen=True)
class RankSkewFacts(Facts):
    """One rank holds more beside its model than its peers do."""

    rank: int
    held_bytes: int
    expected_bytes: int
    """The share expected from its peers."""
    largest: str
    """The largest holder, as written in code; "" if nothing stands out."""

    def title_for(self, _: Finding) -> str:
        """The bytes of the rank, and the share of its peers."""
        largest = f", mostly in {self.largest}" if self.largest else ""
        return (
            f"Rank {self.rank} holds {bytes_text(self.held_bytes)} besides its model{largest}, compared with "
            f"{bytes_text(self.expected_bytes)} on its peers"
        )

    def advice_for(self, _: Finding) -> str:
        """Advice: what to compare."""
        return (
            f"Compare the categories of rank {self.rank} with those of a peer at the last snapshot. In a pipeline the "
            "first stages keep more microbatches in flight, and the last stage keeps logits, losses and metrics."
        )


def skew_findings(
    run: Run, summaries: Mapping[int, RankSummary], findings: Sequence[Finding], held: Held
) -> list[Finding]:
    """A note for each rank that holds far more beside its model than its peers do, each relative to its own model.

    `findings` are the others: bytes that they name are not skew. `held` is the result of `held_at_last` for each rank.
    Stages are compared at these snapshots, so this says where to look, not that anything grows; it is never a verdict.
    """
    excess = {
        number: _beside(summary, _named(number, findings))
        for number, summary in summaries.items()
        if summary.categories
    }
    if len(excess) <= 1:
        return []
    models = {number: max(_model(summaries[number]), 1) for number in excess}
    shares = sorted(excess[number] / models[number] for number in excess)
    peers = _Peers(held)
    skews = []
    for number, beside in sorted(excess.items()):
        expected = _median_of_others(shares, beside / models[number]) * models[number]
        over = int(beside - expected)
        threshold = max(_MIN_BYTES_OVER_PEERS, Thresholds(run.min_bytes).for_counters)
        if beside > _MIN_PEERS_FACTOR * expected and over >= threshold:
            skews.append(_finding(run, number, peers, over, beside, int(expected)))
    return skews


def held_at_last(rank: Rank) -> dict[int, int] | None:
    """Bytes of each reachable group at a rank's last snapshot, by a digest of its key, since ranks by the thousand are
    compared; None without a snapshot.
    """
    snapshot = _last_snapshot(rank)
    return None if snapshot is None else {_digest(g.key): g.bytes for g in group_storages(snapshot.heap) if not g.freed}


def _digest(key: ReferenceKey) -> int:
    return int.from_bytes(hashlib.blake2b("\n".join(key).encode(), digest_size=8).digest(), "big")


class _Peers:
    """What the ranks of a run hold at their last snapshots, by group."""

    def __init__(self, held: Held) -> None:
        self._held = [groups for groups in held.values() if groups is not None]
        self._sizes: dict[int, list[int]] = {}

    def usually(self, key: ReferenceKey, own: int) -> float:
        """The median of the bytes of all ranks but one in the group; `own` are those of that one."""
        name = _digest(key)
        if name not in self._sizes:
            self._sizes[name] = sorted(groups.get(name, 0) for groups in self._held)
        return _median_of_others(self._sizes[name], own)


def _median_of_others(ordered: Sequence[float], own: float) -> float:
    """The median of sorted values without one of them."""
    place = bisect_left(ordered, own)
    return median((*ordered[:place], *ordered[place + 1 :]))


def _holder(run: Run, rank: int, peers: _Peers) -> Finding | None:
    """The holder of most of what a rank holds and its peers do not, without the model."""
    from leakscope.findings.build import judge_candidate  # offers the group to all rules, including this one

    snapshot = next((_last_snapshot(r) for r in run.ranks if r.number == rank), None)
    if snapshot is None:
        return None
    groups = {
        group.key: group
        for group in group_storages(snapshot.heap)
        if not group.freed
        and not is_model(snapshot.heap, group)
        and (not snapshot.heap.device or any(s in snapshot.heap.device for s in group.storages))
    }
    over = {key: group.bytes - peers.usually(key, group.bytes) for key, group in groups.items()}
    most = max(over, key=lambda key: over[key], default=None)
    if most is None or over[most] <= 0:
        return None
    group = groups[most]
    made = made_at([(snapshot.heap, group.storages)])
    alone = Candidate(
        rank, snapshot.step, snapshot.heap, group, Series((snapshot.step,), (group.bytes,)), 0.0, False, made_at=made
    )
    return judge_candidate(alone, Thresholds(run.min_bytes)).finding


def _last_snapshot(rank: Rank) -> HeapSnapshot | None:
    snapshots = snapshots_after_steps(rank)
    return snapshots[-1] if snapshots else None


def _model(summary: RankSummary) -> int:
    return sum(summary.categories.get(name, 0) for name in _OWN)


def _beside(summary: RankSummary, named: int) -> int:
    """Bytes at the last snapshot that are not the stage's own model and that no other finding names."""
    everything = sum(size for name, size in summary.categories.items() if name not in (*_OWN, "leaked", HOST))
    leaked = summary.categories.get("leaked", 0)
    return max(everything + leaked - max(named, leaked), 0)


def _named(rank: int, findings: Sequence[Finding]) -> int:
    last = (
        max((s for s in f.sightings if s.rank == rank), key=lambda s: s.step, default=None)
        for f in findings
        if f.severity == Severity.LEAK
    )
    return sum(sighting.bytes for sighting in last if sighting is not None)


def _finding(run: Run, rank: int, peers: _Peers, over: int, held: int, expected: int) -> Finding:
    step = next(
        (snapshot.step for r in run.ranks if r.number == rank and (snapshot := _last_snapshot(r)) is not None), 0
    )
    holder = _holder(run, rank, peers)
    largest = (holder.cut.written or holder.cut.reference) if holder is not None and holder.cut is not None else ""
    return Finding(
        rule=NAME,
        facts=RankSkewFacts(rank, held, expected, largest),
        fingerprint=fingerprint((NAME,) if holder is None else (NAME, holder.fingerprint)),
        severity=Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=over,
        bytes_per_step=0.0,
        trace=() if holder is None else holder.trace,
        cut=None if holder is None else holder.cut,
        made_at=() if holder is None else holder.made_at,
        sightings=(Sighting(rank, step, over),),
        count=0 if holder is None else holder.count,
    )


HELP = """\
# rank-skew

One rank retains memory that its peers release.

## What it does

Reports a rank that holds at least 1.5 times as much memory as its peers, and at least 16 MiB more, besides its model.
It needs `leakscope run` with two or more ranks. The finding is a note and does not affect the verdict.

## Why is this bad?

The rank with the most memory limits the batch size of all ranks.

## Example

```python title="train.py"
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
net = torch.nn.Linear(256, 256)
batches = 8 if dist.get_rank() == 0 else 0
validation = [torch.randn(4096, 256) for _ in range(batches)]


def train_step():
    net(torch.randn(64, 256)).square().mean().backward()
    dist.all_reduce(net.weight.grad)


for _ in range(10):
    train_step()
losses = [net(batch).square().mean().item() for batch in validation]
dist.destroy_process_group()
```

```console
$ leakscope run --ranks 2 --step-function train_step train.py
```

Rank 0 often does additional work, such as logging, validation and checkpoints, which needs memory that the other ranks
leave unused.

## Use instead

Check what that rank does differently: its stage, its batches, its logging.

```diff title="train.py"
-batches = 8 if dist.get_rank() == 0 else 0
+batches = 8 // dist.get_world_size()
```

```console
$ leakscope run --ranks 2 --step-function train_step -o mended train.py
```

Other fixes:

- `DistributedSampler` distributes the batches of a dataset, also for validation.
- Saving a sharded model on rank 0 needs the whole state: gather it on the host
  (`StateDictOptions(full_state_dict=True, cpu_offload=True)`).
- Earlier stages of a pipeline keep more microbatches by their schedule, which is not a leak.

## References

- [Distributed checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html): `StateDictOptions`.
"""
RULE = Rule(RuleName.RANK_SKEW, HELP, level="note")
