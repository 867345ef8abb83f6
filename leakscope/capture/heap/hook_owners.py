"""Which grad node holds this hook dict? Nodes are asked only while such a dict has no known owner."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np

from leakscope.capture.heap.native.at_rest import AtRest
from leakscope.capture.heap.native.autograd import Role, hook_dicts_of, metadata_of
from leakscope.capture.heap.native.raw_memory import own_memory, pre_hooks_word, tensor_hooks_of
from leakscope.capture.heap.native.references import NativeReferences
from leakscope.capture.heap.prune import PrunedHeap
from leakscope.capture.heap.raw_types import all_keys_are
from leakscope.capture.heap.refcounts import RefcountTable
from leakscope.graph.model import ReferenceKind


def find_hook_owners(native: NativeReferences, refcounts: RefcountTable, pruned: PrunedHeap) -> bool:
    """Find the grad nodes behind hook and metadata dicts whose owner is not known; True where some were found.

    Asking leaves an empty dict on a node that had none, so nodes are asked only while such a dict is missing.
    """
    objects = native.sweep.objects
    unexplained = pruned.objects[refcounts.unexplained[pruned.objects] > 0].tolist()
    loose = [k for k in unexplained if k < refcounts.objects and _may_hang_on_node(objects[k])]
    if not loose:
        return False
    missing = {id(objects[k]): k for k in loose}
    answered = False
    for index in np.flatnonzero(native.role == Role.GRAD_NODE).tolist():
        if not missing:
            break
        for name, held in _dicts_of(objects[index], [objects[k] for k in missing.values()], native.types.at_rest):
            at = missing.pop(id(held), None)
            if at is not None:
                native.extra.add(index, at, ReferenceKind.HOOK, name, 1)
                answered = True
    native.hides |= native.types.at_rest.disturbed
    hooks = {address: k for address, k in missing.items() if _is_hook_dict(objects[k])}
    return _read_tensor_hooks(native, hooks) or answered


def _dicts_of(node: Any, missing: Sequence[Any], at_rest: AtRest) -> list[tuple[str, Any]]:
    """What a node has of the sort that is missing, with its name."""
    found: list[tuple[str, Any]] = []
    try:
        if any(map(_is_metadata, missing)):
            found += [("metadata", metadata) for metadata in metadata_of(node, at_rest)]
        if any(map(_is_hook_dict, missing)):
            found += hook_dicts_of(node, at_rest)
    except RuntimeError:  # up to torch 2.9 a custom Function's node may be gone while Python has its object
        return []
    return found


def _read_tensor_hooks(native: NativeReferences, missing: dict[int, int]) -> bool:
    """Find hook dicts of tensors that are gone.

    The grad node keeps them (torch/_tensor.py, register_hook), and no getter says so.
    """
    if not missing:
        return False
    answered = False
    with own_memory() as words:
        place = pre_hooks_word(words)
        for index in np.flatnonzero(native.role == Role.GRAD_NODE).tolist() if place else ():
            for address in tensor_hooks_of(native.sweep.objects[index], place, words):
                if address in missing:
                    native.extra.add(index, missing[address], ReferenceKind.HOOK, "tensor hook", 1)
                    answered = True
    return answered


def _may_hang_on_node(obj: Any) -> bool:
    return _is_hook_dict(obj) or _is_metadata(obj)


def _is_hook_dict(obj: Any) -> bool:
    if not _exact_dict(obj) or not len(obj):
        return False
    return all_keys_are(int, obj)


def _is_metadata(obj: Any) -> bool:
    return type(obj) is dict and any(map(is_, map(type, dict.keys(obj)), repeat(str)))


def _exact_dict(obj: Any) -> bool:
    return type(obj) is dict or type(obj) is OrderedDict
