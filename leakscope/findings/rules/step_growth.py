"""A container, attribute, cache, registry or closure on a live root that gains tensors each step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Bounded, EmptiedLater, Facts, Plateaued, RuleName
from leakscope.findings.model import Finding
from leakscope.findings.naming import is_lru_cache
from leakscope.findings.rules.rule import Match, Rule, ToCut
from leakscope.graph.model import REACHABLE, Object, ObjectKind
from leakscope.graph.ownership import is_users

_OF_OPTIMIZER = (".state", ".param_groups")
_WEAK_KEYS = ("WeakKeyDictionary", "WeakIdKeyDictionary")
_DEFAULTS = (".__defaults__", ".__kwdefaults__")
_OWNERS = (ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER, ObjectKind.PARAMETER)


class GrowsIn(StrEnum):
    """The kind of thing that gains tensors, which decides the advice."""

    OPTIMIZER_HISTORY = "optimizer history"
    """The state that an optimizer of a library keeps of one parameter."""
    SAME_TENSORS = "same tensors"
    """Nothing is added: the tensors themselves are larger at each snapshot."""
    CACHE = "cache"
    """The results of a function under `lru_cache`."""
    CALLBACK = "callback"
    """Functions and methods that native code keeps: exit handlers, signal handlers, callbacks of a C library."""
    FINALIZER = "finalizer"
    WEAK_KEYS = "weak keys"
    OPTIMIZER = "optimizer"
    """Per-parameter state of an optimizer, for ever more parameters."""
    DEFAULT_ARGUMENT = "default argument"
    QUEUE = "queue"
    DICT = "dict"
    NAMES = "names"
    """Attributes of one object, under ever new names."""
    CONTAINER = "container"
    OTHER = "other"


@dataclass(frozen=True)
class GrowthFacts(Facts):
    """Something reachable that gains tensors."""

    grows_in: GrowsIn
    holder: str = ""
    """Label of the optimizer or callback, name of the cached function, or what gains attributes, as written in code."""
    tensors: int = 0
    """Number of tensors at every snapshot, if none were added."""
    pauses: bool = False
    """Whether it did not grow at each snapshot."""
    holders: int = 1
    """Number of things that gain the same, if the named one is one of them."""
    gains: tuple[str, ObjectKind] | None = None
    """Type and kind of what is gained, if it is a module, an optimizer or a parameter; None for plain tensors."""

    def title_for(self, finding: Finding) -> str:
        """`self.losses in Trainer.fit() gains tensors every step and is never emptied`."""
        held, noun = finding.subject, finding.noun
        if self.grows_in == GrowsIn.OPTIMIZER_HISTORY:
            return f"The {self.holder} state of one parameter grows: {held}"
        if self.grows_in == GrowsIn.CALLBACK:
            pace = "every few steps" if self.pauses else "every step"
            return f"Native code gains one {self.holder} {pace}, as with atexit.register, and retains its {noun}s"
        if self.tensors == 1:
            return f"The {noun} in {held} is larger at each snapshot"
        if self.tensors:
            return f"The {self.tensors} {noun}s in {held} are larger at each snapshot"
        gained = f"{noun}s"
        if self.gains is not None:
            name, kind = self.gains
            gained = _GAINED[kind].format(name)
        graphs = " and their autograd graphs" if finding.keeps_graphs else ""
        pace = "every few steps" if self.pauses else "every step"
        if self.grows_in == GrowsIn.NAMES:
            held = self.holder or NAMESPACE
        if self.holders > 1:
            end = end_text(finding).replace(" is never", " are never")
            return f"{held} and {self.holders - 1} more like it gain {gained}{graphs} {pace}{end}"
        return f"{held} gains {gained}{graphs} {pace}{end_text(finding)}"

    def advice_for(self, finding: Finding) -> str:
        """How to release it, by the kind of container."""
        held = finding.subject
        return {
            GrowsIn.OPTIMIZER_HISTORY: "Not a leak: the optimizer keeps this history by design, up to a bound in its "
            "options "
            "(history_size of LBFGS). Use a smaller bound to save memory.",
            GrowsIn.SAME_TENSORS: f"{held} has a fixed number of tensors that become larger, for example by torch.cat "
            "or by a size that depends on the step. Keep a part of fixed size.",
            GrowsIn.CACHE: _cache_advice(finding, self),
            GrowsIn.CALLBACK: f"Unregister {self.holder} after its last use (atexit.unregister, or the equivalent of "
            "the C "
            "library), register it once, or use a weak reference to its object (weakref.WeakMethod).",
            GrowsIn.FINALIZER: "The arguments of weakref.finalize live as long as its object: drop those objects, call "
            f"detach() of the finalizer, or pass it no {finding.noun}.",
            GrowsIn.WEAK_KEYS: f"An entry of {held} is removed when nothing else references its key: check whether its "
            "value or another object references the key, and remove the entry at the end of the step.",
            GrowsIn.OPTIMIZER: "An optimizer retains all its parameters and their state: add parameters once "
            "(add_param_group) instead of in each step, and create a new optimizer for a new model.",
            GrowsIn.DEFAULT_ARGUMENT: "A default argument is created once, with its function: use the default None, "
            "and create the object in the body.",
            GrowsIn.QUEUE: f"The producer of {held} is faster than its consumer: set a bound "
            "(queue.Queue(maxsize=...)), so that the producer waits.",
            GrowsIn.DICT: f"Bound {held} (for example lru_cache(maxsize=...)) or clear it: each step adds an entry "
            "with a new key.",
            GrowsIn.NAMES: f"Each step adds a new name to {self.holder or NAMESPACE} ({held}): reuse one name, or "
            "delete the old one (del, delattr).",
            GrowsIn.CONTAINER: f"Clear {held} at the end of each step, keep only items that are used again, or set a "
            "bound (collections.deque(maxlen=...)).",
            GrowsIn.OTHER: f"Reset {held} in each step: its contents are never released.",
        }[self.grows_in]


_GAINED = {
    ObjectKind.NN_MODULE: "{} modules",
    ObjectKind.OPTIMIZER: "{} optimizers",
    ObjectKind.PARAMETER: "parameters",
}
"""What is gained, by its kind and the name of its type."""
NAMESPACE = "the namespace of the script"
"""What gains variables under new names: `globals()[f"loss_{step}"]`."""


def end_text(finding: Finding) -> str:
    """The end of the growth: ` and is never emptied`, ` up to its bound`."""
    if finding.too_large is not None:
        return f", {finding.too_large.bound.items} of at most {finding.too_large.bound.bound} so far"
    if isinstance(finding.settled_by, Bounded):
        return " up to its bound"
    if isinstance(finding.settled_by, EmptiedLater):
        return f", {finding.settled_by.text}"
    return ", then plateaus" if isinstance(finding.settled_by, Plateaued) else " and is never emptied"


def _cache_advice(finding: Finding, facts: GrowthFacts) -> str:
    """How to release the results of an `lru_cache` and the arguments in its keys."""
    clear = f"Call {facts.holder}.cache_clear() after the last use of its results, or"
    if finding.too_large is not None or facts.gains is not None:
        return (
            f"{clear} cache them elsewhere (functools.cached_property stores them on the object): each result is "
            "stored with its arguments, which include self for a method."
        )
    new = "each step calls it with new arguments, and every result is stored"
    return f"{clear} bound it with lru_cache(maxsize=...): {new}."


@dataclass(frozen=True)
class ScatteredFacts(Facts):
    """New holders appear at each snapshot and stay."""

    holders: int
    """Number of new holders since the first snapshot."""
    newest: str
    """The largest of the newest, as written in code."""

    def title_for(self, finding: Finding) -> str:
        """`Each snapshot has tensors under new names that stay alive, most recently net.extra_14`."""
        return f"Each snapshot has {finding.noun}s under new names that stay alive, most recently {self.newest}"

    def advice_for(self, _: Finding) -> str:
        """What to check."""
        return (
            f"{self.holders} referrers were added since the first snapshot and none was removed: check what creates "
            f"{self.newest} in each step, and whether the previous ones are used again."
        )


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed == REACHABLE


def _bounded_by(candidate: Candidate) -> Object | None:
    """The library optimizer whose state of one parameter contains it all: its own options bound that.

    A state that gains parameters is unintended, and so is what a user's own optimizer collects.
    """
    for place, (obj, reference) in enumerate(zip(candidate.objects, candidate.references, strict=False)):
        if obj.kind == ObjectKind.OPTIMIZER and not is_users(obj) and reference.name == ".state":
            entries = candidate.objects[place + 2 : place + 3]
            of_one = entries and entries[0].kind == ObjectKind.CONTAINER and candidate.is_for_all(entries[0])
            return obj if of_one else None
    return None


def _is_of_cache(candidate: Candidate, grown: Object) -> bool:
    """Whether a container is an lru_cache, or the dict that one without a bound keeps its results in."""
    above = candidate.objects[candidate.gaining - 1] if candidate.gaining > 0 else None
    return is_lru_cache(grown) or (above is not None and is_lru_cache(above) and above.label.endswith("maxsize None"))


def _cache(candidate: Candidate) -> Object | None:
    """The lru_cache whose results grow."""
    cache = next((o for o in candidate.before_tensor if is_lru_cache(o)), None)
    grown = candidate.gained
    return cache if cache is not None and (grown is None or _is_of_cache(candidate, grown)) else None


def _grows_in_optimizer(candidate: Candidate) -> bool:
    """Whether the growth is in what an optimizer keeps, not above it, such as a list of optimizers."""
    for place, (obj, reference) in enumerate(zip(candidate.objects, candidate.references, strict=False)):
        if obj.kind == ObjectKind.OPTIMIZER and reference.name in _OF_OPTIMIZER:
            return place < candidate.gaining or (candidate.gaining < 0 and candidate.is_for_all(obj))
    return False


def _is_default(candidate: Candidate, cut: ToCut) -> bool:
    """Whether the reference to cut is one of a function's defaults, or inside one."""
    path, first = candidate.group.path, cut.references[:1]
    above = path[: path.index(first[0]) + 1] if first and first[0] in path else first
    return any(candidate.graph.reference(reference).name in _DEFAULTS for reference in above)


def _grows_in(candidate: Candidate, cut: ToCut) -> GrowsIn:
    """The kind of growth other than an optimizer's history, the same tensors, or a cache."""
    types = [o.type for o in candidate.before_tensor]
    if "weakref.finalize._Info" in types:
        return GrowsIn.FINALIZER
    if any(kind.endswith(_WEAK_KEYS) for kind in types):
        return GrowsIn.WEAK_KEYS
    if _grows_in_optimizer(candidate):
        return GrowsIn.OPTIMIZER
    if candidate.group.many is not None:
        return GrowsIn.NAMES
    if _is_default(candidate, cut):
        return GrowsIn.DEFAULT_ARGUMENT
    if "queue.Queue" in types:
        return GrowsIn.QUEUE
    containers = (o for o in candidate.before_tensor if o.kind == ObjectKind.CONTAINER)
    shared = [o for o in containers if candidate.is_for_all(o)]
    grown = candidate.gained or (shared[-1] if shared else None)
    if grown is not None and "dict" in grown.type.lower():
        return GrowsIn.DICT
    return GrowsIn.CONTAINER if candidate.container else GrowsIn.OTHER


def _holder(candidate: Candidate) -> str:
    """What gains attributes; "" if that is the script's namespace, or if nothing does."""
    many = candidate.group.many
    return candidate.written(candidate.group.path[many.place - 1]) if many is not None and many.place else ""


def _gains(candidate: Candidate) -> tuple[str, ObjectKind] | None:
    """What is gained, if it is a module, an optimizer or a parameter rather than a tensor or a container of some."""
    below = candidate.objects[candidate.gaining + 1 : candidate.tensor_at + 1] if candidate.gaining >= 0 else ()
    gained = next((o for o in below if o.kind != ObjectKind.CONTAINER), None)
    if gained is None or gained.kind not in _OWNERS:
        return None
    return gained.type.rpartition(".")[2], gained.kind


def _facts(candidate: Candidate, cut: ToCut) -> GrowthFacts:
    tensors, pauses = candidate.keeps_its_number, candidate.series.has_pauses
    optimizer = _bounded_by(candidate)
    if optimizer is not None:
        return GrowthFacts(GrowsIn.OPTIMIZER_HISTORY, optimizer.label, tensors, pauses, is_bounded=True)
    if tensors:
        return GrowthFacts(GrowsIn.SAME_TENSORS, "", tensors, pauses)
    if candidate.callback is not None:
        return GrowthFacts(GrowsIn.CALLBACK, candidate.callback.label, pauses=pauses)
    cache = _cache(candidate)
    if cache is not None:
        return GrowthFacts(GrowsIn.CACHE, cache.name, pauses=pauses, gains=_gains(candidate))
    many = candidate.group.many
    return GrowthFacts(
        _grows_in(candidate, cut),
        _holder(candidate),
        pauses=pauses,
        holders=many.holders if many else 1,
        gains=_gains(candidate),
    )


HELP = """\
# step-growth

A live container that gains tensors each step.

## What it does

Reports a live list, dict, set, queue, attribute, default argument, closure, cache or registry that holds more tensors
at each heap snapshot. This is the most common leak. It is reported when no more specific rule matches, such as
[retained-graph](retained-graph.md) for the graph of a loss, or [view-hold](view-hold.md) for slices.

## Why is this bad?

A live container, attribute, cache or closure gains tensors in every step and is never emptied.

## Example

```python title="train.py"
import torch
import leakscope

net = torch.nn.Linear(256, 256)
outputs = []


def train_step():
    output = net(torch.randn(64, 256))
    output.square().mean().backward()
    outputs.append(output.detach())


print(leakscope.check(train_step, repeats=3))
```

```console
$ python train.py
```

`> adds` marks the retention site, the line that stores the tensors, and `holds` the line of the container. The freed
bytes are the retained size in the heap graph: the bytes that no other reference retains.

`detach()` returns a tensor without a graph that shares the memory of the original. Garbage collection does not help,
because the list and its contents are reachable.

## Use instead

Bound it, clear it, or store numbers instead of tensors.

```diff title="train.py"
     output = net(torch.randn(64, 256))
     output.square().mean().backward()
-    outputs.append(output.detach())
+    outputs.append(output.detach().abs().max().item())
```

```console
$ python train.py
```

Other fixes:

- Use `collections.deque(maxlen=100)` if only the newest items are needed. leakscope detects the bound: a deque that is
  still filling is a note with its full size, and a leak only if it holds graphs, modules or parameters, or a quarter of
  the available memory.
- `functools.lru_cache(maxsize=...)` retains tensors in arguments and results. Use a small bound, or no cache.
- A dict with tensors or `id(...)` as keys never finds its old entries. Use a number or a name as key.
- Move tensors that are needed later to the host with `.cpu()`, and drop those on the device.

## References

- [FAQ](https://docs.pytorch.org/docs/stable/notes/faq.html): "Don't hold onto tensors and variables you don't need".
"""
RULE = Rule(RuleName.STEP_GROWTH, HELP, Match(100, _applies, _facts), may_fill=True)
