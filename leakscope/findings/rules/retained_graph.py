"""A small tensor, as a logged loss, that keeps an autograd graph and its activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName, Severity
from leakscope.findings.judged import JudgedCandidate
from leakscope.findings.model import Finding
from leakscope.findings.naming import is_lru_cache
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import CACHED_ARGUMENTS, REACHABLE, ObjectKind, ReferenceKind
from leakscope.units import bytes_text


class KeptOfGraph(StrEnum):
    """The part of the graph on the path to the bytes: backward frees saved tensors, never the leaves of a graph."""

    SAVED = "saved"
    LEAVES = "leaves"
    GRAPH = "graph"


@dataclass(frozen=True)
class GraphFacts(Facts):
    """A tensor that keeps the graph that made it."""

    SUMMED = ("nodes", "nodes_per_step")

    holder: str
    of_gradient: bool
    """Whether the graph is on the tensor's `.grad`, as after `backward(create_graph=True)`."""
    kept: KeptOfGraph
    saved: tuple[str, str] | None
    """(name, label of its grad node) of the first saved tensor on the path."""
    nodes: int = 0
    """Number of grad nodes, if it is their memory that grows."""
    nodes_per_step: float = 0.0
    is_differentiated: bool = False
    """Whether the source calls backward on what is kept, so that its graph is needed."""
    by_arguments: bool = False
    """Whether the key of an `lru_cache` keeps it, which holds the arguments of a call."""
    gathers: bool = False
    """Whether no container gains tensors: one tensor's graph reaches back through all steps."""

    def title_for(self, finding: Finding) -> str:
        """The referrer, and the retained part of a graph."""
        kept = {
            KeptOfGraph.SAVED: "its autograd graph and the saved activations",
            KeptOfGraph.LEAVES: f"its autograd graph and the leaf {finding.noun}s (with their .grad) at its end",
            KeptOfGraph.GRAPH: "its autograd graph",
        }[self.kept]
        if self.gathers:
            return f"{finding.subject} references the autograd graphs of all steps"
        if self.nodes:
            return f"{finding.subject} gains tensors and their autograd graphs every step and is never emptied"
        if self.of_gradient:
            return f"The .grad of {finding.subject} has a grad_fn and retains {kept}"
        return f"{self.holder} with a grad_fn in {finding.subject} retains {kept}"

    def advice_for(self, finding: Finding) -> str:
        """How to store the tensor without its graph."""
        if self.of_gradient:
            return (
                f"Set the .grad of {finding.subject}, and of every other parameter that no optimizer zeroes, to None "
                "in each step: gradients of backward(create_graph=True) have a graph, which grows with each "
                "accumulation. torch.autograd.grad does not store gradients."
            )
        if self.by_arguments:
            return (
                f"The key of {finding.subject} references the arguments of the call (self for a method), and with them "
                "the graph, so detaching the result is not enough. Cache the result on the object "
                "(functools.cached_property), cache a function without tensor or module arguments, or call "
                "cache_clear() after each step."
            )
        if self.is_differentiated:
            return (
                f"The program calls backward on the contents of {finding.subject}, so they cannot be detached: remove "
                f"each {finding.noun} (pop, clear) after its backward, or when it is no longer needed."
            )
        through = f" (through {' of '.join(self.saved)})" if self.saved else ""
        return (
            f"Store {finding.subject} detached: use .item() for a number or .detach() for a {finding.noun} before "
            f"storing it{through}."
        )

    def advice_with_graphs(self, finding: Finding) -> str:
        """What to accumulate instead of tensors with a graph through all steps."""
        if not self.gathers:
            return super().advice_with_graphs(finding)
        name = finding.cut.written if finding.cut else finding.subject
        return (
            f"Add numbers to {name} instead of tensors: x.item(), or x.detach() if a tensor is needed. The sum "
            "of two tensors references the graphs of both, even after backward has freed the saved tensors: "
            f"{round(self.nodes_per_step)} autograd nodes per step, about "
            f"{bytes_text(finding.bytes_per_step)}."
        )


def _applies(candidate: Candidate) -> bool:
    graph = candidate.reference_through(ReferenceKind.GRAD_GRAPH, ReferenceKind.SAVED)
    return candidate.group.freed == REACHABLE and graph is not None


def _kept(candidate: Candidate) -> KeptOfGraph:
    if candidate.reference_through(ReferenceKind.SAVED) is not None:
        return KeptOfGraph.SAVED
    nodes = (o for o in candidate.objects if o.kind == ObjectKind.GRAD_NODE)
    return KeptOfGraph.LEAVES if any(o.name.endswith("AccumulateGrad") for o in nodes) else KeptOfGraph.GRAPH


def _by_arguments(candidate: Candidate) -> bool:
    """Whether an `lru_cache` on the path keeps it by a key, not as a result; one without a bound has a dict of them."""
    names = [r.name for r in candidate.references]
    caches = [k for k, o in enumerate(candidate.objects[: len(names)]) if is_lru_cache(o)]
    return any(names[k] == CACHED_ARGUMENTS or (k + 1 < len(names) and names[k + 1].startswith("key ")) for k in caches)


def _facts(candidate: Candidate, _cut: ToCut) -> GraphFacts:
    at = candidate.tensor_at
    saved = candidate.reference_through(ReferenceKind.SAVED)
    return GraphFacts(
        candidate.objects[at].label,
        of_gradient=any(r.name == ".grad" for r in candidate.references[at : at + 1]),
        kept=_kept(candidate),
        saved=(saved.name, candidate.graph.object(saved.holder).label) if saved else None,
        by_arguments=_by_arguments(candidate),
    )


_MIN_SHARE = 0.5
"""Minimum share of a finding's growth from which its grad nodes are reported with it. Heuristic."""


def of_nodes(facts: Facts, candidate: Candidate) -> Facts:
    """The facts of a candidate made of autograd nodes, with their number."""
    if not isinstance(facts, GraphFacts):
        return facts
    nodes, size = len(candidate.group.storages), max(candidate.group.bytes, 1)
    return replace(facts, nodes=nodes, nodes_per_step=candidate.per_step * nodes / size, gathers=candidate.gaining < 0)


def report_with_tensors(nodes: Sequence[JudgedCandidate], tensors: Sequence[JudgedCandidate]) -> None:
    """Attach autograd nodes to the candidates of the same tensors; the others are reported by themselves.

    `losses.append(loss)` after its backward keeps four bytes of storage, and a node for each operation of the step.
    """
    for graph in nodes:
        same = next((one for one in tensors if _is_same(one, graph)), None)
        if same is None:
            # a few nodes without tensors are not worth a remark
            graph.is_reported = graph.severity == Severity.LEAK or isinstance(graph.facts, GraphFacts)
            continue
        graph.is_reported = False
        if graph.bytes_per_step >= _MIN_SHARE * same.bytes_per_step or _decides(graph, same):
            _attach(graph, same)


def _is_same(tensors: JudgedCandidate, graph: JudgedCandidate) -> bool:
    """Whether both are of one group, or one cut fixes both."""
    if tensors.candidate.group.freed:
        return False
    by_cut = tensors.cut is not None and graph.cut is not None and tensors.cut.keys == graph.cut.keys
    return tensors.candidate.group.key == graph.candidate.group.key or by_cut


def _decides(graph: JudgedCandidate, tensors: JudgedCandidate) -> bool:
    """Whether the graph makes a leak of tensors that are too small for one, however little it is."""
    return graph.severity == Severity.LEAK and tensors.severity != Severity.LEAK and tensors.settled_by is None


def _attach(graph: JudgedCandidate, tensors: JudgedCandidate) -> None:
    """Report autograd nodes with their tensors.

    In the words of the graph, if only the graph grows: `ema = 0.9 * ema + 0.1 * p` has its own weight, far larger than
    the factors that its graph saves.
    """
    frees = sum(one.cut.frees_bytes for one in (tensors, graph) if one.cut is not None)
    of_graph = isinstance(graph.facts, GraphFacts) and not isinstance(tensors.facts, GraphFacts)
    if tensors.candidate.gaining < 0 and of_graph:
        tensors.rule, tensors.facts, tensors.trace = graph.rule, graph.facts, graph.trace
        tensors.subject, tensors.noun, tensors.cut = graph.subject, graph.noun, graph.cut
    tensors.cut = tensors.cut and replace(tensors.cut, frees_bytes=frees)
    makes_leak = graph.severity == Severity.LEAK and tensors.severity != Severity.LEAK
    first, second = tensors, graph
    if makes_leak or graph.retained_bytes > tensors.retained_bytes:
        first, second = graph, tensors
    tensors.settled_by = first.settled_by if second.settled_by is not None else None
    tensors.too_large = first.too_large or second.too_large
    if graph.severity == Severity.LEAK:
        tensors.severity = Severity.LEAK
    tensors.nodes.append(graph)


HELP = """\
# retained-graph

A small tensor that retains an autograd graph and its activations.

## What it does

Reports live containers that gain tensors with an autograd graph, such as a loss stored for logging. The tensor itself
has four bytes; the activations saved in its graph have the rest.

## Why is this bad?

A tensor with a grad_fn retains its whole autograd graph and the activations saved in it.

The graph is in C++: `tensor.grad_fn` owns its node, and each node owns the next nodes and the saved tensors. gc sees
none of this (`gc.get_referents` of a built-in node is empty), so tools based on gc show only a list of small tensors.
`backward()` frees the saved tensors unless `retain_graph=True`; the nodes stay, with a few hundred bytes each.

## Example

```python title="validate.py"
import torch
import leakscope

net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh())
scores = []


def validate():
    prediction = net(torch.randn(64, 256))
    scores.append(prediction.square().mean())


print(leakscope.check(validate, repeats=3))
```

```console
$ python validate.py
```

The advice names the autograd node that saved the memory: here that of `square`, whose gradient needs the input.

## Use instead

Store `loss.item()` or `loss.detach()` instead of the loss.

```diff title="validate.py"
     prediction = net(torch.randn(64, 256))
-    scores.append(prediction.square().mean())
+    scores.append(prediction.square().mean().item())
```

```console
$ python validate.py
```

Other fixes:

- Use `with torch.no_grad():` for evaluation, so that no graph is created. `net.eval()` alone does not do this.
- `total += loss` retains the graphs of all steps: use `total += loss.detach()`.
- For a state that is carried between steps (the hidden state of a recurrent net, a moving average), call
  `hidden = hidden.detach()` once per step.
- `loss.item()` waits for the device. Store `loss.detach()` and call `.item()` when logging.

## References

[`leakscope.backward.output_edges`](../reference/backward.md): edges to store until the backward of a stage, instead of
its outputs.

- [FAQ](https://docs.pytorch.org/docs/stable/notes/faq.html): "Don't accumulate history across your training loop".
"""
RULE = Rule(RuleName.RETAINED_GRAPH, HELP, Match(70, _applies, _facts), is_unintended=True)
