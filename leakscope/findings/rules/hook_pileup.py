"""Hooks registered again each step."""

from __future__ import annotations

from dataclasses import dataclass

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.model import Finding
from leakscope.findings.naming import generic
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import REACHABLE, ObjectKind, ReferenceKind
from leakscope.units import seconds_text

_HOOKS = (ObjectKind.FUNCTION, ObjectKind.METHOD, ObjectKind.INSTANCE)
_HOOK_DICTS = ("_hooks", "_hooks_with_kwargs", "_grad_hooks")


@dataclass(frozen=True)
class HookFacts(Facts):
    """A hook that is registered repeatedly on the same object."""

    hook: str
    where: str
    """Line of the hook; "" if unknown."""
    owner: str
    of_node: bool = False
    """Whether it is registered on a grad node, as the passes of a split backward do."""
    step_seconds: tuple[float, float] | None = None
    """Median duration of the first steps after warm-up and of the last ones, if those took longer."""

    def title_for(self, finding: Finding) -> str:
        """The hook and its owner."""
        slower = ""
        if self.step_seconds is not None:
            first, last = map(seconds_text, self.step_seconds)
            slower = f"; the step time rises from {first} to {last}"
        what = f"{_hook(self)} is registered repeatedly on the same {self.owner}"
        return f"{what} and collected in {finding.subject}{slower}"

    def advice_for(self, _: Finding) -> str:
        """How to register it once."""
        return (
            f"Register {_hook(self)} once, outside the loop, or keep the handle and call handle.remove() after the "
            "step. Each registration retains the variables in its closure."
        )


def _hook(facts: HookFacts) -> str:
    return f"{facts.hook} ({facts.where})" if facts.where else facts.hook


def collects_hooks(candidate: Candidate) -> bool:
    """Whether the container that gains non-tensor objects is a dict of hooks, by its name."""
    return candidate.is_of_container and any(r.name.endswith(_HOOK_DICTS) for r in candidate.references[-2:])


def facts_of_objects(candidate: Candidate, item: str) -> HookFacts:
    """The facts of hooks that keep no tensor; `item` is the type of most of them."""
    place = _hooks_at(candidate)
    assert place is not None
    owner = candidate.objects[place]
    return HookFacts(f"hook ({item})", "", owner.label, of_node=owner.kind == ObjectKind.GRAD_NODE)


def _position(candidate: Candidate) -> int | None:
    """Position on the path of an object with more than one hook: one hook alone does not pile up."""
    for k, reference in enumerate(candidate.references):
        if reference.kind == ReferenceKind.HOOK or reference.name.endswith(_HOOK_DICTS):
            hooks, hook = [*candidate.objects[k + 1 : k + 3], None, None][:2]
            several = hooks is not None and hooks.kind == ObjectKind.CONTAINER and hooks.size != 1
            if several and hook is not None and hook.kind in _HOOKS:
                return k
    return None


def is_of_one_like(one: Candidate, other: Candidate) -> bool:
    """Whether the hooks of one belong to an item of the container whose items have the hooks of the other.

    The variable of a loop over modules holds the last of them, whose hooks are then found through that variable.
    """
    own, place = _hooks_at(one), _hooks_at(other)
    if one.graph is not other.graph or own is None or not place:
        return False
    graph, item = one.graph, other.references[place - 1]
    is_item = generic(item.name).startswith("[") and one.references[own].name == other.references[place].name
    alike = (graph.reference(r) for r in graph.into(one.objects[own].index).tolist())
    return is_item and any(r.holder == item.holder and generic(r.name) == generic(item.name) for r in alike)


def _hooks_at(candidate: Candidate) -> int | None:
    """Position of the reference to the dict of hooks; None if there is none."""
    return next((k for k, r in enumerate(candidate.references) if r.name.endswith(_HOOK_DICTS)), None)


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed == REACHABLE and _position(candidate) is not None


def _facts(candidate: Candidate, _cut: ToCut) -> HookFacts:
    place = _position(candidate)
    assert place is not None
    owner, hook = candidate.objects[place], candidate.objects[place + 2]
    return HookFacts(hook.label, hook.where, owner.label, of_node=owner.kind == ObjectKind.GRAD_NODE)


HELP = """\
# hook-pileup

Hooks that are registered again in each step.

## What it does

Reports modules, tensors, parameters, optimizers and autograd nodes whose number of hooks grows at each heap snapshot,
together with the memory in their closures. Each hook also runs in each step, so the steps become slower.

## Why is this bad?

Each step registers hooks again, and the previous ones are never removed.

## Example

```python title="train.py"
import torch
import leakscope

net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))


def keep(activations):
    return lambda module, inputs, output: activations.append(output.detach())


def train_step():
    activations = []
    net[0].register_forward_hook(keep(activations))
    net(torch.randn(64, 256)).square().mean().backward()


print(leakscope.check(train_step, repeats=3))
```

```console
$ python train.py
```

A module stores its hooks in a dict, and only the handle returned by the registration can remove one. Dropping the
handle removes nothing. In this script every hook also runs in each later step and appends to its own list.

## Use instead

Register once, before the loop, or call remove() on the returned handle.

```diff title="train.py"
     activations = []
-    net[0].register_forward_hook(keep(activations))
-    net(torch.randn(64, 256)).square().mean().backward()
+    handle = net[0].register_forward_hook(keep(activations))
+    try:
+        net(torch.randn(64, 256)).square().mean().backward()
+    finally:
+        handle.remove()
```

```console
$ python train.py
```

Other fixes:

- A handle is a context manager: `with net[0].register_forward_hook(...):` removes the hook at the end of the block.
- A framework callback that runs in each epoch registers hooks in each epoch: register them at the start of training.
- `copy.deepcopy` of a module copies its hooks, and the copy runs them too.

## References

[`leakscope.backward`](../reference/backward.md) registers its hooks on autograd nodes for one pass, and removes them in
a `finally` block.

- [torch.nn.Module.register_forward_hook](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html).
"""
RULE = Rule(RuleName.HOOK_PILEUP, HELP, Match(50, _applies, _facts), is_unintended=True)
