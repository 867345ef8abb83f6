"""What does each rule tell, and what mends it, for who meets it in a list of alerts?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leakscope.findings.kinds import RuleName
from leakscope.findings.rules import rule_texts


@dataclass(frozen=True)
class RuleHelp:
    """What is said of one rule."""

    name: str
    """`TensorCycle`."""
    text: str
    """One sentence."""
    why: str = ""
    """How the memory comes to be kept."""
    cure: str = ""
    """What to change."""


_HELP: Mapping[str, tuple[str, str]] = {
    RuleName.IMMORTAL_CYCLE: (
        "A hook, metadata or a graph kept by create_graph refers to the tensor it belongs to, by a reference in C++ "
        "that gc cannot follow: collecting never frees it.",
        "Cut the closing reference: remove the hook when it is done, keep a weak reference or a detached copy in it, "
        "or take gradients with torch.autograd.grad in place of backward(create_graph=True).",
    ),
    RuleName.TENSOR_CYCLE: (
        "The tensors wait for gc in a cycle, such as a function that calls itself, a stored exception, or a tensor "
        "kept on ctx; with gc off, or late, they pile up.",
        "Cut the closing reference, so that reference counts free the memory at once.",
    ),
    RuleName.DIST_AUTOGRAD_CONTEXT: (
        "A context of distributed autograd keeps the gradients that were sent in it until it is left.",
        "Open it with `with dist_autograd.context()`, and let no exception or early return pass its end by.",
    ),
    RuleName.P2P_BUFFER: (
        "A buffer that was sent or received, or the Work of that, is kept beyond the step in which it was needed.",
        "Wait for the Work in the same step, and let go of it and of the buffer afterwards.",
    ),
    RuleName.HOOK_PILEUP: (
        "Each step registers hooks again, and none of the older ones is removed.",
        "Register once, before the loop, or call remove() on the handle that registering returns.",
    ),
    RuleName.FRAME_HOLD: (
        "The locals of a function live as long as its frame, and that as long as a traceback, a stored exception, a "
        "suspended generator, a thread or a future.",
        "Keep the text of an exception in place of the exception, close generators, and join threads.",
    ),
    RuleName.RETAINED_GRAPH: (
        "A tensor with a grad_fn keeps the whole graph that made it, and the activations saved there.",
        "Keep `loss.item()` or `loss.detach()` in place of the loss.",
    ),
    RuleName.VIEW_HOLD: (
        "A view shares the memory of the tensor it was taken from, and keeps all of it.",
        "Keep a clone of the part that is needed.",
    ),
    RuleName.STEP_GROWTH: (
        "A container, attribute, cache or closure that lives on gains tensors at each step.",
        "Bound it, clear it, or keep numbers in place of tensors.",
    ),
    RuleName.OBJECT_GROWTH: (
        "A container that lives on gains objects at each step that are no tensors: strings, records, lists.",
        "Bound it, clear it, or write it to disk.",
    ),
    RuleName.NATIVE_HOLD: (
        "No reference of Python or autograd leads to the memory: a running call or C++ holds it.",
        "Look at what made it, and at what is handed to native code there: caches, autocast, Work handles.",
    ),
    RuleName.LATE_RELEASE: (
        "At the peak of a step it lies there although nothing uses it again in that step.",
        "Let go of it before the peak: `del` the name, or hand it over in a list that the callee empties.",
    ),
    RuleName.IDLE_MEMORY: (
        "It was there before the watched steps, and none of their operations touched it.",
        "Let go of it before training, or load it to where it takes no memory of the device.",
    ),
    RuleName.RANK_SKEW: (
        "One rank holds more than the others do at the same step.",
        "Look at what that rank does otherwise: its stage, its batches, what it logs.",
    ),
    RuleName.ALLOCATOR: (
        "The allocator has reserved more than the tensors take.",
        "Look at the sizes of what is allocated, and at the settings of the allocator.",
    ),
    RuleName.WORKER_GROWTH: (
        "A container of the dataset, of a class or of a module gains items in `__getitem__`, in a transform or in "
        "`collate_fn`: each worker fills its own.",
        "Take out what is done with, give it a bound, or share one cache between the workers.",
    ),
    RuleName.WORKER_COPIES: (
        "A forked worker shares the parent's memory until it writes to it. To read a Python object is to write its "
        "reference count, and the whole page that it lies on is copied.",
        "Keep the data in one block that has no reference counts: a numpy array, a torch tensor, an Arrow table.",
    ),
}


def rule_help(rule: str) -> RuleHelp:
    """What is said of a rule; of another package's its one sentence."""
    name = "".join(word.capitalize() for word in rule.replace("_", "-").split("-"))
    return RuleHelp(name, rule_texts().get(rule, rule), *_HELP.get(rule, ("", "")))
