"""Sentences about what something alive keeps gaining."""

from __future__ import annotations

from leakscope.findings.facts import Bounded, CameToRest, EmptiedLater, FollowsInput, HeldByCall, TooLarge
from leakscope.findings.memory.scattered import ScatteredFacts
from leakscope.findings.model import Finding
from leakscope.findings.rules.retained_graph import GraphFacts
from leakscope.findings.rules.step_growth import GrowsIn, GrowthFacts
from leakscope.graph.model import ObjectKind
from leakscope.units import bytes_text

_GAINED = {
    ObjectKind.NN_MODULE: "{} modules",
    ObjectKind.OPTIMIZER: "{} optimizers",
    ObjectKind.PARAMETER: "parameters",
}
"""What is gained, by its kind and the name of its type."""
NAMESPACE = "the script's namespace"
"""What gains variables under new names: `globals()[f"loss_{step}"]`."""


def growth_title(finding: Finding, facts: GrowthFacts) -> str:
    """`self.losses in Trainer.fit() gains tensors each step and lets none go`."""
    held, noun = finding.subject, finding.noun
    if facts.grows_in == GrowsIn.OPTIMIZER_HISTORY:
        return f"the {facts.holder}'s own state of one parameter grows: {held}"
    if facts.grows_in == GrowsIn.CALLBACK:
        pace = "every few steps" if facts.pauses else "each step"
        return f"native code is given another {facts.holder} {pace}, as by atexit.register, and keeps its {noun}s"
    if facts.tensors == 1:
        return f"the {noun} in {held} is larger at each look"
    if facts.tensors:
        return f"the {facts.tensors} {noun}s in {held} are larger at each look"
    gained = f"{noun}s"
    if facts.gains is not None:
        name, kind = facts.gains
        gained = _GAINED[kind].format(name)
    graphs = ", and the graphs that made them," if finding.keeps_graphs else ""
    pace = "every few steps" if facts.pauses else "each step"
    if facts.grows_in == GrowsIn.NAMES:
        held = facts.holder or NAMESPACE
    if facts.holders > 1:
        end = end_text(finding).replace(" lets ", " let ")
        return f"{held} and {facts.holders - 1} more like it gain {gained}{graphs} {pace}{end}"
    return f"{held} gains {gained}{graphs} {pace}{end_text(finding)}"


def end_text(finding: Finding) -> str:
    """Whether what gains lets go of any: ` and lets none go`, ` up to its bound`."""
    if finding.too_large is not None:
        return f", {finding.too_large.bound.items} of at most {finding.too_large.bound.bound} so far"
    if isinstance(finding.settled_by, Bounded):
        return " up to its bound"
    if isinstance(finding.settled_by, EmptiedLater):
        return f", filling: {emptied_text(finding.settled_by)}"
    return ", but not to the end" if isinstance(finding.settled_by, CameToRest) else " and lets none go"


def growth_advice(finding: Finding, facts: GrowthFacts) -> str:
    """What lets go of it, by what kind of thing gains it."""
    held = finding.subject
    return {
        GrowsIn.OPTIMIZER_HISTORY: "A history that the optimizer keeps by design, up to a bound among its own options "
        "(history_size of LBFGS): no leak. Give it a smaller bound where that is too much memory.",
        GrowsIn.SAME_TENSORS: f"Nothing is added to it: see why {held} is made larger each step (a torch.cat of all so "
        "far, a size that counts the steps), and keep a part of fixed size.",
        GrowsIn.CACHE: _cache_advice(finding, facts),
        GrowsIn.CALLBACK: f"Take {facts.holder} back when it is done with (atexit.unregister, or what the C library "
        "has for its callbacks), register one for all, or have it hold its object weakly (weakref.WeakMethod).",
        GrowsIn.FINALIZER: "What a weakref.finalize is given lives until its object dies: let those objects go, call "
        f"the finalizer's detach(), or hand it no {finding.noun}.",
        GrowsIn.WEAK_KEYS: f"An entry of {held} goes when nothing else holds its key: see whether its value does, or "
        "who else keeps the keys, and take the entry out when the step is done with it.",
        GrowsIn.OPTIMIZER: "An optimizer keeps every parameter that it was ever given, and a state for each: add "
        "parameters once (add_param_group), not each step, and make a new optimizer for a new model.",
        GrowsIn.DEFAULT_ARGUMENT: "A default argument is made once, with its function, and kept: give it the default "
        "None, and make a new one in the body.",
        GrowsIn.QUEUE: f"More is put into {held} than is taken out: give the queue a bound (queue.Queue(maxsize=...)), "
        "so that whoever fills it waits.",
        GrowsIn.DICT: f"Bound {held} or clear it: each step adds an entry under a new key (an lru_cache(maxsize=...) "
        "or one entry per real need).",
        GrowsIn.NAMES: f"Each step puts something into {facts.holder or NAMESPACE} under a new name ({held}): "
        "use one name, so that the new takes the place of the old, or delete the old one (del, delattr).",
        GrowsIn.CONTAINER: f"Empty {held} when the step is done with it, keep only what is used again, or give it a "
        "bound (collections.deque(maxlen=...)).",
        GrowsIn.OTHER: f"Reset {held} each step; what it holds is not let go.",
    }[facts.grows_in]


def scattered_title(finding: Finding, facts: ScatteredFacts) -> str:
    """`tensors come under new names at each look and stay, net.extra_14 the latest`."""
    return f"{finding.noun}s come under new names at each look and stay, {facts.newest} the latest"


def scattered_advice(_finding: Finding, facts: ScatteredFacts) -> str:
    """Where to look."""
    return (
        f"{facts.holders} holders have come since the first look and none has gone: see what makes {facts.newest} each "
        "step, and whether the ones before it are used again."
    )


def _cache_advice(finding: Finding, facts: GrowthFacts) -> str:
    """What lets go of the results of a function under `lru_cache`, and of the arguments that they are kept by."""
    clear = f"Call {facts.holder}.cache_clear() when its results are done with, or"
    if finding.too_large is not None or facts.gains is not None:
        return (
            f"{clear} cache them elsewhere (functools.cached_property keeps a method's on its object): each result is "
            "kept with its arguments, and those of a method begin with self."
        )
    new = "each step calls it with new arguments, and every result is kept"
    return f"{clear} bound it with lru_cache(maxsize=...): {new}."


def emptied_text(emptied: EmptiedLater) -> str:
    """`cleared at epoch.py:13 above 64 items`."""
    when = ""
    if emptied.bound is not None:
        when = f" above {emptied.bound:,} items"
    elif emptied.every is not None:
        when = f" every {emptied.every:,} steps"
    return f"cleared at {emptied.where}{when}"


def would_show(emptied: EmptiedLater) -> str:
    """What run would show whether it is emptied, as a sentence."""
    if emptied.seen:
        return f"The last snapshot, at step {emptied.seen:,}, was taken before that."
    if emptied.steps is not None:
        return f"A run of {emptied.steps:,} steps shows whether it is."
    return f"A run that goes on past {emptied.where} shows whether it is."


def settled_advice(settled_by: Bounded | CameToRest | EmptiedLater | FollowsInput | HeldByCall) -> str:
    """Why a growth is no leak."""
    if isinstance(settled_by, EmptiedLater):
        full = f"; it holds {bytes_text(settled_by.full_bytes)} by then" if settled_by.full_bytes is not None else ""
        sure = "" if settled_by.is_decided else ", under a condition whose outcome the source does not show"
        return f"It is {emptied_text(settled_by)}{sure}{full}. {would_show(settled_by)}"
    if isinstance(settled_by, Bounded):
        full = f"when it is full it holds {bytes_text(settled_by.full_bytes)}"
        items = f"{settled_by.items} of {settled_by.bound} items are in it"
        return f"No leak as long as its bound is what you want: {items}; {full}."
    if isinstance(settled_by, FollowsInput):
        first, last = settled_by.elements
        return (
            f"It is made anew in each step, and is larger because the model's input was: {first:,} elements at the "
            f"first snapshot, {last:,} at the last."
        )
    if isinstance(settled_by, HeldByCall):
        return f"A local variable of a call of {settled_by.package} that was running: it is released when that returns."
    return (
        f"It grew so until step {settled_by.step}; the memory counted later did not go on with it: it has been emptied "
        "since, or is full."
    )


def too_large_text(known: TooLarge) -> str:
    """Why a bound is no reason to let it grow, as sentences before the advice; of memory that is known, how much."""
    bound = known.bound
    each = {"graphs": "a graph", "modules": "a module", "parameters": "parameters"}.get(known.holds, "")
    of_all = f" of the {bytes_text(known.memory_bytes)} that there are" if known.memory_bytes and not each else ""
    why = f"each item keeps {each}, and " if each else ""
    return (
        f"It has a bound, and that is high: {bound.items} of {bound.bound} items are in it, {why}"
        f"{'' if each else 'and '}when it is full it holds {bytes_text(bound.full_bytes)}{of_all}. "
    )


def graphs_advice(finding: Finding) -> str:
    """What to keep instead of tensors that bring their graphs along."""
    name = finding.cut.written if finding.cut else finding.subject
    facts = finding.facts
    if isinstance(facts, GraphFacts) and facts.gathers:
        return (
            f"Add numbers to {name}, not tensors: x.item(), or x.detach() where the tensor is needed. What is made of "
            "a tensor and of the last step's keeps the graphs of both, though backward has freed what was saved in "
            f"them: {round(facts.nodes_per_step)} grad nodes a step, about {bytes_text(finding.bytes_per_step)}, hang "
            "off its grad_fn."
        )
    return (
        f"Keep numbers in {name}, not tensors: x.item(), or x.detach() where the tensor is needed. After backward a "
        "tensor still has a node for each operation that made it; their memory is the growth that the allocator counts "
        "and no tensor owns."
    )
