"""Distributed-autograd contexts left open: each keeps its gradients and the graph it sent, in torch's own container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from leakscope.findings.candidates import Candidate
from leakscope.findings.comm import CONTEXT_TYPE, buffers_of
from leakscope.findings.facts import Facts, FreedBy, HopStatus, RuleName, Severity
from leakscope.findings.merge import merge_findings
from leakscope.findings.model import Cut, CutReference, Finding, Hop, HopReason, Sighting
from leakscope.findings.naming import fingerprint, function_of, place_of
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import REACHABLE
from leakscope.run.model import Run
from leakscope.run.rows import ContextsAtStep

_LINES_TO_JUDGE = 3
"""Consecutive rows of `contexts.jsonl` with more open contexts, from which contexts count as never closed."""
CUT = "the open context"
_MAX_PLACES = 3
"""Maximum lines named in a sentence. Heuristic."""


@dataclass(frozen=True)
class OpenContextsFacts(Facts):
    """Contexts that were never left; each is on all participating workers and is counted once."""

    count: int
    issued_at: tuple[str, ...]
    """Lines on which the gradients in them were sent."""
    opened_at: tuple[str, ...] = ()
    """Lines of the whole run that opened contexts."""
    workers: tuple[int, ...] = ()
    """Ids of the participating workers."""

    def title_for(self, _: Finding) -> str:
        """Number of open contexts, and the lines that opened them."""
        where = f", opened at {', '.join(self.issued_at[:_MAX_PLACES])}" if self.issued_at else ""
        many = "s" if self.count != 1 else ""
        return f"{self.count} distributed autograd context{many} (DistAutogradContext) left open{where}"

    def advice_for(self, _: Finding) -> str:
        """How to exit a context."""
        return (
            "Use `with torch.distributed.autograd.context() as context_id:` around forward, backward and the reading "
            "of gradients. Only the exit of the block, also by an exception, releases the context on all workers. It "
            "is stored in a C++ container of torch, which gc neither sees nor frees."
        )

    def preface(self) -> str:
        """Where contexts were opened, and their workers."""
        places = f"Opened at {', '.join(self.opened_at[:_MAX_PLACES])}. " if self.opened_at else ""
        return places + (f"Workers: {', '.join(map(str, self.workers))}. " if self.workers else "")


@dataclass(frozen=True)
class OpenPassesFacts(Facts):
    """Distributed backward passes that outlive their step."""

    SUMMED = ("count",)

    count: int

    def title_for(self, _: Finding) -> str:
        """Number of distributed backward passes that are still running."""
        passes = f"{self.count} distributed backward pass{'es' if self.count > 1 else ''}"
        return f"{passes} still running after the step"

    def advice_for(self, _: Finding) -> str:
        """Advice: where to find the rank that failed."""
        return (
            "A distributed backward that has failed must leave no pass behind; look at the workers' logs for the rank "
            "that never answered."
        )


@dataclass(frozen=True)
class EmptyContextsFacts(Facts):
    """Open contexts that keep no gradients."""

    SUMMED = ("count",)

    count: int
    opened_at: tuple[str, ...]
    """Lines that opened them."""

    def title_for(self, _: Finding) -> str:
        """Number of open contexts, and the lines that opened them."""
        at = f", opened at {', '.join(self.opened_at[:_MAX_PLACES])}" if self.opened_at else ""
        return f"{self.count} distributed autograd contexts left open, without gradients{at}"

    def advice_for(self, _: Finding) -> str:
        """How to exit a context."""
        return "Exit each context (`with torch.distributed.autograd.context()`): until then no worker releases it."


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed == REACHABLE and any(o.name.endswith(CONTEXT_TYPE) for o in candidate.before_tensor)


def _facts(candidate: Candidate, _cut: ToCut) -> OpenContextsFacts:
    graph = candidate.graph
    buffers = buffers_of(graph, candidate.group.storages).values()
    return OpenContextsFacts(
        count=sum(name.endswith(CONTEXT_TYPE) for name in (graph.strings[k] for k in graph.name.tolist())),
        issued_at=tuple(dict.fromkeys(c.issued_at for c in buffers if c.issued_at)),
    )


def context_findings(run: Run) -> list[Finding]:
    """Notes on contexts and backward passes that stay open without memory that a snapshot could see."""
    findings = []
    for rank in run.ranks:
        if not rank.contexts:
            continue
        last = rank.contexts[-1]
        if last.backward_passes and len(rank.contexts) > 1 and rank.contexts[-2].backward_passes:
            findings.append(_open_passes(rank.number, last))
        if last.open and not last.bytes and _never_closed(rank.contexts):
            findings.append(_empty_contexts(rank.number, last))
    return findings


def _never_closed(rows: Sequence[ContextsAtStep]) -> bool:
    """Whether each of the last rows has more open contexts."""
    counts = [row.open for row in rows[-_LINES_TO_JUDGE:]]
    return len(counts) == _LINES_TO_JUDGE and all(before < after for before, after in pairwise(counts))


def _open_passes(rank: int, row: ContextsAtStep) -> Finding:
    return _context_note("backward", rank, row, OpenPassesFacts(row.backward_passes))


def _empty_contexts(rank: int, row: ContextsAtStep) -> Finding:
    where = dict.fromkeys(context.opened_at for context in row.contexts if context.opened_at)
    return _context_note("empty", rank, row, EmptyContextsFacts(row.open, tuple(where)))


def _context_note(what: str, rank: int, row: ContextsAtStep, facts: Facts) -> Finding:
    return Finding(
        rule=RuleName.DIST_AUTOGRAD_CONTEXT,
        facts=facts,
        fingerprint=fingerprint(("dist-autograd-context", what)),
        severity=Severity.NOTE,
        freed_by=FreedBy.PROGRAM,
        retained_bytes=row.bytes,
        bytes_per_step=0.0,
        trace=(),
        cut=None,
        sightings=(Sighting(rank, row.step, row.bytes),),
        count=row.open,
    )


def with_contexts(findings: Sequence[Finding], run: Run) -> list[Finding]:
    """All memory of open contexts, on every rank and through any reference, as one leak with the line
    that opened them.
    """
    mine = [f for f in findings if f.rule == RuleName.DIST_AUTOGRAD_CONTEXT and f.trace]
    # the memory of grad nodes is an estimate, and negligible beside the gradients of a context
    cut_here = [f for f in mine if not f.keeps_graphs] or mine
    if not mine:
        return list(findings)
    places, workers = _opened(run)
    functions = tuple(dict.fromkeys(function_of(place) for place in places))
    together = [
        merge_findings([f for f in cut_here if rank in f.storages])
        for rank in sorted({r for f in cut_here for r in f.storages})
    ]
    merged = []
    for finding in together:
        # no single reference: the container releases all when the context is left
        opened = place_of(places[0]) if places else None
        where = "" if opened is None else opened.at
        cut = Cut((CutReference(CUT, where),), finding.retained_bytes)
        name = fingerprint(("dist-autograd-context", *functions))
        assert isinstance(finding.facts, OpenContextsFacts)
        facts = replace(finding.facts, opened_at=tuple(places), workers=tuple(workers))
        trace = tuple(map(_left_open, finding.trace))
        merged.append(replace(finding, fingerprint=name, cut=cut, facts=facts, trace=trace))
    return [f for f in findings if f not in mine] + merged


def _left_open(hop: Hop) -> Hop:
    """A hop; a context is marked as the leak, without a reference to cut."""
    if not hop.name.endswith(CONTEXT_TYPE):
        return hop
    return replace(hop, status=HopStatus.LEAKED, reason=HopReason.LEFT_OPEN, frees_bytes=None)


def _opened(run: Run) -> tuple[list[str], list[int]]:
    """Lines that opened contexts that are still open, and ids of the participating workers."""
    places: dict[str, None] = {}
    workers: set[int] = set()
    for rank in run.ranks:
        for context in (context for row in rank.contexts for context in row.contexts):
            workers.update(context.workers)
            if context.opened_at:
                places[context.opened_at] = None
    return list(places), sorted(workers)


def beyond_contexts(gaps: Sequence[Finding], findings: Sequence[Finding]) -> list[Finding]:
    """The gaps that open contexts do not account for: a context also keeps messages that are not counted."""
    rate = sum(f.bytes_per_step for f in findings if f.rule == RuleName.DIST_AUTOGRAD_CONTEXT)
    return [gap for gap in gaps if gap.bytes_per_step > rate / 2]


HELP = """\
# dist-autograd-context

A distributed autograd context that was left open.

## What it does

Reports open contexts, the line that opened them and their number, with `leakscope run` and two or more ranks.

## Why is this bad?

A context of distributed autograd retains the gradients that were sent in it until its exit.

torch stores open contexts in a C++ container on each participating worker. A context belongs to the thread that entered
it, but it stays open when the thread ends.

## Example

```python title="train.py"
import os
import threading

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc


def backward_of(batch):
    context = dist_autograd.context()
    context_id = context.__enter__()
    loss = net(batch).square().mean()
    dist_autograd.backward(context_id, [loss])


def train_step():
    thread = threading.Thread(target=backward_of, args=[torch.randn(64, 256)])
    thread.start()
    thread.join()


net = torch.nn.Linear(256, 256)
rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
for _ in range(10):
    train_step()
rpc.shutdown()
```

```console
$ leakscope run --ranks 2 --step-function train_step train.py
```

## Use instead

Open it with `with dist_autograd.context()`, which also exits it after an exception or an early return.

```diff title="train.py"
-    context = dist_autograd.context()
-    context_id = context.__enter__()
-    loss = net(batch).square().mean()
-    dist_autograd.backward(context_id, [loss])
+    with dist_autograd.context() as context_id:
+        loss = net(batch).square().mean()
+        dist_autograd.backward(context_id, [loss])
```

```console
$ leakscope run --ranks 2 --step-function train_step -o mended train.py
```

Other fixes:

- If a block is not possible, use `contextlib.ExitStack`, which exits the context after any exception.
- Read the gradients (`dist_autograd.get_gradients`) or call `DistributedOptimizer.step` inside the context: its exit
  releases them.

## References

- [Distributed autograd design](https://docs.pytorch.org/docs/stable/rpc/distributed_autograd.html).
"""
RULE = Rule(RuleName.DIST_AUTOGRAD_CONTEXT, HELP, Match(30, _applies, _facts), is_unintended=True, is_of_comm=True)
