"""Buffers of sends, receives and collectives that are kept past their step, by their Work or by whoever has the
tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.comm import CONTEXT, buffers_of, buffers_text, comm_buffers
from leakscope.findings.facts import CommBuffers, Facts, FreedBy, RuleName, Severity
from leakscope.findings.model import Finding, Sighting
from leakscope.findings.naming import fingerprint, function_of
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import REACHABLE, ReferenceKind, RootKind
from leakscope.run.model import Run
from leakscope.run.operations import column
from leakscope.run.rows import CommOperation

_BARRIERS = ("barrier", "monitored_barrier")
"""Collectives without a buffer: dropping their Work loses nothing."""
_SIGHTINGS_A_RANK = 20
"""Latest steps at which a rank dropped Works; earlier ones are only counted."""
_SHARE_THRESHOLD = 0.5
"""Minimum share of a group's bytes in buffers for the rule to apply. Heuristic."""


class BufferHolder(StrEnum):
    """What keeps the buffers."""

    WORK = "work"
    REGISTRY = "registry"
    """torch keeps the Works of functional collectives until they are waited for."""
    REGISTRY_AND_PROGRAM = "registry and program"
    """As REGISTRY, and the program holds the results too."""
    NATIVE = "native"
    PROGRAM = "program"


@dataclass(frozen=True)
class BufferFacts(Facts):
    """Buffers that are kept past their step."""

    SUMMED = ("buffers",)

    held_by: BufferHolder
    buffers: CommBuffers
    waited: bool
    """Whether all of their operations were waited for."""
    container: str
    """Type of the container that holds them; "" if there is none."""

    def title_for(self, finding: Finding) -> str:
        """The retained buffers and their referrer."""
        what = buffers_text(self.buffers)
        return {
            BufferHolder.WORK: f"{finding.subject} retains Work handles past their step, each with its buffer: {what}",
            BufferHolder.REGISTRY: f"Functional collectives without a wait retain their buffers: {what}",
            BufferHolder.REGISTRY_AND_PROGRAM: f"{finding.subject} retains results of functional collectives "
            f"without a wait: {what}",
            BufferHolder.NATIVE: f"Communication buffer referenced only by native code: {what}",
            BufferHolder.PROGRAM: f"{finding.subject} retains communication buffers past their step: {what}",
        }[self.held_by]

    def advice_for(self, finding: Finding) -> str:
        """When to drop the buffers, by their referrer."""
        cut = finding.subject
        if self.held_by == BufferHolder.WORK:
            wait = "" if self.waited else " after waiting for them"
            return (
                f"Drop the Work handles from {cut}{wait}, for example with {cut.partition(' in ')[0]}.clear() after "
                "the last wait() of the step: a Work references the tensor that it sends, receives or reduces as "
                "long as it is alive, even after wait()."
            )
        if self.held_by in (BufferHolder.REGISTRY, BufferHolder.REGISTRY_AND_PROGRAM):
            then = "" if self.held_by == BufferHolder.REGISTRY else f" Then remove it from {cut}."
            return (
                "Wait for each result (torch.distributed._functional_collectives.wait_tensor, or use the returned "
                "tensor), even if it is discarded: until then torch retains the Work, and the Work its tensors."
                f"{then}"
            )
        if self.held_by == BufferHolder.NATIVE:
            return (
                "Look for an operation that never completes, a Work kept by a future or a communication hook, or a C++ "
                "extension that caches the buffer."
            )
        take = "Remove each one" if self.container else "Drop each one"
        pop = " (pop() instead of an index)" if self.container == "list" else ""
        return (
            f"The send or receive is complete; {cut} retains these buffers. {take} when its microbatch is done{pop}, "
            "and store a gradient edge (torch.autograd.graph.get_gradient_edge) instead of a sent output."
        )


@dataclass(frozen=True)
class DroppedFacts(Facts):
    """Works of one line that died before a wait."""

    count: int
    direction: str
    issued_at: str

    def title_for(self, _: Finding) -> str:
        """Number of dropped Work handles, and where they were issued."""
        at = f" issued at {self.issued_at}" if self.issued_at else ""
        operations = f"{self.count} {self.direction} operation{'s' if self.count != 1 else ''}"
        return f"Work handles of {operations}{at} were dropped without wait()"

    def advice_for(self, _: Finding) -> str:
        """Why to keep a Work until wait()."""
        return (
            "Keep the Work until its wait() has returned, then drop it. Until then the transfer can be incomplete, and "
            "writing into a buffer being sent, or reading one being received, is undefined."
        )


def _by_work(candidate: Candidate) -> bool:
    """Whether a Work holds the first tensor on the way."""
    return any(r.kind == ReferenceKind.COMM for r in candidate.references[: candidate.tensor_at])


def _directly(candidate: Candidate) -> bool:
    """Whether most of it was sent or received directly, with no graph or hook between holder and buffers."""
    if any(
        r.kind in (ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED, ReferenceKind.HOOK) or r.name == "._base"
        for r in candidate.references
    ):
        return False
    buffers = buffers_of(candidate.graph, candidate.group.storages)
    size = sum(int(candidate.graph.bytes[s]) for s, use in buffers.items() if use.direction in ("send", "recv"))
    return size > _SHARE_THRESHOLD * candidate.group.bytes


def _held_natively(candidate: Candidate) -> bool:
    return candidate.objects[0].root == RootKind.NATIVE and candidate.tensor_at == 0


def _nobody_waited(candidate: Candidate) -> bool:
    """Whether most of it belongs to collectives that were never waited for."""
    waiting = [
        s
        for s, use in buffers_of(candidate.graph, candidate.group.storages).items()
        if use.direction not in (CONTEXT, "send", "recv") and not use.waited
    ]
    return sum(int(candidate.graph.bytes[s]) for s in waiting) > _SHARE_THRESHOLD * candidate.group.bytes


def _by_registry(candidate: Candidate) -> bool:
    return _held_natively(candidate) and _nobody_waited(candidate)


def _by_registry_too(candidate: Candidate) -> bool:
    return any(o.unexplained for o in candidate.objects[candidate.tensor_at :]) and _nobody_waited(candidate)


def _past_their_step(candidate: Candidate) -> bool:
    """Whether some was used in an earlier step than the snapshot's; a buffer created anew in each step
    is not retained.
    """
    return any(use.step < candidate.step for use in buffers_of(candidate.graph, candidate.group.storages).values())


def _applies(candidate: Candidate) -> bool:
    return (
        candidate.group.freed == REACHABLE
        and _past_their_step(candidate)
        and (_by_work(candidate) or _directly(candidate) or _by_registry(candidate) or _by_registry_too(candidate))
    )


def _held_by(candidate: Candidate) -> BufferHolder:
    if _by_work(candidate):
        return BufferHolder.WORK
    if _by_registry(candidate):
        return BufferHolder.REGISTRY
    if _by_registry_too(candidate):
        return BufferHolder.REGISTRY_AND_PROGRAM
    return BufferHolder.NATIVE if _held_natively(candidate) else BufferHolder.PROGRAM


def _facts(candidate: Candidate, _cut: ToCut) -> BufferFacts:
    graph, storages = candidate.graph, candidate.group.storages
    return BufferFacts(
        _held_by(candidate),
        comm_buffers(graph, storages),
        waited=all(use.waited for use in buffers_of(graph, storages).values()),
        container=candidate.container[1].type if candidate.container else "",
    )


def dropped_work_findings(run: Run) -> list[Finding]:
    """Notes on Works that were dropped before a wait; what they kept alive is reported from the heap."""
    dropped: dict[tuple[str, str], list[tuple[int, CommOperation]]] = defaultdict(list)
    for rank in run.ranks:
        for place, is_dropped in enumerate(column(rank.operations, "dropped")):
            operation = rank.operations[place] if is_dropped else None
            if operation is not None and operation.direction not in _BARRIERS:
                dropped[operation.direction, operation.issued_at].append((rank.number, operation))
    return [_dropped(direction, where, operations) for (direction, where), operations in sorted(dropped.items())]


def _dropped(direction: str, where: str, operations: Sequence[tuple[int, CommOperation]]) -> Finding:
    return Finding(
        rule=RuleName.P2P_BUFFER,
        facts=DroppedFacts(len(operations), direction, where),
        fingerprint=fingerprint(("p2p-buffer", "dropped", direction, function_of(where))),
        severity=Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=0,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        sightings=tuple(_sightings(operations)),
        count=len(operations),
    )


def _sightings(operations: Sequence[tuple[int, CommOperation]]) -> list[Sighting]:
    seen: dict[tuple[int, int], int] = defaultdict(int)
    for rank, operation in operations:
        seen[rank, operation.step] += operation.bytes
    of_rank: dict[int, list[Sighting]] = defaultdict(list)
    for (rank, step), size in sorted(seen.items()):
        of_rank[rank].append(Sighting(rank, step, size))
    return [sighting for sightings in of_rank.values() for sighting in sightings[-_SIGHTINGS_A_RANK:]]


HELP = """\
# p2p-buffer

A send or receive buffer, or its Work, that outlives its step.

## What it does

Reports tensors passed to `isend`, `irecv`, `batch_isend_irecv` and collectives that outlive their step, with the peer,
the tag, the direction and the line of the call. It needs `leakscope run` with two or more ranks. Buffers that are
retained too long within their step are reported by [late-release](late-release.md).

## Why is this bad?

A sent or received buffer, or its Work, is retained after the step in which it was needed.

The buffer must live until the transfer is complete, so the Work references it in C++, invisible to gc. It retains the
buffer after the transfer as well, as long as the Work is alive.

## Example

```python title="train.py"
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
stage = torch.nn.Linear(256, 256)
works = []


def train_step():
    if dist.get_rank() == 0:
        output = stage(torch.randn(64, 256)).detach()
        works.append(dist.isend(output, dst=1))
    else:
        received = torch.empty(64, 256)
        dist.irecv(received, src=0).wait()
        stage(received).square().mean().backward()


for _ in range(10):
    train_step()
dist.barrier()
dist.destroy_process_group()
```

```console
$ leakscope run --ranks 2 --step-function train_step train.py
```

## Use instead

Wait for the Work in the same step, and drop the Work and the buffer afterwards.

```diff title="train.py"
         works.append(dist.isend(output, dst=1))
     else:
         received = torch.empty(64, 256)
         dist.irecv(received, src=0).wait()
         stage(received).square().mean().backward()
+    while works:
+        works.pop().wait()
```

```console
$ leakscope run --ranks 2 --step-function train_step -o mended train.py
```

Other fixes:

- A Work without wait() can be dropped before the transfer is complete. leakscope reports this too.
- torch retains the results of functional collectives (`torch.distributed._functional_collectives`) until a wait: use
  each result.
- `output.data = torch.empty(0)` frees the memory of a sent output, but not its graph: store edges instead of outputs.

## References

[`leakscope.backward`](../reference/backward.md): four rules for a custom pipeline that sends, waits and releases.

- [Distributed communication](https://docs.pytorch.org/docs/stable/distributed.html): point-to-point operations and
  `Work`.
"""
RULE = Rule(RuleName.P2P_BUFFER, HELP, Match(40, _applies, _facts), is_unintended=True, is_of_comm=True)
