"""Cycles through C++ references that gc cannot see: never freed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.model import Finding
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.findings.rules.tensor_cycle import CutAt, cut_all, cut_text, cycle_of, kinds_of_cut
from leakscope.graph.model import IMMORTAL, TENSOR_KINDS, HeapGraph, ObjectKind, Reference, ReferenceKind


class ClosedBy(StrEnum):
    """What closes an uncollectable cycle."""

    METADATA = "metadata"
    GRADIENT = "gradient"
    """A gradient with a graph, on its own parameter."""
    PACK_HOOK = "pack hook"
    """A pack hook that returns the tensor itself."""
    HOOK = "hook"
    OTHER = "other"


@dataclass(frozen=True)
class UncollectableFacts(Facts):
    """A cycle that gc never frees."""

    closed_by: ClosedBy
    hidden: tuple[str, str] | None
    """(name, label of its holder) of the C++ reference that gc does not follow; None if it is a tensor's own to its
    grad node.
    """
    cut_at: tuple[CutAt, ...] = ()
    """The kind of each reference to cut."""

    def title_for(self, finding: Finding) -> str:
        """`Uncollectable cycle through ...`."""
        return f"Uncollectable cycle through {cut_text(finding)} and the autograd graph in C++"

    def advice_for(self, finding: Finding) -> str:
        """How to avoid the cycle, and the reference that gc cannot see."""
        cut = finding.subject
        todo = {
            ClosedBy.METADATA: "Store a detached copy or the shape in the metadata of the node instead of the tensor",
            ClosedBy.GRADIENT: f"Cut {cut}, or compute the gradient with torch.autograd.grad: a gradient with a graph "
            "(create_graph=True) that is stored on its parameter closes a cycle",
            ClosedBy.PACK_HOOK: "Return t.detach() from the pack hook: a pack hook that returns the tensor itself "
            "closes a cycle for every operator that saves its output",
            ClosedBy.HOOK: "Use the argument of the hook, a detached tensor or a weak reference in the hook, or remove "
            "its handle after backward",
            ClosedBy.OTHER: f"Cut {cut}",
        }[self.closed_by]
        if len(self.cut_at) > 1:
            todo = cut_all(finding, self.cut_at).removesuffix(".")
        hidden = " of ".join(self.hidden) if self.hidden else ".grad_fn of a tensor that is also owned by C++"
        return f"{todo}. gc cannot free the cycle, because it does not see {hidden}."


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed == IMMORTAL


def _hidden(candidate: Candidate) -> tuple[str, str] | None:
    """The C++ reference on the cycle that gc does not follow."""
    cycle = cycle_of(candidate)
    # references created by the user's code are named before autograd's own
    for kinds in ((ReferenceKind.HOOK, ReferenceKind.SAVED), (ReferenceKind.GRAD_GRAPH,)):
        for reference in cycle:
            holder = candidate.graph.object(reference.holder)
            if holder.kind == ObjectKind.GRAD_NODE and reference.kind in kinds:
                return reference.name, holder.label
    return None


def _is_packed(graph: HeapGraph, cycle: Sequence[Reference]) -> bool:
    """Whether a pack hook returned the tensor itself, so that a saved tensor leads back to the node that saved it.

    Torch saves the output of an operator without its graph, so autograd's own references close no cycle without such a
    hook. On a cycle with others, a hook's or an attribute's, the node must hold the unpack hook.
    """
    saved = [r for r in cycle if r.kind == ReferenceKind.SAVED and graph.object(r.held).kind in TENSOR_KINDS]
    if saved and all(r.kind in (ReferenceKind.SAVED, ReferenceKind.GRAD_GRAPH) for r in cycle):
        return True
    hooks = ((f"unpack hook of {r.name}", graph.out_of(r.holder).tolist()) for r in saved)
    return any(graph.reference(held).name == name for name, references in hooks for held in references)


def _what_closes(candidate: Candidate) -> ClosedBy:
    cycle = cycle_of(candidate)
    if any(r.name == "metadata" for r in cycle):
        return ClosedBy.METADATA
    if any(r.name == ".grad" for r in cycle):
        return ClosedBy.GRADIENT
    if _is_packed(candidate.graph, cycle):
        return ClosedBy.PACK_HOOK
    return ClosedBy.HOOK if any(r.kind == ReferenceKind.HOOK for r in cycle) else ClosedBy.OTHER


def _facts(candidate: Candidate, cut: ToCut) -> UncollectableFacts:
    return UncollectableFacts(_what_closes(candidate), _hidden(candidate), kinds_of_cut(candidate, cut.each))


HELP = """\
# uncollectable-cycle

Tensors held by a cycle through C++ references that gc never frees.

## What it does

Reports reference cycles of tensors in which at least one reference is in C++ and invisible to gc. Such a cycle looks
like a leak in C++: no Python object references it, no collection frees it, and `gc.garbage` does not list it.

## Why is this bad?

A hook, metadata or a graph of create_graph refers to its own tensor through a C++ reference that gc cannot follow, so
garbage collection never frees the memory.

## Example

```python title="train.py"
import torch
import leakscope

net = torch.nn.Linear(256, 256)


def train_step():
    hidden = net(torch.randn(64, 256))
    hidden.register_hook(lambda grad: grad / hidden.abs().max())
    hidden.square().mean().backward()


print(leakscope.check(train_step, repeats=3))
```

```console
$ python train.py
```

`hidden` owns its autograd node in C++, the node owns the hook that is registered on `hidden`, and the closure of the
hook owns `hidden`. gc follows the hooks of a node only if Python is its sole owner, but here the graph owns it too.

## Use instead

Cut the closing reference: remove the hook after use, use a weak reference or a detached copy in it, or compute
gradients with torch.autograd.grad instead of backward(create_graph=True).

```diff title="train.py"
     hidden = net(torch.randn(64, 256))
-    hidden.register_hook(lambda grad: grad / hidden.abs().max())
+    largest = hidden.detach().abs().max()
+    hidden.register_hook(lambda grad: grad / largest)
```

```console
$ python train.py
```

`largest` is a new tensor without a reference to `hidden`.

Other fixes:

- Call `handle.remove()` after the backward, with `handle = tensor.register_hook(...)`.
- `backward(create_graph=True)` stores in each parameter a gradient that references its graph, and the graph references
  the parameter: use `torch.autograd.grad(..., create_graph=True)`, or set `parameter.grad = None` afterwards.
- For `node.metadata[...] = tensor` with a tensor of the same node, store a detached copy.
- In saved tensor hooks that return their argument (`lambda tensor: tensor`), return `tensor.detach()`.

## References

[`leakscope.backward.stage_backward_input`](../reference/backward.md) uses hooks and removes them again, also after an
exception. This cycle was found in torch in 2024: `hook -> cell -> param_group -> intermediates -> hook`
(pytorch#136584).

- [Backward hooks execution](https://docs.pytorch.org/docs/stable/notes/autograd.html#backward-hooks-execution), in
  PyTorch's notes on autograd.
"""
RULE = Rule(RuleName.UNCOLLECTABLE_CYCLE, HELP, Match(10, _applies, _facts), is_unintended=True)
