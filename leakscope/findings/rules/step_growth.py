"""A container, attribute, cache, registry or closure on a live root that gains tensors each step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from leakscope.findings.candidates import Candidate
from leakscope.findings.facts import Facts, RuleName
from leakscope.findings.naming import is_lru_cache
from leakscope.findings.rules.rule import OwnRule, ToCut
from leakscope.graph.model import Object, ObjectKind
from leakscope.graph.ownership import is_users

_OF_OPTIMIZER = (".state", ".param_groups")
_WEAK_KEYS = ("WeakKeyDictionary", "WeakIdKeyDictionary")
_DEFAULTS = (".__defaults__", ".__kwdefaults__")
_OWNERS = (ObjectKind.NN_MODULE, ObjectKind.OPTIMIZER, ObjectKind.PARAMETER)


class GrowsIn(StrEnum):
    """What kind of thing gains tensors: it decides what to do about it."""

    OPTIMIZER_HISTORY = "optimizer history"
    """The state that an optimizer of a library keeps of one parameter."""
    SAME_TENSORS = "same tensors"
    """Nothing is added: the tensors themselves are larger at each look."""
    CACHE = "cache"
    """The results of a function under `lru_cache`."""
    CALLBACK = "callback"
    """Functions and methods that native code keeps: exit handlers, signal handlers, callbacks of a C library."""
    FINALIZER = "finalizer"
    WEAK_KEYS = "weak keys"
    OPTIMIZER = "optimizer"
    """What an optimizer keeps of ever more parameters."""
    DEFAULT_ARGUMENT = "default argument"
    QUEUE = "queue"
    DICT = "dict"
    NAMES = "names"
    """Attributes of one object, under ever new names."""
    CONTAINER = "container"
    OTHER = "other"


@dataclass(frozen=True)
class GrowthFacts(Facts):
    """Something alive that gains tensors."""

    grows_in: GrowsIn
    holder: str = ""
    """Label of the optimizer or callback, name of the cached function, or what gains attributes as the user would
    write it.
    """
    tensors: int = 0
    """How many tensors there were at every look, where none were added."""
    pauses: bool = False
    """It did not grow at each look."""
    holders: int = 1
    """How many things gain the same, where what is named is one of them."""
    gains: tuple[str, ObjectKind] | None = None
    """Type and kind of what is gained, where that is a module, an optimizer or a parameter; None for plain tensors."""


def _applies(candidate: Candidate) -> bool:
    return candidate.group.freed == 0


def _bounded_by(candidate: Candidate) -> Object | None:
    """The optimizer of a library in whose state of one parameter it all hangs: its own options bound that.

    A state that gains parameters is nobody's plan, nor is what an optimizer of the user's own collects.
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
    """Whether what gains lies in what an optimizer keeps, not above it: a list of optimizers is none."""
    for place, (obj, reference) in enumerate(zip(candidate.objects, candidate.references, strict=False)):
        if obj.kind == ObjectKind.OPTIMIZER and reference.name in _OF_OPTIMIZER:
            return place < candidate.gaining or (candidate.gaining < 0 and candidate.is_for_all(obj))
    return False


def _is_default(candidate: Candidate, cut: ToCut) -> bool:
    """Whether the reference to cut is one of a function's defaults, or lies in one."""
    path, first = candidate.group.path, cut.references[:1]
    above = path[: path.index(first[0]) + 1] if first and first[0] in path else first
    return any(candidate.graph.reference(reference).name in _DEFAULTS for reference in above)


def _grows_in(candidate: Candidate, cut: ToCut) -> GrowsIn:
    """The kind of a growth that is neither an optimizer's history, nor one of the same tensors, nor a cache's."""
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
    """What gains attributes; "" where that is a script's own namespace, or where nothing does."""
    many = candidate.group.many
    return candidate.written(candidate.group.path[many.place - 1]) if many is not None and many.place else ""


def _gains(candidate: Candidate) -> tuple[str, ObjectKind] | None:
    """What is gained, where it is a module, an optimizer or a parameter, not a tensor or what carries some."""
    below = candidate.objects[candidate.gaining + 1 : candidate.tensor_at + 1] if candidate.gaining >= 0 else ()
    gained = next((o for o in below if o.kind != ObjectKind.CONTAINER), None)
    if gained is None or gained.kind not in _OWNERS:
        return None
    return gained.type.rpartition(".")[2], gained.kind


def _facts(candidate: Candidate, cut: ToCut) -> GrowthFacts:
    tensors, pauses = candidate.keeps_its_number, candidate.series.pauses
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


RULE = OwnRule(RuleName.STEP_GROWTH, 100, "A live container that gains tensors each step.", _applies, _facts)
