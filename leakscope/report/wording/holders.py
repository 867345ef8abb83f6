"""Sentences about what frames, hooks, views, graphs and native code keep."""

from __future__ import annotations

from leakscope.findings.model import Finding
from leakscope.findings.ownership.facts import Course, LibraryDragFacts, LibraryFacts, RetentionFacts
from leakscope.findings.rules.frame_hold import CallsFacts, FrameFacts, Keeper
from leakscope.findings.rules.hook_pileup import HookFacts
from leakscope.findings.rules.native_hold import NativeFacts
from leakscope.findings.rules.retained_graph import GraphFacts, KeptOfGraph
from leakscope.findings.rules.view_hold import ViewFacts
from leakscope.units import bytes_text, seconds_text


def _locals(facts: FrameFacts) -> str:
    """`the locals of a function that has ended or waits (local batch in load)`."""
    if facts.given:
        return "what it was given or has returned"
    inside = f" ({facts.local} in {facts.function})" if facts.local else ""
    return f"the locals of a function that has ended or waits{inside}"


def frame_title(finding: Finding, facts: FrameFacts) -> str:
    """What keeps which locals, and what collects such things."""
    if not facts.collector:
        return f"{facts.label} keeps {_locals(facts)}; held by {finding.subject}"
    return f"each {facts.label}, {facts.alike} in all, keeps {_locals(facts)}; {facts.collector} collects them"


def frame_advice(finding: Finding, facts: FrameFacts) -> str:
    """What to keep instead, by what keeps the locals."""
    collector = facts.collector or finding.subject
    instead = "str(error) or traceback.format_exc()" if facts.is_text else "error.with_traceback(None)"
    return {
        Keeper.EXCEPTION: f"Keep {instead} in {collector}, not the exception as it is: its traceback holds every frame "
        "it went through and all their locals.",
        Keeper.GENERATOR: f"Run the generator to its end or close() it, and drop it from {collector}: suspended, it "
        "holds all its locals.",
        Keeper.TASK: "Let these tasks end or cancel() them, or start fewer: a task that waits keeps all locals of its "
        f"coroutine, and whatever it waits for keeps the task, also when it is dropped from {collector}.",
        Keeper.FUTURE: f"Drop finished futures from {collector}: each keeps its result.",
        Keeper.THREAD: f"Drop the finished thread from {collector}: it keeps its attributes and arguments.",
    }[facts.keeper]


def calls_title(_finding: Finding, facts: CallsFacts) -> str:
    """How many calls run at once."""
    kept = facts.kept or "its locals"
    return f"{facts.calls} calls of {facts.function}() run at once, more at each look, and each keeps {kept}"


def calls_advice(_finding: Finding, facts: CallsFacts) -> str:
    """How to have fewer of them."""
    return (
        f"Let the threads that run {facts.function}() end, or start a fixed number of them once "
        "(concurrent.futures.ThreadPoolExecutor): a call that waits keeps its locals and its thread the arguments. "
        "Where it is a recursion, return before the next step."
    )


def _hook(facts: HookFacts) -> str:
    return f"{facts.hook} ({facts.where})" if facts.where else facts.hook


def hook_title(finding: Finding, facts: HookFacts) -> str:
    """Which hook, and on what."""
    slower = ""
    if facts.step_seconds is not None:
        first, last = map(seconds_text, facts.step_seconds)
        slower = f", and a step takes {last} where it took {first}"
    what = f"{_hook(facts)} is registered again and again on the same {facts.owner}"
    return f"{what}; {finding.subject} collects them{slower}"


def hook_advice(_finding: Finding, facts: HookFacts) -> str:
    """How to have one only."""
    return (
        f"Register {_hook(facts)} once, outside the loop, or keep the handle and call handle.remove() after the step; "
        "each registration keeps what its closure holds."
    )


def graph_title(finding: Finding, facts: GraphFacts) -> str:
    """What keeps which part of a graph."""
    kept = {
        KeptOfGraph.SAVED: "its whole graph and the activations saved for it",
        KeptOfGraph.LEAVES: f"its graph and the leaf {finding.noun}s (and their .grad) that the graph ends at",
        KeptOfGraph.GRAPH: "its whole graph",
    }[facts.kept]
    if facts.gathers:
        return f"{finding.subject} carries the graph of every step"
    if facts.nodes:
        return f"{finding.subject} gains tensors with the graphs that made them each step and lets none go"
    if facts.of_gradient:
        return f"the .grad of {finding.subject} has a grad_fn and keeps {kept}"
    return f"{facts.holder} with a grad_fn in {finding.subject} keeps {kept}"


def graph_advice(finding: Finding, facts: GraphFacts) -> str:
    """How to keep the tensor without its graph."""
    if facts.of_gradient:
        return (
            f"Set the .grad of {finding.subject}, and of every other parameter that no optimizer zeroes, to None in "
            "each step: backward(create_graph=True) gives gradients a graph of their own, and what is added to them "
            "goes on adding to it. torch.autograd.grad stores none."
        )
    if facts.by_arguments:
        return (
            f"The key of {finding.subject} holds the arguments of the call, for a method its self, and with them the "
            "graph: a result that is detached changes nothing. Cache it on the object (functools.cached_property), "
            "cache a function that is given no tensor or module, or call cache_clear() after each step."
        )
    if facts.is_differentiated:
        return (
            f"The program calls backward on what {finding.subject} holds, so it cannot be detached: take each "
            f"{finding.noun} out (pop, clear) once backward has run, or once it is known that it never will."
        )
    through = f" (through {' of '.join(facts.saved)})" if facts.saved else ""
    return (
        f"Store {finding.subject} detached: use .item() for a number or .detach() for a {finding.noun} before keeping "
        f"it{through}."
    )


def view_title(finding: Finding, facts: ViewFacts) -> str:
    """How little is needed of how large a storage."""
    needed, storage = bytes_text(facts.needed_bytes), bytes_text(facts.storage_bytes)
    return f"{facts.held} in {finding.subject} needs {needed} and keeps a storage of {storage}"


def view_advice(finding: Finding, facts: ViewFacts) -> str:
    """How to keep the small part only."""
    if facts.by_base:
        return (
            f"Drop the view in {finding.subject}, or keep a .detach().clone() of it: a view holds its base through "
            "._base even when its own .data is replaced."
        )
    return (
        f"Clone what you keep in {finding.subject} (.detach().clone()): a slice shares the whole storage it was cut "
        "from."
    )


def native_title(_finding: Finding, facts: NativeFacts) -> str:
    """What nothing explains."""
    return f"{facts.label} is held by a running call or native code, and no Python object explains it"


def native_advice(_finding: Finding, facts: NativeFacts) -> str:
    """Where to look for its holder."""
    count = facts.unexplained
    return (
        f"{count} reference{'s' if count != 1 else ''} to it could not be found in Python or autograd: look for "
        "handles "
        "of asynchronous operations not waited for, an autocast region never left, or a C++ extension that caches it."
    )


_COURSES = {
    Course.GROWS: "It grows.",
    Course.STEADY: "It is the same at every look: it does not grow.",
    Course.VARIES: "It does not grow at every look.",
    Course.UNKNOWN: "",
}


def retention_title(_: Finding, facts: RetentionFacts) -> str:
    """What a library keeps from step to step."""
    return f"kept by torch's {facts.holder} from step to step: {bytes_text(facts.bytes)}"


def retention_advice(_: Finding, facts: RetentionFacts) -> str:
    """Who keeps it too, how it goes on, and what the script can do."""
    return _joined(facts, _COURSES[facts.course])


def drag_title(_: Finding, facts: LibraryDragFacts) -> str:
    """What a library keeps through the step's peak."""
    return f"kept by torch's {facts.holder} through the step's peak, and not used again: {bytes_text(facts.bytes)}"


def drag_advice(_: Finding, facts: LibraryDragFacts) -> str:
    """Who keeps it too, when the peak is, and what the script can do."""
    return _joined(facts, f"The step's peak is at {facts.peak_at}.")


def _joined(facts: LibraryFacts, more: str) -> str:
    parts = []
    for other in facts.kept_too:
        whole = "all of it" if other.storages == facts.storages else f"{other.storages} of {facts.storages} storages"
        parts.append(f"Kept by {other.name} too: {whole}.")
    return " ".join(part for part in (*parts, more, facts.cure) if part)
