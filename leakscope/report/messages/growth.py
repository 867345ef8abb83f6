"""Titles and advice of what keeps growing."""

from __future__ import annotations

from collections.abc import Mapping

from leakscope.findings.breakdown import ScatteredFacts
from leakscope.findings.facts import Bounded, CameToRest, EmptiedLater, FollowsInput, HeldByCall, TooLarge
from leakscope.findings.library import Course, LibraryDragFacts, LibraryFacts, RetentionFacts
from leakscope.findings.model import Finding
from leakscope.findings.process_counts import AlsoGrows, Counted
from leakscope.findings.rules.frame_hold import CallsFacts, FrameFacts, Keeper
from leakscope.findings.rules.hook_pileup import HookFacts
from leakscope.findings.rules.native_hold import NativeFacts
from leakscope.findings.rules.object_growth import Collects, ObjectFacts
from leakscope.findings.rules.retained_graph import GraphFacts, KeptOfGraph
from leakscope.findings.rules.step_growth import GrowsIn, GrowthFacts
from leakscope.findings.rules.view_hold import ViewFacts
from leakscope.graph.model import ObjectKind
from leakscope.run.rows import Recompiled
from leakscope.units import bytes_text, plural, seconds_text

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


_FEW = 10
"""Items a step from which on they are told without a fraction."""
_CLOSE: Mapping[str, str] = {
    "unix socket": "end what is started anew, a pool, manager or process group, before the next one is",
    "socket": "close what is connected anew: a client, store or server object is kept, or left behind unclosed",
    "pipe": "end and join the processes that are started anew, or set persistent_workers=True for a DataLoader",
    "/dev/shm/": "each is a shared tensor that is still held: let go of it, or keep a clone() of what others have sent",
    "/": "open files in a with block, or close them",
}
"""How the kind of a descriptor begins, to what to do; the first that fits."""
_CLOSE_OTHERS = "close what opens them"


def objects_title(finding: Finding, facts: ObjectFacts) -> str:
    """`history in main() gains 1 str a step, 600.00 KiB a step, and lets none go`."""
    end = end_text(finding)
    pace = f"{bytes_text(finding.bytes_per_step)} a step{end if end.startswith(',') else f',{end}'}"
    return f"{finding.subject} gains {_gained(facts)}, {pace}"


def _gained(facts: ObjectFacts) -> str:
    """`12 str a step`, `attributes (1 str a step)`."""
    rate = facts.items_per_step
    count = f"{rate:,.0f}" if rate >= _FEW or rate == round(rate) else f"{rate:.1f}"
    gained = f"{count} {facts.item} a step"
    if facts.collects == Collects.CHAIN:
        return f"{gained} in a chain"
    return f"attributes ({gained})" if facts.collects == Collects.ATTRIBUTES else gained


def objects_advice(finding: Finding, facts: ObjectFacts) -> str:
    """What lets go of it, by what kind of thing gains it."""
    held = finding.subject
    return {
        Collects.LIST: f"Write what goes into {held} to a file, keep a summary (a count, a mean), or give it a bound "
        "(collections.deque(maxlen=...)).",
        Collects.DICT: f"Each step puts something under a new key into {held}: take out what is done with, write it to "
        "a file, or give it a bound.",
        Collects.SET: f"Each step puts something new in {held}: take out what is done with, or keep a count.",
        Collects.QUEUE: f"More is put into {held} than is taken out: give it a bound (maxlen=...), or write it to a "
        "file.",
        Collects.CHAIN: f"Each {facts.item} is held by the next one: keep a number or a name there instead of the "
        f"object, or end the chain that {held} leads to at some length.",
        Collects.ATTRIBUTES: f"Each step sets attributes of {held} under new names: use names that stay the same, or "
        "delete what is done with.",
    }[facts.collects]


def also_grows_text(facts: AlsoGrows) -> str:
    """`143 file descriptors more from step 3 to 40 (...): what to do`."""
    return _TEXTS[facts.what](facts)


def _over(facts: AlsoGrows) -> str:
    return f"from step {facts.from_step} to {facts.to_step}"


def _descriptors(facts: AlsoGrows) -> str:
    more = facts.now - facts.before
    kinds = ", ".join(f"{count} `{kind}`" for kind, count in facts.by)
    limit = f" of the {facts.limit} that the system allows" if facts.limit is not None else ""
    kind = facts.by[0][0] if facts.by else ""
    cure = next((cure for begins, cure in _CLOSE.items() if kind.startswith(begins)), _CLOSE_OTHERS)
    return (
        f"{plural(more, 'file descriptor')} more {_over(facts)}, {facts.now} now{limit}{': ' if kinds else ''}{kinds}. "
        f"To do: {cure}."
    )


def _shared(facts: AlsoGrows) -> str:
    first, last = facts.segments or (0, 0)
    return (
        f"{bytes_text(facts.now - facts.before)} more shared memory (/dev/shm) {_over(facts)}, "
        f"{plural(last, 'segment')} after {first}: tensors that share_memory_() or a queue of torch.multiprocessing "
        "has moved there. To do: let go of those that are done with; each takes a mapping, and most a descriptor."
    )


def _compiled(facts: AlsoGrows) -> str:
    told = f"torch.compile has compiled {plural(facts.now - facts.before, 'time')} {_over(facts)}"
    again = "".join(map(_again, facts.again[:2]))
    limit = ", until dynamo's limit, and runs uncompiled from then on" if facts.over_limit else ""
    return (
        f"{told}{again}{limit}. To do: mark what changes as dynamic (dynamic=True, torch._dynamo.mark_dynamic), pass "
        "numbers as tensors, or keep one compiled function instead of a new one each time; TORCH_LOGS=recompiles tells "
        "each reason."
    )


def _again(one: Recompiled) -> str:
    why = f", because of `{one.reason}`" if one.reason else ""
    return f"; `{one.name}` ({one.at}) again {plural(one.times, 'time')} in all{why}"


def _pinned(facts: AlsoGrows) -> str:
    return (
        f"{bytes_text(facts.now - facts.before)} more pinned host memory {_over(facts)}, {bytes_text(facts.now)} now. "
        "To do: let go of batches of a pin_memory loader and of pinned copies once they are on the device."
    )


def _pools(facts: AlsoGrows) -> str:
    return (
        f"{bytes_text(facts.now - facts.before)} more in private pools of the device {_over(facts)}, "
        f"{bytes_text(facts.now)} now. To do: give graphs that do not run at the same time one pool "
        "(torch.cuda.graph(g, pool=...)), and let go of CUDAGraph and MemPool objects that are done with."
    )


_TEXTS = {
    Counted.DESCRIPTORS: _descriptors,
    Counted.SHARED_MEMORY: _shared,
    Counted.COMPILED: _compiled,
    Counted.PINNED_MEMORY: _pinned,
    Counted.PRIVATE_POOLS: _pools,
}


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
