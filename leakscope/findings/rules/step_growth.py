"""A container, attribute, cache, registry or closure on a live root that gains tensors each step."""

from __future__ import annotations

from leakscope.findings.grouping.candidate import Candidate
from leakscope.findings.model import RuleName
from leakscope.findings.naming.expressions import is_lru_cache
from leakscope.graph.model import Object, ObjectKind
from leakscope.graph.ownership import is_users

NAME = RuleName.STEP_GROWTH
_OF_OPTIMIZER = (".state", ".param_groups")


def applies(found: Candidate) -> bool:
    return found.group.freed == 0


def bounded_by(found: Candidate) -> Object | None:
    """The optimizer of a library in whose state of one parameter it all hangs: its own options bound that.

    A state that gains parameters is nobody's plan, nor is what an optimizer of the user's own collects.
    """
    for place, (obj, reference) in enumerate(zip(found.objects, found.references, strict=False)):
        if obj.kind == ObjectKind.OPTIMIZER and not is_users(obj) and reference.name == ".state":
            entries = found.objects[place + 2 : place + 3]
            return obj if entries and entries[0].kind == ObjectKind.CONTAINER and found.is_for_all(entries[0]) else None
    return None


def title(found: Candidate, cut: str) -> str:
    optimizer = bounded_by(found)
    if optimizer is not None:
        return f"the {optimizer.label}'s own state of one parameter grows: {cut}"
    if found.keeps_its_number == 1:
        return f"the tensor in {cut} is larger at each look"
    if found.keeps_its_number:
        return f"the {found.keeps_its_number} tensors in {cut} are larger at each look"
    return f"{cut} gains tensors {'every few steps' if found.series.pauses else 'each step'} and lets none go"


def _is_of_cache(found: Candidate, grown: Object) -> bool:
    """Whether a container is an lru_cache, or the dict that one without a bound keeps its results in."""
    above = found.objects[found.gaining - 1] if found.gaining > 0 else None
    return is_lru_cache(grown) or above is not None and is_lru_cache(above) and above.label.endswith("maxsize None")


def _grows_in_optimizer(found: Candidate) -> bool:
    """Whether what gains lies in what an optimizer keeps, not above it: a list of optimizers is none."""
    for place, (obj, reference) in enumerate(zip(found.objects, found.references, strict=False)):
        if obj.kind == ObjectKind.OPTIMIZER and reference.name in _OF_OPTIMIZER:
            return place < found.gaining or found.gaining < 0 and found.is_for_all(obj)
    return False


def advice(found: Candidate, cut: str) -> str:
    place = found.container
    if bounded_by(found) is not None:
        return "A history that the optimizer keeps by design, up to a bound among its own options (history_size of LBFGS): no leak. Give it a smaller bound where that is too much memory."
    if found.keeps_its_number:
        return f"Nothing is added to it: see why {cut} is made larger each step (a torch.cat of all so far, a size that counts the steps), and keep a part of fixed size."
    grown = found.gained
    cache = next((o for o in found.before_tensor if is_lru_cache(o)), None)
    if cache is not None and (grown is None or _is_of_cache(found, grown)):
        return f"Call {cache.name}.cache_clear() when its results are done with, or bound it with lru_cache(maxsize=...): each step calls it with new arguments, and every result is kept."
    if any(o.type == "weakref.finalize._Info" for o in found.before_tensor):
        return "What a weakref.finalize is given lives until its object dies: let those objects go, call the finalizer's detach(), or hand it no tensor."
    if any(o.type.endswith(("WeakKeyDictionary", "WeakIdKeyDictionary")) for o in found.before_tensor):
        return f"An entry of {cut} goes when nothing else holds its key: see whether its value does, or who else keeps the keys, and take the entry out when the step is done with it."
    if _grows_in_optimizer(found):
        return "An optimizer keeps every parameter that it was ever given, and a state for each: add parameters once (add_param_group), not each step, and make a new optimizer for a new model."
    shared = [o for o in found.before_tensor if o.kind == ObjectKind.CONTAINER and found.is_for_all(o)]
    grown = grown or (shared[-1] if shared else None)
    if ".__defaults__" in cut or ".__kwdefaults__" in cut:
        return "A default argument is made once, with its function, and kept: give it the default None, and make a new one in the body."
    if any(o.type == "queue.Queue" for o in found.before_tensor):
        return f"More is put into {cut} than is taken out: give the queue a bound (queue.Queue(maxsize=...)), so that whoever fills it waits."
    if grown is not None and "dict" in grown.type.lower():
        return f"Bound {cut} or clear it: each step adds an entry under a new key (an lru_cache(maxsize=...) or one entry per real need)."
    if place:
        return f"Empty {cut} when the step is done with it, keep only what is used again, or give it a bound (collections.deque(maxlen=...))."
    return f"Reset {cut} each step; what it holds is not let go."
